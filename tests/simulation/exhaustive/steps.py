"""The steps of a small world, in terms of the real state machines, and the invariants of each state.

Theory of operation. A state is three safekeepers, the proxy processes (runs), the messages between them (a queue for
each connection and direction) and the truth so far: which run won which term, what was committed. A step delivers the
first message of any queue, returns a flush, starts a run, writes a record of a primary, or lets a safekeeper crash.

This is the definition, for one state at a time. The search (search.py) computes the same steps for many
states at once (columns.py), and uses the definition for the texts of a path and of a violation.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from safekeeper.base.lsn import Lsn
from safekeeper.consensus.control_state import NOBODY, LeaderId
from safekeeper.consensus.term_history import TermHistory, cut_history
from tests.simulation.checks.violation import Violation
from tests.simulation.exhaustive.world import (
    BASE_LSN,
    ENDED,
    NOTHING,
    OPERATOR,
    SLOW_FLUSH,
    UNBORN,
    Machines,
    Moved,
    entry,
    letter,
)


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
        change: there are two safekeepers; the first one is the only member, and the leader is asked to replace it by
            the second one.
    """

    terms: int = 2
    records: int = 2
    crashes: int = 0
    figure_8: bool = False
    prompt_answers: bool = False
    prompt_flushes: bool = False
    change: bool = False


