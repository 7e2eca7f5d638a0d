"""What the suites print, as outcomes, and the comparison with the list of expected failures.

A test of the core suite is a file of SQL; a test of a TAP suite is a script. A line of the list names the failure as
well as the test: a listed test that fails in another place has failed.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from safekeeper.base.errors import ConfigurationError

EXPECTED_FAILURES: Final = Path(__file__).with_name("expected_failures.txt")
# "test boolean  ... ok  12 ms" or "     boolean  ... FAILED  12 ms" up to 15, lines of TAP from 16 on.
_OLD_RESULT: Final = re.compile(r"^(?:test|    ) +(\S+) +\.\.\. (ok|FAILED|failed \(ignored\))")
_NEW_RESULT: Final = re.compile(r"^(ok|not ok) \d+ +[-+] (\S+) +\d+ ms")
_NOT_OK: Final = re.compile(r"^not ok \d+ - (.*)$")
_BAILED_OUT: Final = re.compile(r"^Bail out! +(.*)$", re.MULTILINE)
_DIED: Final = re.compile(r"^(.+) at \S+ line \d+\.?$", re.MULTILINE)
_SKIPPED_ALL: Final = re.compile(r"^1\.\.0 # SKIP ?(.*)$", re.MULTILINE)


class Verdict(Enum):
    """How an outcome compares with the list."""

    PASSED = "passed"
    SKIPPED = "skipped"  # by the suite itself
    LISTED = "failed as listed"
    FAILED = "FAILED"
    UNEXPECTED_PASS = "passed, but listed"


@dataclass(frozen=True)
class Outcome:
    """What became of one test: `failure` describes its first failure, None if it passed or was skipped."""

    test: str
    failure: str | None = None
    skipped: str | None = None


@dataclass(frozen=True)
class ExpectedFailure:
    """A line of the list: the text that the first failure contains, and why the suite's assumption does not hold."""

    suite: str
    majors: frozenset[int]
    test: str
    symptom: str
    reason: str


def parse_expected_failures(text: str, source: str = EXPECTED_FAILURES.name) -> list[ExpectedFailure]:
    """Return the lines of a list, "suite | majors | test | first failure contains | reason".

    Raises:
        ConfigurationError: a line has another form, or the list has two for one test and major.
    """
    found: list[ExpectedFailure] = []
    taken: set[tuple[str, int, str]] = set()
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = [field.strip() for field in line.split("|")]
        if len(fields) != 5 or not all(fields) or not all(major.isdecimal() for major in fields[1].split()):
            raise ConfigurationError(
                f"{source}:{number}: write suite | majors | test | first failure contains | reason"
            )
        expected = ExpectedFailure(fields[0], frozenset(map(int, fields[1].split())), *fields[2:])
        keys = {(expected.suite, major, expected.test) for major in expected.majors}
        if keys & taken:
            raise ConfigurationError(f"{source}:{number}: {expected.test} of {expected.suite} is listed twice")
        taken |= keys
        found.append(expected)
    return found


def expectation_of(expected: Iterable[ExpectedFailure], suite: str, major: int, test: str) -> ExpectedFailure | None:
    """Return the line of the list about a test, None if it has to pass."""
    return next((each for each in expected if (each.suite, each.test) == (suite, test) and major in each.majors), None)


def judge(outcome: Outcome, expectation: ExpectedFailure | None) -> Verdict:
    """Compare an outcome with the line of the list about it."""
    if outcome.failure is None:
        if outcome.skipped is not None:
            return Verdict.SKIPPED
        return Verdict.PASSED if expectation is None else Verdict.UNEXPECTED_PASS
    if expectation is not None and expectation.symptom in outcome.failure:
        return Verdict.LISTED
    return Verdict.FAILED


def scheduled_tests(schedule: str) -> list[str]:
    """Return the tests of a schedule of pg_regress in their order."""
    lines = (line.partition("#")[0] for line in schedule.splitlines())
    return [test for line in lines if line.startswith("test:") for test in line.removeprefix("test:").split()]


def regress_outcomes(output: str, tests: Iterable[str]) -> Iterator[Outcome]:
    """Yield an outcome for each of `tests` from what pg_regress printed; a test that is not in it has failed."""
    results: dict[str, bool] = {}
    for line in output.splitlines():
        if match := _OLD_RESULT.match(line):
            results[match[1]] = match[2] != "FAILED"
        elif match := _NEW_RESULT.match(line):
            results[match[2]] = match[1] == "ok"
    for test in tests:
        if test not in results:
            yield Outcome(test, "no result")
        else:
            yield Outcome(test, None if results[test] else "output differs")


def first_failure(output: str) -> str | None:
    """Return the description of the first subtest that failed in what a script has printed so far, None if none has."""
    for line in output.splitlines():
        match = _NOT_OK.match(line)
        if match and "# TODO" not in line:
            return match[1]
    return None


def tap_outcome(test: str, output: str, exit_code: int | None, log: str = "") -> Outcome:
    """Return what became of a script that printed `output`; exit code None: it was ended after its time limit.

    The failure is the description of the first subtest that failed, otherwise the last error of Perl.

    Args:
        log: to which PostgreSQL::Test::Utils redirects what a script prints to standard error.
    """
    skipped = _SKIPPED_ALL.search(output)
    if exit_code == 0:
        return Outcome(test, skipped=(skipped[1] or "no reason") if skipped else None)
    failure = first_failure(output)
    if failure is not None:
        return Outcome(test, failure)
    if exit_code is None:
        return Outcome(test, "time limit")
    if bailed_out := _BAILED_OUT.search(output):
        return Outcome(test, bailed_out[1])
    died = _DIED.findall(log) or _DIED.findall(output)
    return Outcome(test, died[-1].strip() if died else f"exit code {exit_code}")
