"""Command line of the mutation tests: `python -m tests.mutation --sample 40 --seed 7`."""

import argparse
import hashlib
import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.mutation import trials
from tests.mutation.edits import KINDS, Mutation
from tests.mutation.reach import FAILED, SuiteFails, measured
from tests.mutation.scores import table
from tests.mutation.suites import Scenarios, Seeds, Suite, Units
from tests.mutation.targets import MODULES, ROOT, all_mutations, import_all, unit_folders
from tests.mutation.trials import Limits, TrialFailed, Verdict

OTHER_TESTS = ("conformance", "e2e", "fuzz", "integration", "pipeline", "torture")
FOLDER = ROOT / "build" / "mutation"
# No verdict depends on these: neither the mutated packages nor their unit tests nor the simulator import them.
ELSEWHERE = (
    "walproxy/cli/",
    "walproxy/pipeline/",
    "walproxy/wal_sources/",
    *(f"tests/{name}/" for name in OTHER_TESTS),
)
PLAIN_EVERY = 20
SAMPLE = 200
EXIT_FAILED = 2


def main(arguments: list[str] | None = None) -> int:
    """Try the mutations that were asked for; return the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    selected = _selected(options, parser)
    if options.list:
        print(*selected, sep="\n")
        print(f"{len(selected)} mutations of {len({each.module for each in selected})} modules")
        return 0
    chosen = _sample(selected, options.sample, options.seed)
    import_all()

    def run(units: Units) -> int:
        every: tuple[Suite, ...] = (Seeds(options.first, options.seeds), units, Scenarios())
        suites = [suite for suite in every if not options.suite or suite.name in options.suite]
        print(table(_try(chosen, suites, options)))
        return 0

    try:
        return with_units(unit_folders(chosen), run)
    except (SuiteFails, TrialFailed) as error:
        print(f"could not try the mutations: {error}", file=sys.stderr)
        return EXIT_FAILED


def _parser() -> argparse.ArgumentParser:
    kinds = "; ".join(f"{kind}: {text}" for kind, text in KINDS.items())
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutation",
        description=__doc__,
        epilog=f"Kinds of mutations: {kinds}. Exit code 2: a test fails without any mutation.",
    )
    parser.add_argument(
        "--sample",
        type=_positive,
        default=SAMPLE,
        metavar="COUNT",
        help="try so many, chosen at random (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the sample (default: %(default)s)")
    parser.add_argument(
        "--only", action="append", default=[], metavar="MODULE", help="try those of modules whose names begin like this"
    )
    parser.add_argument("--id", action="append", default=[], help="try this one; may be repeated")
    parser.add_argument(
        "--suite",
        action="append",
        default=[],
        choices=(Seeds.name, Units.name, Scenarios.name),
        help="try them against these tests only; may be repeated (default: all three)",
    )
    parser.add_argument("--list", action="store_true", help="list the mutations, and try none")
    parser.add_argument(
        "--processes",
        type=_positive,
        default=os.cpu_count(),
        metavar="COUNT",
        help="how many to try at once (default: one on each core)",
    )
    parser.add_argument("--first", type=int, default=0, help="the first seed of the simulator (default: %(default)s)")
    parser.add_argument(
        "--seeds", type=_positive, default=400, help="how many seeds there are to choose from (default: %(default)s)"
    )
    parser.add_argument(
        "--seeds-each",
        type=_positive,
        default=60,
        metavar="COUNT",
        help="how many seeds one mutation is tried with, of those that execute it (default: %(default)s)",
    )
    parser.add_argument(
        "--cpu-s",
        type=float,
        default=20.0,
        metavar="SECONDS",
        help="CPU time of a suite for one mutation (default: %(default)g)",
    )
    parser.add_argument("--again", action="store_true", help="ignore results of an earlier run on the same source")
    return parser


def _selected(options: argparse.Namespace, parser: argparse.ArgumentParser) -> list[Mutation]:
    """Return the mutations that the sample is drawn from."""
    everything = list(all_mutations())
    for prefix in options.only:
        if not any(module.startswith(prefix) for module in MODULES):
            parser.error(f"--only {prefix}: no mutated module has a name that begins like this")
    unknown = set(options.id) - {each.id for each in everything}
    if unknown:
        parser.error(f"--id {min(unknown)}: the present source has no such mutation (--list lists them)")
    return [
        each
        for each in everything
        if (not options.only or each.module.startswith(tuple(options.only)))
        and (not options.id or each.id in options.id)
    ]


def _sample(mutations: list[Mutation], count: int, seed: int) -> list[Mutation]:
    """Return `count` of the mutations, in their order; all of them if there are fewer."""
    numbers = random.Random(seed).sample(range(len(mutations)), min(count, len(mutations)))
    return [mutations[number] for number in sorted(numbers)]


def _try(
    chosen: list[Mutation],
    suites: Sequence[Suite],
    options: argparse.Namespace,
) -> list[tuple[Mutation, Verdict]]:
    """Try the mutations that have no result yet; return all of them with their verdicts."""
    limits = {suite.name: Limits(options.cpu_s, len(suite.tests)) for suite in suites}
    limits["simulator"] = Limits(options.cpu_s, options.seeds_each)
    FOLDER.mkdir(parents=True, exist_ok=True)
    source = _digest()
    print(f"{len(chosen)} mutations; seeds {options.first}..{options.first + options.seeds - 1}", flush=True)
    names = "-".join(f"{suite.name}-{len(suite.tests)}" for suite in suites)
    tests = f"{source}-{options.first}-{names}"
    reach = measured(FOLDER / f"reach-{tests}.json", suites)
    for test, (why,) in reach[FAILED].items():
        print(f"not used, because it fails without any mutation: {test}: {why}")
    results = FOLDER / f"results-{tests}-{options.seeds_each}-{options.cpu_s:g}.jsonl"
    if options.again:
        results.unlink(missing_ok=True)
    verdicts = trials.read(results)
    ids = {mutation.id: mutation for mutation in chosen}
    todo = [mutation for mutation in chosen if mutation.id not in verdicts]
    if len(todo) < len(chosen):
        print(f"{len(chosen) - len(todo)} have a result in {results.relative_to(ROOT)}")
    before = trials.detected_before(sorted(FOLDER.glob("results-*.jsonl"), key=lambda path: path.stat().st_mtime))
    trying = trials.try_all(todo, suites, reach, limits, options.processes, before)
    for verdict in _with_progress(trying, len(todo)):
        trials.write(results, verdict)
        verdicts[verdict.id] = verdict
        if verdict.survived:
            unseen = "" if any(verdict.ran.values()) else ", which no test executes"
            print(f"survived: {ids[verdict.id]}{unseen}", flush=True)
    return [(mutation, verdicts[mutation.id]) for mutation in chosen]


def _with_progress(verdicts: Iterator[Verdict], count: int) -> Iterator[Verdict]:
    """Pass verdicts on, with a bar in a terminal and a line now and then elsewhere."""
    console = Console()
    if not console.is_terminal:
        for number, verdict in enumerate(verdicts, 1):
            yield verdict
            if number % PLAIN_EVERY == 0 or number == count:
                print(f"{number} of {count}", flush=True)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("mutations", total=count)
        for verdict in verdicts:
            yield verdict
            progress.advance(bar)


class _Host:
    """A plugin of pytest that uses the collected tests in its own way instead of running each once."""

    def __init__(self, run: Callable[[Units], int]) -> None:
        self._run = run
        self.exit_code = EXIT_FAILED
        self.error: BaseException | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Replace the loop over the tests (a hook of pytest)."""
        try:
            if session.testsfailed:
                raise SuiteFails("pytest could not collect the unit tests: run them to see why")
            self.exit_code = self._run(Units(session))
        except (Exception, KeyboardInterrupt) as error:
            self.error = error
        return True


