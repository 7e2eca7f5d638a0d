"""The sizes of a cluster's quorums, as arithmetic expressions in N, the number of members.

    expression = product {("+" | "-") product}
    product    = operand {("*" | "/") operand}
    operand    = digits | "N" | "(" expression ")"

`/` drops the remainder. No intermediate result is negative or above VALUE_MAX. The length and the depth are bounded, so
that an expression from a peer costs little.

Two sizes belong together (S8d): a commit quorum needs `commit` members, and an election `elect` of them. For each N
from 1 to MEMBERS_MAX:

- both are from 1 to N: N members suffice, and one is needed;
- commit + elect > N: each elected leader has a vote of a member with the committed WAL;
- 2 * elect > N: two candidates cannot both win one term.

Pure. `size_of` and `problem_of_sizes` remember their last results.
"""

from functools import lru_cache

from safekeeper.base.errors import ConfigurationError

MEMBERS_MAX = 31
LENGTH_MAX = 64
DEPTH_MAX = 8
VALUE_MAX = 999_999
_REMEMBERED = 512


class _Invalid(Exception):
    """Why an expression has no value."""


@lru_cache(_REMEMBERED)
def size_of(expression: str, members: int) -> int:
    """Return the value of an expression for this number of members.

    Raises:
        ConfigurationError: it is not an expression, or has no value for this number.
    """
    shown = repr(expression[:LENGTH_MAX])
    try:
        if len(expression) > LENGTH_MAX:
            raise _Invalid(f"it has {len(expression)} characters, more than {LENGTH_MAX}")
        return _Reader(expression, members).read()
    except _Invalid as why:
        raise ConfigurationError(f"the quorum size {shown} is not valid: {why}") from None


@lru_cache(_REMEMBERED)
def problem_of_sizes(commit: str, elect: str) -> str:
    """Return why these two expressions cannot be the sizes of quorums, empty if they can be, for 1 to 31 members."""
    for members in range(1, MEMBERS_MAX + 1):
        try:
            sizes = size_of(commit, members), size_of(elect, members)
        except ConfigurationError as error:
            return str(error)
        for name, expression, size in (("commit", commit, sizes[0]), ("elect", elect, sizes[1])):
            if not 1 <= size <= members:
                return f"the {name} quorum {expression!r} is {size} for N = {members}: it must be from 1 to N"
        if sum(sizes) <= members:
            return (
                f"the commit quorum {commit!r} is {sizes[0]} and the elect quorum {elect!r} is {sizes[1]} for N = "
                f"{members}: together they must be more than N, or a leader could be elected without committed WAL"
            )
        if 2 * sizes[1] <= members:
            return (
                f"the elect quorum {elect!r} is {sizes[1]} for N = {members}: it must be more than N/2, or two leaders "
                "could be elected in one term"
            )
    return ""


class _Reader:
    """Reads one expression from left to right."""

    def __init__(self, text: str, members: int) -> None:
        self._text = text
        self._members = members
        self._at = 0
        self._depth = 0

    def read(self) -> int:
        """Return the value of the whole text."""
        value = self._sum()
        if self._at < len(self._text):
            raise self._unexpected()
        return value

    def _next(self) -> str:
        return self._text[self._at] if self._at < len(self._text) else ""

    def _take(self, accepted: str) -> str:
        """Return the next character and go on behind it, if it is one of these; else return ''."""
        found = self._next()
        if not found or found not in accepted:
            return ""
        self._at += 1
        return found

    def _unexpected(self) -> _Invalid:
        found = self._next()
        where = f"character {self._at + 1} is {found!r}" if found else "it ends too early"
        return _Invalid(f"{where}; an expression consists of digits, N, + - * / and parentheses")

    def _checked(self, value: int) -> int:
        if not 0 <= value <= VALUE_MAX:
            what = "negative" if value < 0 else f"above {VALUE_MAX}"
            raise _Invalid(f"a value in it is {what} for N = {self._members}")
        return value

    def _sum(self) -> int:
        value = self._product()
        while operator := self._take("+-"):
            operand = self._product()
            value = self._checked(value + operand if operator == "+" else value - operand)
        return value

    def _product(self) -> int:
        value = self._operand()
        while operator := self._take("*/"):
            operand = self._operand()
            if operator == "/" and not operand:
                raise _Invalid(f"it divides by 0 for N = {self._members}")
            value = self._checked(value * operand if operator == "*" else value // operand)
        return value

    def _operand(self) -> int:
        if self._take("N"):
            return self._members
        if self._take("("):
            self._depth += 1
            if self._depth > DEPTH_MAX:
                raise _Invalid(f"it has more than {DEPTH_MAX} parentheses in each other")
            value = self._sum()
            if not self._take(")"):
                raise self._unexpected()
            self._depth -= 1
            return value
        value, has_digits = 0, False
        while digit := self._take("0123456789"):
            value, has_digits = self._checked(10 * value + int(digit)), True
        if not has_digits:
            raise self._unexpected()
        return value
