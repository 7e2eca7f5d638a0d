"""Random sizes of quorums, each made together with its value, and compared with the reader of such expressions.

Theory of operation. An expression is put together from its parts, from left to right, as a person would calculate it:
so its value for each number of members is known without reading it, and nothing here parses. No value means that the
reader must refuse it. Two expressions together are compared with the three rules for sizes (Parts in protocol.md).
"""

import random
from collections.abc import Callable

from safekeeper.base.errors import ConfigurationError
from safekeeper.consensus.quorum_expression import problem_of_sizes, size_of
from tests.simulation.checks.violation import Violation

MEMBERS_MAX = 31
VALUE_MAX = 999_999
LENGTH_MAX = 64
DEPTH_MAX = 8
Value = Callable[[int], int | None]
# Such as a person might choose, so that some pairs are sizes, and some miss them by one.
USUAL = ("N", "1", "N/2+1", "(N+1)/2", "N/2", "N-N/2", "2*N/3+1", "N - 1", "(N + 2) / 2", "N-1/2")
BROKEN = (
    "",
    " ",
    "n",
    "N+",
    "+N",
    "N N",
    "(N",
    "N)",
    "()",
    "N//2",
    "N**2",
    "-N",
    "N%2",
    "1.5",
    "N/0",
    "N-N-1",
    "2N",
    "N2",
)


def check_drawn(rng: random.Random) -> None:
    """Draw expressions, and compare what the product makes of them.

    Raises:
        Violation: it takes one for something else.
    """
    text, value = _draw(rng, 0)
    members = rng.randint(1, MEMBERS_MAX)
    expected = value(members) if len(text) <= LENGTH_MAX else None
    broken = rng.choice(BROKEN)
    for each, meaning in ((text, expected), (broken, None), (f"{text}{rng.choice(')(x N')}", None)):
        actual = _size(each, members)
        if actual != meaning:
            raise Violation("Reference", f"{each!r} is {actual} for {members} members, and means {meaning}")
    deep = "(" * DEPTH_MAX + "N" + ")" * DEPTH_MAX
    if (_size(deep, members), _size(f"({deep})", members)) != (members, None):
        raise Violation("Reference", f"{DEPTH_MAX} parentheses in each other are refused, or more are not")
    _check_pair(rng.choice((*USUAL, text)), rng.choice((*USUAL, text)))


def _check_pair(commit: str, elect: str) -> None:
    pairs = [(members, _size(commit, members), _size(elect, members)) for members in range(1, MEMBERS_MAX + 1)]
    is_refused = not all(_are_sizes(*pair) for pair in pairs)
    problem = problem_of_sizes(commit, elect)
    if bool(problem) != is_refused:
        raise Violation(
            "Reference", f"{commit!r} and {elect!r} are refused: {is_refused}; the product finds {problem!r}"
        )


def _are_sizes(members: int, commit: int | None, elect: int | None) -> bool:
    if commit is None or elect is None or not (1 <= commit <= members and 1 <= elect <= members):
        return False
    return commit + elect > members and 2 * elect > members


def _size(text: str, members: int) -> int | None:
    try:
        return size_of(text, members)
    except ConfigurationError:
        return None


def _draw(rng: random.Random, depth: int) -> tuple[str, Value]:
    """Draw a sum of products."""
    return _chain(rng, depth, "+-", lambda: _chain(rng, depth, "*/", lambda: _operand(rng, depth)))


def _chain(rng: random.Random, depth: int, operators: str, draw: Callable[[], tuple[str, Value]]) -> tuple[str, Value]:
    """Draw operands with operators of one rank between them: the first two are calculated first."""
    text, value = draw()
    for _ in range(rng.choice((0, 0, 1, 1, 2))):
        operator, (right_text, right) = rng.choice(operators), draw()
        text, value = f"{text}{operator}{right_text}", _joined(operator, value, right)
    return text, value


def _joined(operator: str, left: Value, right: Value) -> Value:
    def value(members: int) -> int | None:
        one, other = left(members), right(members)
        if one is None or other is None or (operator == "/" and other == 0):
            return None
        result = {"+": one + other, "-": one - other, "*": one * other, "/": one // (other or 1)}[operator]
        return result if 0 <= result <= VALUE_MAX else None

    return value


def _operand(rng: random.Random, depth: int) -> tuple[str, Value]:
    if depth < DEPTH_MAX - 1 and rng.random() < 0.15:
        text, value = _draw(rng, depth + 1)
        return f"({text})", value
    if rng.random() < 0.5:
        return "N", lambda members: members
    number = rng.choice((0, 1, 2, 3, 10, 31, VALUE_MAX, VALUE_MAX + 1))
    return str(number), lambda members: number if number <= VALUE_MAX else None