def with_units(folders: Sequence[str], run: Callable[[Units], int]) -> int:
    """Let pytest collect the unit tests, call `run` with them, and return its exit code."""
    host = _Host(run)
    # The examples that fail with a mutation are not repeated in the developer's own runs.
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(FOLDER / "hypothesis")
    quiet = ["-q", "-s", "--no-header", "--no-summary", "-p", "no:cacheprovider"]
    # Objects that are collected while a test runs may be of this process, or of another test.
    quiet += ["-p", "no:unraisableexception"]
    pytest.main([*quiet, "--rootdir", str(ROOT), *(str(ROOT / folder) for folder in folders)], plugins=[host])
    if host.error is not None:
        raise host.error
    return host.exit_code


def _digest() -> str:
    """Return a digest of everything that a verdict depends on."""
    digest = hashlib.sha256(sys.version.encode())
    own = Path(__file__).parent
    tested = tuple(f"{folder}/" for folder in unit_folders(all_mutations()))
    for folder in ("safekeeper", "walproxy", "tests"):
        for path in sorted((ROOT / folder).rglob("*")):
            name = path.relative_to(ROOT).as_posix()
            is_of_other_unit = name.count("/") > 2 and name.startswith("tests/unit/") and not name.startswith(tested)
            if path.suffix not in (".py", ".txt") or name.startswith(ELSEWHERE) or is_of_other_unit:
                continue
            if path.parent != own or path.name in ("edits.py", "names.py"):
                digest.update(name.encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


if __name__ == "__main__":
    sys.exit(main())
