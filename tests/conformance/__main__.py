"""Run PostgreSQL's own tests with safekeepers between: `python -m tests.conformance`, or `make conformance`.

The exit code is 1 if a test failed that tests/conformance/expected_failures.txt does not list, and 2 if the tests could
not be run.
"""

import argparse
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from safekeeper.base.errors import WalproxyError
from tests.conformance.outcomes import (
    EXPECTED_FAILURES,
    ExpectedFailure,
    Verdict,
    expectation_of,
    judge,
    parse_expected_failures,
)
from tests.conformance.regress import run_regress
from tests.conformance.sources import (
    DEBIAN_SUITES,
    MIRROR,
    Built,
    SourceUnavailable,
    build,
    missing_packages,
)
from tests.conformance.tap import SUITES, run_tap

FOLDER: Final = Path(__file__).parents[2] / "build" / "conformance"
_MAJORS_MIN: Final = 3
_ALL_SUITES: Final = ("regress", *SUITES)
# WalproxyShim.pm is made for PostgreSQL::Test::Cluster, which older versions have under another name and incomplete.
_OLDEST_WITH_TAP: Final = 15
_SHOWN: Final = (Verdict.FAILED, Verdict.UNEXPECTED_PASS)


def main() -> int:
    given = _parse()
    missing = missing_packages()
    if missing:
        print(f"packages are missing; on Debian: apt-get install {' '.join(missing)}", file=sys.stderr)
        return 2
    try:
        expected = parse_expected_failures(EXPECTED_FAILURES.read_text())
        builds = _builds(given)
        table: dict[tuple[str, int], Counter[Verdict]] = {}
        for built in builds:
            for suite in given.suite:
                if suite in SUITES and built.major < _OLDEST_WITH_TAP:
                    continue
                counts = table[suite, built.major] = Counter()
                for test, verdict, text in _run(built, suite, given, expected):
                    counts[verdict] += 1
                    if verdict in _SHOWN:
                        _report(f"{suite}, PostgreSQL {built.major}: {test}: {verdict.value}{text}")
    except WalproxyError as error:
        print(error, file=sys.stderr)
        return 2
    _print_table(table, {built.major: built.binaries.version for built in builds})
    return 1 if any(counts[Verdict.FAILED] for counts in table.values()) else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.conformance",
        description="Run PostgreSQL's core regression suite and TAP suites with safekeepers between.",
    )
    majors, suites = ",".join(map(str, DEBIAN_SUITES)), ",".join(_ALL_SUITES)
    parser.add_argument(
        "--majors", type=_numbers, help=f"major versions; by default those of {majors} whose source can be fetched"
    )
    parser.add_argument("--suite", type=_suites, default=list(_ALL_SUITES), help=f"suites; by default {suites}")
    parser.add_argument("--only", default="", metavar="TEXT", help="only the scripts of TAP whose name contains it")
    parser.add_argument("--keep", action="store_true", help="keep data and logs of suites without a failure, too")
    folder = Path(os.environ.get("WALPROXY_CONFORMANCE_FOLDER", FOLDER))
    parser.add_argument(
        "--folder",
        type=Path,
        default=folder,
        help="sources, builds and logs (build/conformance, or WALPROXY_CONFORMANCE_FOLDER)",
    )
    parser.add_argument("--mirror", default=MIRROR, metavar="URL", help=f"Debian mirror of the sources ({MIRROR})")
    parser.add_argument("--jobs", type=int, default=1, help="compilers at the same time (1)")
    parser.add_argument(
        "--timeout", type=int, default=180, metavar="SECONDS", help="limit of a single wait of a script (180)"
    )
    return parser.parse_args()


def _numbers(text: str) -> list[int]:
    majors = [int(word) for word in text.split(",")]
    if unknown := [str(major) for major in majors if major not in DEBIAN_SUITES]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: choose of {', '.join(map(str, DEBIAN_SUITES))}")
    return majors


def _suites(text: str) -> list[str]:
    if unknown := [word for word in text.split(",") if word not in _ALL_SUITES]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: choose of {', '.join(_ALL_SUITES)}")
    return text.split(",")


def _builds(given: argparse.Namespace) -> list[Built]:
    """Fetch and compile what is not there yet.

    Raises:
        SourceUnavailable: one that was asked for is not available, or by default fewer than three are.
    """
    builds = []
    for major in given.majors or DEBIAN_SUITES:
        _report(f"PostgreSQL {major}: source and build")
        try:
            builds.append(build(major, given.folder, mirror=given.mirror, jobs=given.jobs))
        except SourceUnavailable as error:
            if given.majors:
                raise
            _report(f"PostgreSQL {major} is left out: {error}")
    if not given.majors and len(builds) < _MAJORS_MIN:
        raise SourceUnavailable(f"only {len(builds)} major versions can be tested here, fewer than {_MAJORS_MIN}")
    return builds


def _run(
    built: Built, suite: str, given: argparse.Namespace, expected: list[ExpectedFailure]
) -> Iterator[tuple[str, Verdict, str]]:
    """Run a suite; yield (test, verdict, what is to be printed of it)."""
    parent = given.folder.absolute() / "runs"
    parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{suite}-{built.major}-", dir=parent))
    folder.chmod(0o755)
    label = f"{suite}, PostgreSQL {built.binaries.version}"
    _report(f"{label}: data and logs are in {folder}")

    def report(line: str) -> None:
        _report(f"{label}: {line}")

    if suite == "regress":
        outcomes = run_regress(built, folder, report)
    else:
        outcomes = run_tap(built, suite, folder, wait_timeout_s=given.timeout, only=given.only, report=report)
    failed = False
    for outcome in outcomes:
        expectation = expectation_of(expected, suite, built.major, outcome.test)
        verdict = judge(outcome, expectation)
        failed |= verdict is Verdict.FAILED
        yield outcome.test, verdict, f": {outcome.failure}" if outcome.failure else ""
    if not failed and not given.keep:
        shutil.rmtree(folder)


def _print_table(table: dict[tuple[str, int], Counter[Verdict]], versions: dict[int, str]) -> None:
    print(f"\n{'suite':<14} {'PostgreSQL':<11}" + "".join(f"{verdict.value:>20}" for verdict in Verdict))
    for (suite, major), counts in table.items():
        print(f"{suite:<14} {versions[major]:<11}" + "".join(f"{counts[verdict]:>20}" for verdict in Verdict))


def _report(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
