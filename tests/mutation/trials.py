"""Try mutations: run the tests that execute the mutated statement until one fails."""

import json
import signal
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from tests.mutation.children import Ended, Send, limit_cpu, run_all
from tests.mutation.edits import Mutation
from tests.mutation.install import install
from tests.mutation.reach import Reach
from tests.mutation.suites import Suite, run_caught
from tests.mutation.targets import mutated

SURVIVED = "nothing"
# Which test of which suite has detected a mutation before, by its id without the digest of the function.
Detected = Mapping[str, tuple[str, str]]
# One test may exceed the limit of its suite: it is a loop only if it takes this much longer.
GRACE_S = 20.0
# A child that one of these has ended was ended from outside: that is not the result of a test.
FROM_OUTSIDE = {-signal.SIGHUP, -signal.SIGINT, -signal.SIGKILL, -signal.SIGTERM}
# All tests of a trial together wait less without a mutation.
WAITS_S_MAX = 120.0


class TrialFailed(Exception):
    """A trial has ended without a result: a defect of this package."""


@dataclass(frozen=True)
class Limits:
    """How much a suite may take for one mutation: CPU seconds, and tests."""

    cpu_s: float
    tests: int


@dataclass(frozen=True)
class Verdict:
    """The result of a trial.

    Attributes:
        id: of the mutation.
        killed_by: the suite, or `SURVIVED`.
        timed_out: whether the test did not fail, but was ended by a limit: CPU time, or a wait.
        test: the test that has failed, or in which the time ended.
        why: its first words.
        ran: by suite, the number of tests that were run.
        cpu_s: of the whole trial.
    """

    id: str
    killed_by: str
    timed_out: bool
    test: str
    why: str
    ran: dict[str, int]
    cpu_s: float

    @property
    def survived(self) -> bool:
        """Whether no test has detected the mutation."""
        return self.killed_by == SURVIVED


def try_all(
    mutations: Iterable[Mutation],
    suites: Sequence[Suite],
    reach: Reach,
    limits: dict[str, Limits],
    processes: int,
    before: Detected | None = None,
) -> Iterator[Verdict]:
    """Try mutations, at most `processes` at once; yield a verdict for each.

    Args:
        before: tests to begin their suite with: most mutations are detected by the same one again.
    """
    jobs = ((each.id, partial(_trial, each, suites, reach, limits, before or {})) for each in mutations)
    for ended in run_all(jobs, processes, WAITS_S_MAX):
        yield _verdict(ended)


def _trial(
    mutation: Mutation,
    suites: Sequence[Suite],
    reach: Reach,
    limits: dict[str, Limits],
    before: Detected,
    send: Send,
) -> None:
    """Run the tests in this process, which is a child; report each test before it begins."""
    install(*mutated(mutation.id))
    ran = {suite.name: 0 for suite in suites}
    place = f"{mutation.module}:{mutation.line}"
    first = before.get(without_digest(mutation.id))
    for suite in suites:
        reached = nearest_first(reach[suite.name].get(place, []), mutation.module)
        tests = sorted(reached, key=lambda test: (suite.name, test) != first)
        limit = limits[suite.name]
        ends_at_s = time.process_time() + limit.cpu_s
        limit_cpu(limit.cpu_s + GRACE_S)
        for test in tests[: limit.tests]:
            if time.process_time() > ends_at_s:
                break
            send({"suite": suite.name, "test": test, "ran": ran, "cpu_s": time.process_time()})
            why = run_caught(suite, test)
            ran[suite.name] += 1
            if why:
                send({"killed_by": suite.name, "test": test, "why": why, "ran": ran, "cpu_s": time.process_time()})
                return
    send({"killed_by": SURVIVED, "test": "", "why": "", "ran": ran, "cpu_s": time.process_time()})


def nearest_first(tests: Sequence[str], module: str) -> list[str]:
    """Return unit tests with those of the module first, then those of its package; other tests in their order.

    The time of a trial may end before all tests have run that execute, for example, the opening of a data folder.
    """
    package, _, name = module.rpartition(".")
    folder = f"/{package.rpartition('.')[2]}/"
    return sorted(tests, key=lambda test: (f"test_{name}" not in test, folder not in test))


def without_digest(mutation_id: str) -> str:
    """Return what an id is in other versions of its function, too."""
    return mutation_id.split("@")[0]


def detected_before(paths: Iterable[Path]) -> Detected:
    """Return which tests have detected mutations in earlier runs, of this or other versions of the source."""
    verdicts = (verdict for path in paths for verdict in read(path).values())
    return {without_digest(v.id): (v.killed_by, v.test) for v in verdicts if not (v.survived or v.timed_out)}


def _verdict(ended: Ended) -> Verdict:
    last = ended.reports[-1] if ended.reports else {}
    if "killed_by" not in last and "suite" not in last:
        raise TrialFailed(f"{ended.label}: {last.get('error', f'the child has ended with {ended.status}')}")
    if ended.status in FROM_OUTSIDE and not ended.hung:
        raise TrialFailed(f"{ended.label}: signal {-ended.status} has ended the child: run this again")
    # A test that ends the process, by a limit or otherwise, has detected the mutation.
    why = "a time limit" if ended.timed_out else f"the process has ended with {ended.status}"
    return Verdict(
        ended.label,
        last.get("killed_by", last.get("suite")),
        ended.timed_out,
        last["test"],
        last.get("why", why),
        last["ran"],
        round(last["cpu_s"], 2),
    )


def read(path: Path) -> dict[str, Verdict]:
    """Return the verdicts of an earlier run, by the id of the mutation; remove a last line that is not complete."""
    if not path.exists():
        return {}
    text = path.read_text()
    complete = text[: text.rfind("\n") + 1]
    if complete != text:
        path.write_text(complete)
    verdicts = [Verdict(**json.loads(line)) for line in complete.splitlines()]
    return {verdict.id: verdict for verdict in verdicts}


def write(path: Path, verdict: Verdict) -> None:
    """Append a verdict to the results."""
    with path.open("a") as file:
        file.write(json.dumps(asdict(verdict)) + "\n")