class Steps:
    """The steps of the world within these bounds."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.before = 2 if bounds.figure_8 else 0
        self.machines = Machines(bounds.terms + self.before, bounds.records + bounds.figure_8, bounds.change)
        self.width = len(self.machines.safekeepers)
        # With a single member, before the change and after it, a record is committed on one disk.
        self.holders = 1 if bounds.change else 2

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
        requests: tuple[tuple[int, ...] | None, ...] = ((),) * (runs * self.width)
        answers = (None,) * (self.before * self.width) + ((),) * (self.bounds.terms * self.width)
        runners = (ENDED,) * self.before + (UNBORN,) * self.bounds.terms
        return State(nodes, runners, requests, answers, truth, self.bounds.crashes)

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield every step that is possible, and where it leads.

        Raises:
            Violation: an invariant does not hold there.
        """
        flushing = any(self.machines.nodes[node].unflushed for node in state.nodes)
        if flushing and self.bounds.prompt_flushes and not self.bounds.prompt_answers:
            # A flush that takes its time, or returns after an answer, is covered where answers are prompt.
            yield next(self._flushed(state))
            return
        yield from self._answered(state)
        yield from self._flushed(state)
        # The queue of a run that has not started is empty, that of one that has ended is closed.
        if (self.bounds.prompt_answers and any(state.answers)) or (self.bounds.prompt_flushes and flushing):
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
            if waiting:
                nodes, runners, requests, answers, truth, crashes = state
                rest = State(nodes, runners, requests, _put(answers, queue, waiting[1:]), truth, crashes)
                moved = machines.proposer_receives(state.runners[run], index + 1, waiting[0])
                yield (
                    f"P{run + 1} gets from S{index + 1}: {machines.words(waiting[0])}",
                    self._runner_moved(rest, run, moved),
                )

    def _flushed(self, state: State) -> Iterator[tuple[str, State]]:
        machines = self.machines
        for index, node in enumerate(state.nodes):
            if machines.nodes[node].unflushed:
                moved_node = machines.acceptor_receives(node, 0, NOTHING)
                assert moved_node is not None  # it does not die
                yield f"S{index + 1}'s flush returns", self._node_moved(state, index, moved_node)
                moved_node = machines.acceptor_receives(node, SLOW_FLUSH, NOTHING)
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
        moved = machines.acceptor_receives(node, run, waiting[0])
        assert moved is not None  # it does not die
        yield what, self._node_moved(rest, index, moved)
        effect = 0
        while state.crashes and (dead := machines.acceptor_receives(node, run, waiting[0], effect)) is not None:
            sent = self._node_moved(rest, index, dead)
            yield f"{what}, and dies behind effect {effect + 1}", self._died(sent, index, dead.number)
            effect += 1

    def _runs(self, state: State) -> Iterator[tuple[str, State]]:
        machines = self.machines
        for run, number in enumerate(state.runners):
            if number == UNBORN:
                moved, nodes = machines.start(run, state.nodes)
                yield f"P{run + 1} starts", self._runner_moved(state._replace(nodes=nodes), run, moved)
                # The next one is its like.
                return
            runner = machines.runners[number]
            if runner.leader_id is not None and runner.received_lsn < machines.end_lsn:
                moved = machines.proposer_receives(number, 0, NOTHING)
                yield f"P{run + 1}'s primary writes a record", self._runner_moved(state, run, moved)
            if runner.leader_id is not None and self.bounds.change:
                moved = machines.proposer_receives(number, OPERATOR, NOTHING)
                if moved.number != number:
                    yield f"P{run + 1} goes on with the change", self._runner_moved(state, run, moved)

    def _node_moved(self, state: State, index: int, moved: Moved) -> State:
        """Put a safekeeper's step into effect."""
        nodes, runners, requests, answers, truth, crashes = state
        for run, message in moved.sent:
            at = run * self.width + index
            answers = _put(answers, at, extended(answers[at], (message,)))
        for run in moved.parted:
            at = run * self.width + index
            requests = _put(requests, at, None)
            answers = _put(answers, at, extended(answers[at], (NOTHING,)))
        return self._checked(State(_put(nodes, index, moved.number), runners, requests, answers, truth, crashes))

    def _runner_moved(self, state: State, run: int, moved: Moved) -> State:
        """Put a run's step into effect."""
        nodes, runners, requests, answers, truth, crashes = state
        for safekeeper_id, message in moved.sent:
            at = run * self.width + safekeeper_id - 1
            requests = _put(requests, at, extended(requests[at], (message,)))
        for safekeeper_id in moved.parted:
            at = run * self.width + safekeeper_id - 1
            requests, answers = _put(requests, at, None), _put(answers, at, None)
            hung_up = self.machines.hang_up(nodes[safekeeper_id - 1], run)
            nodes = _put(nodes, safekeeper_id - 1, hung_up)
        if moved.number == ENDED:
            answers = (*answers[: run * self.width], *(None,) * self.width, *answers[(run + 1) * self.width :])
        truth = self.truth_after(truth, run, moved.number)
        return self._checked(State(nodes, _put(runners, run, moved.number), requests, answers, truth, crashes))

    def _died(self, state: State, index: int, number: int) -> State:
        """A safekeeper has died: what was on its way to it is lost, what it had sent arrives, and then the end."""
        requests, answers = list(state.requests), list(state.answers)
        for run, runner in enumerate(state.runners):
            at = run * self.width + index
            if runner != UNBORN:
                requests[at] = None
                answers[at] = extended(answers[at], (NOTHING,))
        nodes = _put(state.nodes, index, number)
        crashes = state.crashes - 1
        return self._checked(State(nodes, state.runners, tuple(requests), tuple(answers), state.truth, crashes))

    def truth_after(self, truth: Truth, run: int, number: int) -> Truth:
        """Return what is known after a step of a run, which is the runner `number` now: it may have won, or committed.

        Raises:
            Violation: of ElectionSafety, LeaderCompleteness or CommittedNotOverwritten.
        """
        runner = self.machines.runners[number]
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
        return truth

    def _check_complete(self, truth: Truth) -> None:
        """Whoever won a term has on its log what was committed in earlier ones (LeaderCompleteness)."""
        for term, run, history in truth.won:
            count = max((i + 1 for i, earlier in enumerate(truth.committed_in) if earlier < term), default=0)
            log = terms_of(history, history[-1].start_lsn)[:count]
            if log != truth.committed[:count]:
                raise Violation("LeaderCompleteness", f"P{run + 1} leads term {term} on {log}: {truth} is committed")

    def _checked(self, state: State) -> State:
        """Return the state if enough safekeepers hold what is committed."""
        holders = sum(self.holds_committed(number, state.truth) for number in state.nodes)
        if holders < self.holders:
            raise Violation("CommittedNotOverwritten", f"{state.truth.committed} is on {holders} disks only")
        return state

    def holds_committed(self, number: int, truth: Truth) -> bool:
        """Return whether a safekeeper holds what is committed. A log that is about to be cut does not count.

        Raises:
            Violation: its log does not match its history (LogMatching), or it takes for committed what is not.
        """
        node = self.machines.nodes[number]
        if node.control.truncate_to is not None or node.control.base_lsn is not None:
            return False
        name, writers = f"S{node.control.safekeeper_id}", {term: letter(run) for term, run, _ in truth.won}
        log = terms_of(node.control.history, BASE_LSN + len(node.wal))
        if node.wal != b"".join(writers.get(term, b"?") for term in log):
            raise Violation("LogMatching", f"{name} holds {node.wal!r} under {log} of {writers}")
        known = max(node.commit_lsn - BASE_LSN, 0)
        if log[:known] != truth.committed[:known]:
            raise Violation("CommittedNotOverwritten", f"{name} believes {log[:known]} to be committed")
        return log[: len(truth.committed)] == truth.committed


def extended(queue: tuple[int, ...] | None, messages: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return a queue with messages at its end. A closed connection takes none, and it ends only once."""
    if queue is None or (messages == (NOTHING,) and queue[-1:] == messages):
        return queue
    return (*queue, *messages)


def terms_of(history: TermHistory, end_lsn: Lsn) -> tuple[int, ...]:
    """Return the term of every record of a log."""
    return tuple(cut_history(history, lsn)[-1].term for lsn in range(BASE_LSN, end_lsn)) if history else ()


def _put(items: tuple, index: int, item: object) -> tuple:  # type: ignore[type-arg]
    return (*items[:index], item, *items[index + 1 :])
