"""The sizes of quorums: what an expression is worth, and which two of them belong together."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safekeeper.base.errors import ConfigurationError
from safekeeper.consensus.quorum_expression import DEPTH_MAX, LENGTH_MAX, MEMBERS_MAX, problem_of_sizes, size_of

ALLOWED = "an expression consists of digits, N, + - * / and parentheses"


@pytest.mark.parametrize(
    ("expression", "sizes"),
    [
        ("N/2+1", [1, 2, 2, 3, 3]),
        ("N", [1, 2, 3, 4, 5]),
        ("N-N/3", [1, 2, 2, 3, 4]),
        ("(N+2)/3", [1, 1, 1, 2, 2]),
        ("2*N-N", [1, 2, 3, 4, 5]),
        ("N-1-0*2", [0, 1, 2, 3, 4]),
        ("N*0+1", [1, 1, 1, 1, 1]),
        ("7/2/2", [1, 1, 1, 1, 1]),
        ("((3))", [3, 3, 3, 3, 3]),
        ("007", [7, 7, 7, 7, 7]),
    ],
)
def test_the_value_of_an_expression(expression: str, sizes: list[int]) -> None:
    assert [size_of(expression, members) for members in range(1, 6)] == sizes


_operands = st.one_of(st.just("N"), st.integers(0, 40).map(str))
_expressions = st.recursive(
    _operands,
    lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map(lambda parts: "({}{}{})".format(*parts)),
    max_leaves=6,
)


@given(_expressions, st.integers(1, MEMBERS_MAX))
def test_an_expression_is_worth_what_python_says(expression: str, members: int) -> None:
    try:
        size = size_of(expression, members)
    except ConfigurationError:
        return  # A value in it is negative, too large, or divided by 0.
    assert size == eval(expression.replace("/", "//"), {"N": members})


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("", f"it ends too early; {ALLOWED}"),
        ("aaa", f"character 1 is 'a'; {ALLOWED}"),
        ("n/2+1", f"character 1 is 'n'; {ALLOWED}"),
        ("N/2 + 1", f"character 4 is ' '; {ALLOWED}"),
        ("N/2+1)", f"character 6 is ')'; {ALLOWED}"),
        ("(N", f"it ends too early; {ALLOWED}"),
        ("N//2", f"character 3 is '/'; {ALLOWED}"),
        ("N**2", f"character 3 is '*'; {ALLOWED}"),
        ("-1+N", f"character 1 is '-'; {ALLOWED}"),
        ("2N", f"character 2 is 'N'; {ALLOWED}"),
        ("٣", f"character 1 is '٣'; {ALLOWED}"),
        ("__import__", f"character 1 is '_'; {ALLOWED}"),
        ("N/(N-5)", "it divides by 0 for N = 5"),
        ("4294967297", "a value in it is above 999999 for N = 5"),
        ("9*9*9*9*9*9*9*9", "a value in it is above 999999 for N = 5"),
        ("N-6+9", "a value in it is negative for N = 5"),
        ("1+" * 40 + "1", "it has 81 characters, more than 64"),
        ("(" * 9 + "N" + ")" * 9, "it has more than 8 parentheses in each other"),
        ("(N)+" + "(" * 9 + "N" + ")" * 9, "it has more than 8 parentheses in each other"),
    ],
)
def test_what_has_no_value_is_refused_with_the_place(expression: str, why: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        size_of(expression, 5)
    assert str(raised.value) == f"the quorum size {expression[:LENGTH_MAX]!r} is not valid: {why}"


def test_the_limits_of_length_and_depth_are_allowed() -> None:
    assert size_of("(" * DEPTH_MAX + "N" + ")" * DEPTH_MAX, 5) == 5
    assert size_of("1+" * 31 + "N", 5) == 36
    assert size_of("1+" * (LENGTH_MAX // 2 - 1) + "10", 5) == 41
    assert size_of("(N)+" * 12 + "(N)", 1) == 13, "one behind the other, not in each other"


@given(st.text("N0123456789+-*/()", max_size=LENGTH_MAX + 3))
def test_no_text_costs_much(text: str) -> None:
    began_at = time.process_time()
    problem_of_sizes(text, text)
    assert time.process_time() - began_at < 0.5


@pytest.mark.parametrize(
    ("commit", "elect"),
    [
        ("N/2+1", "N/2+1"),
        ("N/3+1", "N-N/3"),
        ("N-N/4", "N/2+1"),
        ("1", "N"),
        ("N", "N"),
        ("N", "N/2+1"),
        ("N-N/32*32", "N/2+1"),  # With a 32nd member it would be 0.
    ],
)
def test_sizes_that_belong_together(commit: str, elect: str) -> None:
    assert problem_of_sizes(commit, elect) == ""


@pytest.mark.parametrize(
    ("commit", "elect", "problem"),
    [
        ("aaa", "N", f"the quorum size 'aaa' is not valid: character 1 is 'a'; {ALLOWED}"),
        ("N", "aaa", f"the quorum size 'aaa' is not valid: character 1 is 'a'; {ALLOWED}"),
        ("N/(N-5)+1", "N", "the quorum size 'N/(N-5)+1' is not valid: a value in it is negative for N = 1"),
        ("N+1", "N", "the commit quorum 'N+1' is 2 for N = 1: it must be from 1 to N"),
        ("N", "N-1", "the elect quorum 'N-1' is 0 for N = 1: it must be from 1 to N"),
        ("2", "N", "the commit quorum '2' is 2 for N = 1: it must be from 1 to N"),
        ("4294967297", "N", "the quorum size '4294967297' is not valid: a value in it is above 999999 for N = 1"),
        ("N", "N-N/31*31", "the elect quorum 'N-N/31*31' is 0 for N = 31: it must be from 1 to N"),
        (
            "(N+2)/3",
            "N/2+1",
            "the commit quorum '(N+2)/3' is 1 and the elect quorum 'N/2+1' is 2 for N = 3: together they must be more "
            "than N, or a leader could be elected without committed WAL",
        ),
        (
            "N",
            "N/3+1",
            "the elect quorum 'N/3+1' is 1 for N = 2: it must be more than N/2, or two leaders could be elected in one "
            "term",
        ),
    ],
)
def test_sizes_that_do_not_belong_together_are_refused_with_the_first_n(commit: str, elect: str, problem: str) -> None:
    assert problem_of_sizes(commit, elect) == problem


@given(_expressions, _expressions)
def test_two_sizes_that_are_accepted_always_meet(commit: str, elect: str) -> None:
    if problem_of_sizes(commit, elect):
        return
    for members in range(1, MEMBERS_MAX + 1):
        sizes = size_of(commit, members), size_of(elect, members)
        assert all(1 <= size <= members for size in sizes)
        assert members < sum(sizes) and members < 2 * sizes[1]
