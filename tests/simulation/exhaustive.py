"""Every interleaving of a small world, of the real state machines: `python -m tests.simulation.exhaustive --terms 2`.

Theory of operation. A breadth-first search. A state is three safekeepers, the runs of the proposers, the messages
between them (a queue for each connection and direction) and the truth so far: who won which term, what was committed.
A step delivers the first message of any queue, lets a flush return, a run start, a primary write, a safekeeper die. Who
is in a state that was seen before has nothing new ahead. The invariants are checked in every state; the first one in
which one does not hold is reached by a shortest path, which is printed.

What is small about this world is written in exhaustive_world.py, and how big it is, the options say.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NamedTuple

from safekeeper.base.lsn import Lsn
from safekeeper.consensus.control_state import NOBODY, LeaderId
from safekeeper.consensus.term_history import TermHistory, cut_history
from tests.simulation.bugs import BUGS, planted, swapped
from tests.simulation.exhaustive_world import (
    BASE_LSN,
    ENDED,
    NOTHING,
    OPERATOR,
    SLOW_FLUSH,
    SWAPS,
    Machines,
    Moved,
    entry,
    letter,
)
from tests.simulation.violation import Violation

TELL_EVERY_S = 2.0
_UNBORN = -1


class Truth(NamedTuple):
    """What has happened: (term, run, history) of each term won; the committed log as the term of each record.

    `committed_in` is the term in which each of them was first counted as committed.
    """

    won: tuple[tuple[int, int, TermHistory], ...] = ()
    committed: tuple[int, ...] = ()
    committed_in: tuple[int, ...] = ()


class State(NamedTuple):
    """All of the world. Queues are by run * width + safekeeper, None once their connection is closed."""

    nodes: tuple[int, ...]
    runners: tuple[int, ...]
    requests: tuple[tuple[int, ...] | None, ...]
    answers: tuple[tuple[int, ...] | None, ...]
    truth: Truth
    crashes: int


@dataclass(frozen=True)
class Bounds:
    """How big the world is.

    Attributes:
        terms: how many runs campaign, one term each.
        records: how many records the log may have, besides the one that all begin with if `figure_8`.
        crashes: how often any safekeeper may die.
        figure_8: begin where two terms have left different logs behind a record that all have: the first one wrote two
            more on safekeeper 1, the second one more on safekeeper 2.
        prompt_answers: answers arrive before anything else happens: far fewer states.
        prompt_flushes: flushes return before anything else happens.
        change: there are two safekeepers; the first one is the only member, and whoever leads is asked to replace it by
            the second one.
    """

    terms: int = 2
    records: int = 2
    crashes: int = 0
    figure_8: bool = False
    prompt_answers: bool = False
    prompt_flushes: bool = False
    change: bool = False


@dataclass
class Found:
    """What a search has come to: `violation` is None if all held, then the path is empty."""

    states: int
    transitions: int
    depth: int
    seconds: float
    violation: Violation | None
    path: list[str]


class Search:
    """One search."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.before = 2 if bounds.figure_8 else 0
        self.machines = Machines(bounds.terms + self.before, bounds.records + bounds.figure_8, bounds.change)
        self.width = len(self.machines.safekeepers)
        # With a single member, before the change and after it, a record is committed on one disk.
        self.holders = 1 if bounds.change else 2
        self.transitions = 0
        self._holding: set[tuple[tuple[int, ...], Truth]] = set()

    def beginning(self) -> State:
        """Return the first state."""
        runs = self.bounds.terms + self.before
        logs: tuple[tuple[LeaderId, TermHistory, bytes], ...] = ((NOBODY, (), b""),) * self.width
        truth = Truth()
        if self.before:
            first, second = (LeaderId(run + 1, letter(run).decode() * 32) for run in range(2))
            old, new = (entry(1, 0),), (entry(1, 0), entry(2, 1))
            zero = letter(0)
            logs = ((first, old, zero + 2 * letter(0)), (second, new, zero + letter(1)), (second, old, zero))
            truth = Truth(((1, 0, old), (2, 1, new)), (1,), (1,))
        nodes = tuple(self.machines.new_node(i, *log) for i, log in zip(self.machines.safekeepers, logs, strict=True))
        empty: tuple[tuple[int, ...], ...] = ((),) * (runs * self.width)
        runners = (ENDED,) * self.before + (_UNBORN,) * self.bounds.terms
        return State(nodes, runners, empty, empty, truth, self.bounds.crashes)

    def run(self, tell: Callable[[int, int], None] = lambda depth, states: None) -> Found:
        """Look at everything that can be reached; stop at the first violation. `tell` hears of every depth."""
        began_at = time.monotonic()
        first = self.beginning()
        came_from: dict[State, State | None] = {first: None}
        layer, depth = [first], 0
        while layer:
            following: list[State] = []
            for state in layer:
                try:
                    for _, after in self.steps(state):
                        self.transitions += 1
                        if after not in came_from:
                            came_from[after] = state
                            following.append(after)
                except Violation as violation:
                    path = [*self._path(came_from, state), f"(next) {violation}"]
                    return Found(
                        len(came_from), self.transitions, depth + 1, time.monotonic() - began_at, violation, path
                    )
            layer = following
            depth += bool(layer)
            tell(depth, len(came_from))
        return Found(len(came_from), self.transitions, depth, time.monotonic() - began_at, None, [])

    def _path(self, came_from: dict[State, State | None], state: State) -> list[str]:
        """Return the steps that led to a state. They are not kept with millions of states, but taken once more."""
        path: list[str] = []
        while (before := came_from[state]) is not None:
            path.append(next(what for what, after in self.steps(before) if after == state))
            state = before
        return path[::-1]

    # ------------------------------------------------------------------ steps

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield every step that is possible, and where it leads.

        Raises:
            Violation: an invariant does not hold there.
        """
        flushed = list(self._flushed(state))
        if flushed and self.bounds.prompt_flushes and not self.bounds.prompt_answers:
            # That it may take its time, or return behind an answer, is looked at where answers are prompt.
            yield flushed[0]
            return
        answered = list(self._answered(state))
        yield from answered
        yield from flushed
        if (answered and self.bounds.prompt_answers) or (flushed and self.bounds.prompt_flushes):
            return
        for queue, waiting in enumerate(state.requests):
            if waiting:
                run, index = divmod(queue, self.width)
                yield from self._delivered(state, queue, run, index, waiting)
        if state.crashes:
            for index, node in enumerate(state.nodes):
                for keeps in (False, True) if self.machines.nodes[node].unflushed else (False,):
                    yield f"S{index + 1} dies", self._died(state, index, self.machines.crashed(node, keeps))
        yield from self._runs(state)

    def _answered(self, state: State) -> Iterator[tuple[str, State]]:
        machines = self.machines
        for queue, waiting in enumerate(state.answers):
            run, index = divmod(queue, self.width)
            if waiting and state.runners[run] > ENDED:
                nodes, runners, requests, answers, truth, crashes = state
                rest = State(nodes, runners, requests, _put(answers, queue, waiting[1:]), truth, crashes)
                moved = machines.tell(state.runners[run], index + 1, waiting[0])
                yield (
                    f"P{run + 1} gets from S{index + 1}: {machines.words(waiting[0])}",
                    self._runner_moved(rest, run, moved),
                )

    def _flushed(self, state: State) -> Iterator[tuple[str, State]]:
        machines = self.machines
        for index, node in enumerate(state.nodes):
            if machines.nodes[node].unflushed:
                moved_node = machines.hear(node, 0, NOTHING)
                assert moved_node is not None  # it does not die
                yield f"S{index + 1}'s flush returns", self._node_moved(state, index, moved_node)
                moved_node = machines.hear(node, SLOW_FLUSH, NOTHING)
                assert moved_node is not None  # it does not die
                yield f"S{index + 1}'s flush takes its time", self._node_moved(state, index, moved_node)

    def _delivered(
        self, state: State, queue: int, run: int, index: int, waiting: tuple[int, ...]
    ) -> Iterator[tuple[str, State]]:
        """The first message of a queue arrives; the safekeeper may die behind any effect of it."""
        machines, node = self.machines, state.nodes[index]
        what = f"S{index + 1} gets from P{run + 1}: {machines.words(waiting[0])}"
        nodes, runners, requests, answers, truth, crashes = state
        rest = State(nodes, runners, _put(requests, queue, waiting[1:]), answers, truth, crashes)
        moved = machines.hear(node, run, waiting[0])
        assert moved is not None  # it does not die
        yield what, self._node_moved(rest, index, moved)
        effect = 0
        while state.crashes and (dead := machines.hear(node, run, waiting[0], effect)) is not None:
            said = self._node_moved(rest, index, dead)
            yield f"{what}, and dies behind effect {effect + 1}", self._died(said, index, dead.number)
            effect += 1

    def _runs(self, state: State) -> Iterator[tuple[str, State]]:
        machines = self.machines
        for run, number in enumerate(state.runners):
            if number == _UNBORN:
                moved, nodes = machines.start(run, state.nodes)
                yield f"P{run + 1} starts", self._runner_moved(state._replace(nodes=nodes), run, moved)
                # The next one is its like.
                return
            runner = machines.runners[number]
            if runner.leader_id is not None and runner.received_lsn < machines.end_lsn:
                moved = machines.tell(number, 0, NOTHING)
                yield f"P{run + 1}'s primary writes a record", self._runner_moved(state, run, moved)
            if runner.leader_id is not None and self.bounds.change:
                moved = machines.tell(number, OPERATOR, NOTHING)
                if moved.number != number:
                    yield f"P{run + 1} goes on with the change", self._runner_moved(state, run, moved)

    def _node_moved(self, state: State, index: int, moved: Moved) -> State:
        """Put a safekeeper's step into effect."""
        nodes, runners, requests, answers, truth, crashes = state
        for run, message in moved.said:
            at = run * self.width + index
            queue = answers[at]
            if queue is not None and runners[run] != ENDED:
                answers = _put(answers, at, (*queue, message))
        for run in moved.parted:
            at = run * self.width + index
            queue = answers[at]
            requests = _put(requests, at, None)
            if queue is not None and runners[run] != ENDED:
                answers = _put(answers, at, (*queue, NOTHING))
        after = State(_put(nodes, index, moved.number), runners, requests, answers, truth, crashes)
        if moved.number != state.nodes[index]:
            self._check_logs(after)
        return after

    def _runner_moved(self, state: State, run: int, moved: Moved) -> State:
        """Put a run's step into effect."""
        nodes, runners, requests, answers, truth, crashes = state
        for safekeeper_id, message in moved.said:
            at = run * self.width + safekeeper_id - 1
            queue = requests[at]
            if queue is not None:
                requests = _put(requests, at, (*queue, message))
        for safekeeper_id in moved.parted:
            at = run * self.width + safekeeper_id - 1
            requests, answers = _put(requests, at, None), _put(answers, at, None)
            hung_up = self.machines.hang_up(nodes[safekeeper_id - 1], run)
            nodes = _put(nodes, safekeeper_id - 1, hung_up)
        if moved.number == ENDED:
            answers = (*answers[: run * self.width], *(None,) * self.width, *answers[(run + 1) * self.width :])
        after = State(nodes, _put(runners, run, moved.number), requests, answers, truth, crashes)
        known = self._truth(after, run)
        return after if known is truth else after._replace(truth=known)

    def _died(self, state: State, index: int, number: int) -> State:
        """A safekeeper has died: what was on its way to it is lost, what it had said arrives, and then the end."""
        requests, answers = list(state.requests), list(state.answers)
        for run, runner in enumerate(state.runners):
            queue = answers[run * self.width + index]
            if runner != _UNBORN:
                requests[run * self.width + index] = None
                if runner != ENDED and queue is not None and queue[-1:] != (NOTHING,):
                    answers[run * self.width + index] = (*queue, NOTHING)
        nodes = _put(state.nodes, index, number)
        after = state._replace(nodes=nodes, requests=tuple(requests), answers=tuple(answers), crashes=state.crashes - 1)
        self._check_logs(after)
        return after

    # ------------------------------------------------------------------ invariants

    def _truth(self, state: State, run: int) -> Truth:
        """Return what is known after a run's step: it may have won a term, or committed something."""
        truth = state.truth
        runner = self.machines.runners[state.runners[run]]
        if runner.leader_id is None:
            return truth
        term, history = runner.leader_id.term, runner.history
        known = next((won for won in truth.won if won[0] == term), None)
        if known is None:
            truth = truth._replace(won=tuple(sorted((*truth.won, (term, run, history)))))
            self._check_complete(truth)
        elif known[1:] != (run, history):
            raise Violation("ElectionSafety", f"term {term} is won by P{known[1] + 1} and by P{run + 1}")
        if runner.commit_lsn > BASE_LSN:
            log = terms_of(history, runner.commit_lsn)
            shared = min(len(log), len(truth.committed))
            if log[:shared] != truth.committed[:shared]:
                raise Violation("CommittedNotOverwritten", f"P{run + 1} commits {log}, {truth.committed} was committed")
            if len(log) > shared:
                committed_in = (*truth.committed_in, *[term] * (len(log) - shared))
                truth = truth._replace(committed=log, committed_in=committed_in)
                self._check_complete(truth)
                self._check_logs(state._replace(truth=truth))
        return truth

    def _check_complete(self, truth: Truth) -> None:
        """Whoever won a term has on its log what was committed in earlier ones (LeaderCompleteness)."""
        for term, run, history in truth.won:
            count = max((i + 1 for i, earlier in enumerate(truth.committed_in) if earlier < term), default=0)
            log = terms_of(history, history[-1].start_lsn)[:count]
            if log != truth.committed[:count]:
                raise Violation("LeaderCompleteness", f"P{run + 1} leads term {term} on {log}: {truth} is committed")

    def _check_logs(self, state: State) -> None:
        """Every log is what its history says (LogMatching); a quorum holds what is committed."""
        looked_at = (state.nodes, state.truth)
        if looked_at in self._holding:
            return
        writers = {term: letter(run) for term, run, _ in state.truth.won}
        committed, holders = state.truth.committed, 0
        for index, number in enumerate(state.nodes):
            node = self.machines.nodes[number]
            if node.control.truncate_to is not None or node.control.base_lsn is not None:
                continue
            log = terms_of(node.control.history, BASE_LSN + len(node.wal))
            if node.wal != b"".join(writers.get(term, b"?") for term in log):
                raise Violation("LogMatching", f"S{index + 1} holds {node.wal!r} under {log} of {writers}")
            holders += log[: len(committed)] == committed
            known = max(node.commit_lsn - BASE_LSN, 0)
            if log[:known] != committed[:known]:
                raise Violation("CommittedNotOverwritten", f"S{index + 1} believes {log[:known]} to be committed")
        if holders < self.holders:
            raise Violation("CommittedNotOverwritten", f"{committed} is on {holders} disks only")
        self._holding.add(looked_at)


