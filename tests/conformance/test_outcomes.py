"""What the suites print is read correctly, and an unlisted failure fails."""

import pytest

from safekeeper.base.errors import ConfigurationError
from tests.conformance.comparison import first_difference
from tests.conformance.outcomes import (
    EXPECTED_FAILURES,
    ExpectedFailure,
    Outcome,
    Verdict,
    expectation_of,
    judge,
    parse_expected_failures,
    regress_outcomes,
    scheduled_tests,
    tap_outcome,
)
from tests.conformance.sources import DEBIAN_SUITES, versions_in
from tests.conformance.tap import SUITES

SCHEDULE = """# comment
test: test_setup
# test: left_out
test: boolean char  # more
ignore: random
test: random stats
"""
OLD_OUTPUT = """(using postmaster on 127.0.0.1, port 5432)
============== running regression test queries        ==============
test test_setup                   ... ok          350 ms
parallel group (2 tests):  char boolean
     boolean                      ... ok           68 ms
     char                         ... FAILED       45 ms
test random                       ... failed (ignored)       40 ms
"""
NEW_OUTPUT = """# using postmaster on 127.0.0.1, port 5432
ok 1         - test_setup                                350 ms
# parallel group (2 tests):  char boolean
ok 2         + boolean                                    68 ms
not ok 3     + char                                       45 ms
ok 4         - random                                     40 ms
1..4
"""
TESTS = ["test_setup", "boolean", "char", "random", "stats"]


def test_a_schedule_lists_tests_in_order() -> None:
    assert scheduled_tests(SCHEDULE) == TESTS


@pytest.mark.parametrize("output", [OLD_OUTPUT, NEW_OUTPUT], ids=["15", "16"])
def test_results_of_pg_regress_are_read_and_a_test_without_one_has_failed(output: str) -> None:
    failures = {outcome.test: outcome.failure for outcome in regress_outcomes(output, TESTS)}
    assert failures == dict.fromkeys(TESTS, None) | {"char": "output differs", "stats": "no result"}


def test_the_first_failed_subtest_describes_the_failure_of_a_script() -> None:
    output = "ok 1 - a\nnot ok 2 - later # TODO known\nnot ok 3 - slot is active\nnot ok 4 - last\n1..4\n"
    assert tap_outcome("t.pl", output, 1) == Outcome("t.pl", "slot is active")
    assert tap_outcome("t.pl", output, None).failure == "slot is active"


def test_a_script_that_dies_is_described_by_the_error_in_its_log() -> None:
    log = "Waiting for x\ntimed out waiting for catchup at t.pl line 3.\n### Stopping node\n"
    assert tap_outcome("t.pl", "ok 1 - a\n", 29, log) == Outcome("t.pl", "timed out waiting for catchup")
    assert tap_outcome("t.pl", "ok 1 - a\nsyntax error at t.pl line 3.\n", 29).failure == "syntax error"
    assert tap_outcome("t.pl", "ok 1 - a\n", 29).failure == "exit code 29"
    assert tap_outcome("t.pl", "ok 1 - a\n", None, log).failure == "time limit"
    assert tap_outcome("t.pl", "ok 1 - a\nBail out!  pg_ctl stop failed\n", 255, log).failure == "pg_ctl stop failed"


def test_a_script_that_skips_everything_has_not_passed() -> None:
    outcome = tap_outcome("t.pl", "1..0 # SKIP Injection points not supported by this build\n", 0)
    assert outcome.skipped == "Injection points not supported by this build"
    assert judge(outcome, None) is Verdict.SKIPPED
    assert judge(tap_outcome("t.pl", "ok 1 - a\n1..1\n", 0), None) is Verdict.PASSED


def test_only_the_listed_failure_of_a_listed_test_is_expected() -> None:
    expected = [ExpectedFailure("recovery", frozenset({15, 17}), "t.pl", "slot", "slots are on safekeepers")]
    listed = expectation_of(expected, "recovery", 17, "t.pl")
    assert judge(Outcome("t.pl", "slot is active"), listed) is Verdict.LISTED
    assert judge(Outcome("t.pl", "rows differ"), listed) is Verdict.FAILED
    assert judge(Outcome("t.pl"), listed) is Verdict.UNEXPECTED_PASS
    for suite, major, test in (("pg_rewind", 17, "t.pl"), ("recovery", 18, "t.pl"), ("recovery", 17, "u.pl")):
        assert expectation_of(expected, suite, major, test) is None
    assert judge(Outcome("t.pl", "slot is active"), None) is Verdict.FAILED


def test_a_malformed_list_is_refused_with_its_line() -> None:
    good = "# comment\n\nrecovery | 15 17 | t.pl | slot | a reason\n"
    assert len(parse_expected_failures(good)) == 1
    for bad in (
        "recovery | 15 | t.pl | slot",
        "recovery | 15 | t.pl | slot | ",
        "recovery | all | t.pl | slot | reason",
    ):
        with pytest.raises(ConfigurationError, match="list:4: write suite"):
            parse_expected_failures(good + bad, "list")
    with pytest.raises(ConfigurationError, match=r"list:4: t\.pl of recovery is listed twice"):
        parse_expected_failures(good + "recovery | 17 18 | t.pl | other | reason", "list")


def test_the_list_names_suites_and_majors_that_are_run() -> None:
    for expected in parse_expected_failures(EXPECTED_FAILURES.read_text()):
        assert expected.suite in {"regress", *SUITES}, expected
        assert expected.majors <= set(DEBIAN_SUITES), expected


def test_the_newest_version_of_the_index_is_fetched_first() -> None:
    index = "Package: postgresql-13\nVersion: 13.16-0+deb11u1\n\nPackage: postgresql-13\nVersion: 13.23-0+deb11u4\n"
    assert versions_in(index) == ["13.23-0+deb11u4", "13.16-0+deb11u1"]


def test_the_first_line_that_differs_is_described() -> None:
    assert first_difference(["a", "b"], ["a", "b"]) is None
    assert first_difference(["a", "b"], ["a", "c"]) == "line 2: 'b' is expected, 'c' found"
    assert first_difference(["a", "b"], ["a"]) == "line 2: 'b' is expected, None found"
