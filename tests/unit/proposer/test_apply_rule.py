"""Whom remote_apply waits for: what can be written, what cannot, and how far the designated have replayed."""

import pytest

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.settings import load
from walproxy.proposer.apply_rule import ApplyRule, fold_name, parse_apply_rule
from walproxy.proxy.config import ENVIRONMENT_PREFIX, ProxyConfig


@pytest.mark.parametrize(
    ("written", "count", "names"),
    [
        ("", 0, ()),
        ("   ", 0, ()),
        ("a", 1, ("a",)),
        ("a, B ,standby-3", 3, ("a", "b", "standby-3")),
        ('"two words", "with ""quotes""", "a,b"', 3, ("two words", 'with "quotes"', "a,b")),
        ("ANY 1 (a, b)", 1, ("a", "b")),
        ("any 2(a,b,c)", 2, ("a", "b", "c")),
        ("ANY 2 (*)", 2, ()),
        ("ANY 3", 3, ()),
        ('"ANY", first', 2, ("any", "first")),
        ("any", 1, ("any",)),
        ('"*"', 1, ("*",)),
        ("2", 1, ("2",)),
    ],
)
def test_a_rule_is_written_as_postgresql_writes_such_rules(written: str, count: int, names: tuple[str, ...]) -> None:
    assert parse_apply_rule(written) == ApplyRule(written.strip() if count else "", count, names)


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("ANY 3 (a, b)", "can never be met: require 1 to 2"),
        ("ANY 0 (a)", "can never be met: require 1 to 1"),
        ("ANY 0", "can never be met: require 1 or more"),
        ("ANY 1 ()", "has a syntax error"),
        ("ANY 1 a", "in parentheses"),
        ("ANY 1 (a", "in parentheses"),
        ("ANY 1 a)", "in parentheses"),
        ("ANY one (a)", "has a syntax error"),
        ("ANY 1 (a, *)", "has a syntax error"),
        ("*", "lacks the required number"),
        ("FIRST 1 (a, b)", "FIRST is not supported"),
        ("FIRST 1", "FIRST is not supported"),
        ("ANY \N{ARABIC-INDIC DIGIT ONE} (a)", "has a syntax error"),
        ("2 (a, b)", "has a syntax error"),
        ("a,", "has a syntax error"),
        (", a", "has a syntax error"),
        ("a b", "has a syntax error"),
        ("a ( b", "has a syntax error"),
        ("a * b", "has a syntax error"),
        ('"ANY" 1 (a)', "has a syntax error"),
        ('ANY "1" (a)', "has a syntax error"),
        ("a, A", "lists a twice"),
        ('"a', "has a syntax error at '\"a'"),
        ('""', "has a syntax error at"),
        (5, "is not a list of standbys"),
    ],
)
def test_a_rule_that_nobody_understands_or_nothing_can_meet_is_refused_in_one_line(written: object, why: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_apply_rule(written)
    assert why in str(caught.value) and "\n" not in str(caught.value)


def test_the_option_names_the_place_in_which_a_rule_is_wrong() -> None:
    given = {"primary": "host=db1", "safekeepers": "1=sk1:1", "remote_apply_standbys": "ANY 3 (a, b)"}
    with pytest.raises(ConfigurationError, match=r"^remote_apply_standbys: 'ANY 3 \(a, b\)' can never be met"):
        load(ProxyConfig, ENVIRONMENT_PREFIX, command_line=given, environment={}, file=None)


@pytest.mark.parametrize(
    ("written", "applied_lsn"),
    [
        ("a", 10),
        ("a, b", 10),
        ("a, b, missing", 0),
        ("ANY 1 (a, b)", 20),
        ("ANY 2 (a, b, missing)", 10),
        ("ANY 1", 30),
        ("ANY 2 (*)", 20),
        ("ANY 3", 10),
        ("ANY 4", 0),
    ],
)
def test_the_rule_is_met_as_far_as_so_many_of_the_designated_have_replayed(written: str, applied_lsn: int) -> None:
    assert parse_apply_rule(written).applied_lsn({"a": 10, "b": 20, "other": 30}) == applied_lsn


def test_names_are_folded_as_postgresql_does_and_no_further() -> None:
    assert fold_name("Standby-A") == "standby-a"
    # The Kelvin sign is not the letter k, and an umlaut keeps its case.
    assert fold_name("\u212aÄ") == "\u212aÄ"
    assert parse_apply_rule("Tokyo").designates("TOKYO") and not parse_apply_rule("Tokyo").designates("tokyo2")
    assert parse_apply_rule("ANY 1").designates("whoever") and not parse_apply_rule("").designates("whoever")