def terms_of(history: TermHistory, end_lsn: Lsn) -> tuple[int, ...]:
    """Return the term of every record of a log."""
    return tuple(cut_history(history, lsn)[-1].term for lsn in range(BASE_LSN, end_lsn)) if history else ()


def _put(items: tuple, index: int, item: object) -> tuple:  # type: ignore[type-arg]
    return (*items[:index], item, *items[index + 1 :])


def search(
    bounds: Bounds, bug: str | None = None, tell: Callable[[int, int], None] = lambda depth, states: None
) -> Found:
    """Look at everything within the bounds, with a planted bug if one is named."""
    with ExitStack() as stack:
        stack.enter_context(swapped(SWAPS))
        if bug is not None:
            stack.enter_context(planted(BUGS[bug]))
        return Search(bounds).run(tell)


def main(arguments: list[str] | None = None) -> int:
    """Search as the options say; return the exit code: 1 says that something does not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.exhaustive", description=__doc__)
    parser.add_argument("--terms", type=int, default=2, help="how many runs campaign (default: %(default)s)")
    parser.add_argument("--records", type=int, default=2, help="how long the log may get (default: %(default)s)")
    parser.add_argument("--crashes", type=int, default=0, help="how often a safekeeper may die (default: %(default)s)")
    parser.add_argument("--figure-8", action="store_true", help="begin with the logs that two earlier terms have left")
    parser.add_argument("--change", action="store_true", help="one member of one, which is replaced by another one")
    parser.add_argument(
        "--prompt",
        nargs="?",
        choices=("answers", "flushes", "both"),
        const="both",
        help="what comes before anything else happens; alone it means both",
    )
    parser.add_argument("--bug", choices=BUGS, help="plant a bug, which must be found: exit 1 says that it was")
    options = parser.parse_args(arguments)
    bounds = Bounds(
        options.terms,
        options.records,
        options.crashes,
        options.figure_8,
        prompt_answers=options.prompt in ("answers", "both"),
        prompt_flushes=options.prompt in ("flushes", "both"),
        change=options.change,
    )
    told_at = time.monotonic()

    def tell(depth: int, states: int) -> None:
        nonlocal told_at
        if time.monotonic() > told_at + TELL_EVERY_S:
            told_at = time.monotonic()
            print(f"depth {depth}: {states} distinct states so far", flush=True)

    found = search(bounds, options.bug, tell)
    for number, step in enumerate(found.path, 1):
        print(f"{number:3} {step}")
    verdict = "all hold" if found.violation is None else f"{found.violation.invariant} does not hold"
    print(
        f"{found.states} distinct states, {found.transitions} transitions, depth {found.depth}, "
        f"{found.seconds:.1f} s: {verdict}"
    )
    return 0 if found.violation is None else 1


if __name__ == "__main__":
    sys.exit(main())
