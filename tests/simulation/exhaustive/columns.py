"""The steps of a small world, computed for many states at once.

Theory of operation. A state is a row of small numbers, one for each field: a safekeeper, a run, a queue, the truth,
the remaining crashes. A batch of states has one array for each field. The effect of a step on a field depends on few
other fields, and is a `Table`: the definition (steps.py, on the machines of world.py) is called
once for each combination of numbers; afterwards the result is read from an array.

A fingerprint is the exclusive or of 64 random bits for each field and value (Zobrist hashing), so a step updates it
from the fields that it changes. Two given states that differ have equal fingerprints with a probability of 2**-64: the
bits of a field in which they differ are independent of all others.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.simulation.exhaustive.steps import State, Steps, Truth, extended
from tests.simulation.exhaustive.tables import (
    FIELD_VALUES,
    IMPOSSIBLE,
    VIOLATES,
    Batch,
    Change,
    Numbering,
    Numbers,
    Table,
)
from tests.simulation.exhaustive.world import ENDED, NOTHING, OPERATOR, SLOW_FLUSH, UNBORN, Moved

# The number of the queue of a closed connection.
_CLOSED = 1
# The number of kinds of steps.
MOVES = 1 << 8


class Violating(Exception):
    """An invariant does not hold after a step from the state `index` of the batch."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


class Columns:
    """The states of a world as columns of numbers, and its steps on them."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        width, runs = steps.width, steps.machines.runs
        self._safekeepers, self._runs = range(width), range(runs)
        # The order of the fields: safekeepers, runs, requests and answers by run * width + safekeeper, truth, crashes.
        self._requests = width + runs
        self._answers = self._requests + runs * width
        self._truth = self._answers + runs * width
        self._crashes = self._truth + 1
        self._queues: Numbering[tuple[int, ...] | None] = Numbering((), None)
        self._sent_messages: Numbering[tuple[int, ...]] = Numbering(())
        self._outcomes: Numbering[Moved] = Numbering()
        self._truths: Numbering[Truth] = Numbering()
        self._moves: Numbering[tuple[Any, ...]] = Numbering()
        self._started: dict[tuple[int, int], tuple[int, ...]] = {}
        self.bits = np.random.default_rng(20).integers(0, 1 << 64, (self._crashes + 1, FIELD_VALUES), np.uint64)
        self._end = self._sent_messages.number((NOTHING,))
        self._make_tables()

    def _make_tables(self) -> None:
        machines, steps, outcome = self.steps.machines, self.steps, self._outcomes.number
        queues, outcomes = self._queues.items, self._outcomes.items
        truths, sent_messages = self._truths.items, self._sent_messages.items

        def head(queue: int) -> int:
            waiting = queues[queue]
            return waiting[0] if waiting else IMPOSSIBLE

        def rest_of_queue(queue: int) -> int:
            return self._queues.number((queues[queue] or ())[1:])

        def append(sent: int, queue: int) -> int:
            result = queues[queue]
            for message in sent_messages[sent]:
                result = extended(result, (message,))
            return self._queues.number(result)

        def sent(moved: int, to: int) -> int:
            return self._sent_messages.number(tuple(message for who, message in outcomes[moved].sent if who == to))

        def sent_and_closed(moved: int, to: int) -> int:
            ended = (NOTHING,) * (to in outcomes[moved].parted)
            return self._sent_messages.number((*sent_messages[sent(moved, to)], *ended))

        def received(run: int, node: int, message: int) -> int:
            moved = machines.acceptor_receives(node, run, message)
            assert moved is not None  # It does not crash.
            return outcome(moved)

        def flushed(slow: int, node: int) -> int:
            return received(SLOW_FLUSH if slow else 0, node, NOTHING)

        def received_last(run: int, node: int, message: int, effect: int) -> int:
            moved = machines.acceptor_receives(node, run, message, effect)
            return IMPOSSIBLE if moved is None else outcome(moved)

        def written(runner: int) -> int:
            run = machines.runners[runner]
            if run.leader_id is None or run.received_lsn >= machines.end_lsn:
                return IMPOSSIBLE
            return outcome(machines.proposer_receives(runner, 0, NOTHING))

        def asked(runner: int) -> int:
            if machines.runners[runner].leader_id is None:
                return IMPOSSIBLE
            moved = machines.proposer_receives(runner, OPERATOR, NOTHING)
            return IMPOSSIBLE if moved.number == runner else outcome(moved)

        def truth_after(truth: int, run: int, runner: int) -> int:
            return self._truths.number(steps.truth_after(truths[truth], run, runner))

        def number(moved: int) -> int:
            return outcomes[moved].number

        def hung_up(run: int, node: int) -> int:
            return machines.hang_up(node, run)

        def crashed(keeps: int, node: int) -> int:
            return machines.crashed(node, bool(keeps))

        self._head, self._rest = Table(head), Table(rest_of_queue, FIELD_VALUES)
        self._append = Table(append, FIELD_VALUES)
        self._number = Table(number, FIELD_VALUES)
        self._sent, self._sent_and_closed = Table(sent), Table(sent_and_closed)
        self._closes = Table(lambda moved, to: to in outcomes[moved].parted)
        self._unflushed = Table(lambda node: machines.nodes[node].unflushed)
        self._received, self._flushed, self._received_last = Table(received), Table(flushed), Table(received_last)
        self._hung_up, self._crashed = Table(hung_up, FIELD_VALUES), Table(crashed, FIELD_VALUES)
        self._replied = Table(
            lambda sender, runner, message: outcome(machines.proposer_receives(runner, sender, message))
        )
        self._written, self._asked = Table(written), Table(asked)
        self._truth_after = Table(truth_after, FIELD_VALUES)
        self._holds_committed = Table(lambda node, truth: steps.holds_committed(node, truths[truth]))

    def packed(self, state: State) -> Batch:
        """Return a batch of one state."""
        queues = [self._queues.number(queue) for queue in (*state.requests, *state.answers)]
        fields = [*state.nodes, *state.runners, *queues, self._truths.number(state.truth), state.crashes]
        bits = [self.bits[field, value] for field, value in enumerate(fields)]
        return Batch(np.array([fields], np.uint16).T.copy(), np.bitwise_xor.reduce(np.array([bits]), axis=1))

    def unpacked(self, batch: Batch, index: int) -> State:
        """Return one state of a batch."""
        fields = batch.columns[:, index].tolist()
        queues = [self._queues.items[number] for number in fields[self._requests : self._truth]]
        width, count = self.steps.width, len(queues) // 2
        return State(
            tuple(fields[:width]),
            tuple(fields[width : self._requests]),
            tuple(queues[:count]),
            tuple(queues[count:]),
            self._truths.items[fields[self._truth]],
            fields[self._crashes],
        )

    def successors(self, batch: Batch) -> Iterator[tuple[int, Change]]:
        """Yield every step that is possible in a state of a batch, and the number of its kind.

        Raises:
            Violating: an invariant does not hold after one of them.
            OverflowError: the world is too big for the numbers of this module.
        """
        for kind, change in self._steps(batch):
            self._check(change)
            number = self._moves.number(kind)
            if number >= MOVES:
                raise OverflowError(f"the world is too big: it has more than {MOVES} kinds of steps")
            yield number, change

    def _steps(self, batch: Batch) -> Iterator[tuple[tuple[Any, ...], Change]]:
        columns, bounds = batch.columns, self.steps.bounds
        unflushed = [self._unflushed(columns[index]) == 1 for index in self._safekeepers]
        flushing = np.logical_or.reduce(unflushed)
        answers = [self._head(columns[field]) for field in range(self._answers, self._truth)]
        only_first = bounds.prompt_flushes and not bounds.prompt_answers
        for queue, message in enumerate(answers):
            waiting = message != IMPOSSIBLE
            yield from self._answered(batch, queue, waiting & ~flushing if only_first else waiting, message)
        before = np.zeros_like(flushing)
        for index in self._safekeepers:
            for slow in (0,) if only_first else (0, 1):
                yield from self._flush(batch, index, slow, unflushed[index] & ~before)
            if only_first:
                before |= unflushed[index]
        free = np.ones_like(flushing)
        if bounds.prompt_flushes:
            free &= ~flushing
        if bounds.prompt_answers:
            free &= ~np.logical_or.reduce([message != IMPOSSIBLE for message in answers])
        for queue in range(self._answers - self._requests):
            yield from self._delivered(batch, queue, free)
        if bounds.crashes:
            for index in self._safekeepers:
                yield from self._crash(batch, index, free & (columns[self._crashes] > 0), unflushed[index])
        for run in self._runs:
            yield from self._run_steps(batch, run, free)

    def _answered(
        self, batch: Batch, queue: int, possible: Numbers, message: Numbers
    ) -> Iterator[tuple[tuple[Any, ...], Change]]:
        if (change := _change(batch, possible)) is not None:
            run, index = divmod(queue, self.steps.width)
            field = self._answers + queue
            change[field] = self._rest(change[field])
            outcome = self._replied(index + 1, change[len(self._safekeepers) + run], message[change.parents])
            self._runner_moved(change, run, outcome)
            yield ("answer", queue), change

    def _flush(
        self, batch: Batch, index: int, slow: int, possible: Numbers
    ) -> Iterator[tuple[tuple[Any, ...], Change]]:
        if (change := _change(batch, possible)) is not None:
            self._node_moved(change, index, self._flushed(slow, change[index]))
            yield ("flush", index, slow), change

    def _delivered(self, batch: Batch, queue: int, free: Numbers) -> Iterator[tuple[tuple[Any, ...], Change]]:
        run, index = divmod(queue, self.steps.width)
        field = self._requests + queue
        message = self._head(batch.columns[field])
        if (change := _change(batch, free & (message != IMPOSSIBLE))) is None:
            return
        change[field] = self._rest(change[field])
        self._node_moved(change, index, self._received(run, change[index], message[change.parents]))
        yield ("request", queue), change
        parents = change.parents[change[self._crashes] > 0]
        effect = 0
        while parents.size:
            outcome = self._received_last(run, batch.columns[index][parents], message[parents], effect)
            parents = parents[outcome != IMPOSSIBLE]
            if parents.size:
                change = Change(batch, parents)
                change[field] = self._rest(change[field])
                self._node_moved(change, index, outcome[outcome != IMPOSSIBLE])
                self._died(change, index, change[index])
                yield ("request", queue, effect), change
            effect += 1

    def _crash(
        self, batch: Batch, index: int, possible: Numbers, unflushed: Numbers
    ) -> Iterator[tuple[tuple[Any, ...], Change]]:
        for keeps in (0, 1):
            if (change := _change(batch, possible & unflushed if keeps else possible)) is not None:
                self._died(change, index, self._crashed(keeps, change[index]))
                yield ("crash", index, keeps), change

    def _run_steps(self, batch: Batch, run: int, free: Numbers) -> Iterator[tuple[tuple[Any, ...], Change]]:
        runner = batch.columns[len(self._safekeepers) + run]
        first = free & (runner == UNBORN)
        if run:
            first &= batch.columns[len(self._safekeepers) + run - 1] != UNBORN
        if (change := _change(batch, first)) is not None:
            self._start(change, run)
            yield ("start", run), change
        tables = [("write", self._written)] + [("change", self._asked)] * self.steps.bounds.change
        for what, table in tables:
            outcome = table(runner)
            if (change := _change(batch, free & (outcome != IMPOSSIBLE))) is not None:
                self._runner_moved(change, run, outcome[change.parents])
                yield (what, run), change

    def _start(self, change: Change, run: int) -> None:
        """Start a run. Its first step depends on all safekeepers: too many combinations for a table."""
        packed = sum(change[index].astype(np.int64) << 16 * index for index in self._safekeepers)
        distinct, which = np.unique(packed, return_inverse=True)
        for key in distinct.tolist():
            if (run, key) not in self._started:
                nodes = tuple(key >> 16 * index & 0xFFFF for index in self._safekeepers)
                moved, nodes = self.steps.machines.start(run, nodes)
                self._started[run, key] = (self._outcomes.number(moved), *nodes)
        outcome, *nodes = np.array([self._started[run, key] for key in distinct.tolist()])[which].T
        for index, node in enumerate(nodes):
            change[index] = node
        self._runner_moved(change, run, outcome)

    def _node_moved(self, change: Change, index: int, outcome: Numbers) -> None:
        """Put a safekeeper's step into effect."""
        _none_violates(change, outcome)
        change[index] = self._number(outcome)
        for run in self._runs:
            queue = run * self.steps.width + index
            if (sent := self._sent_and_closed(outcome, run)).any():
                answers, requests = self._answers + queue, self._requests + queue
                change[answers] = self._append(sent, change[answers])
                change[requests] = np.where(self._closes(outcome, run), _CLOSED, change[requests])

    def _runner_moved(self, change: Change, run: int, outcome: Numbers) -> None:
        """Put a run's step into effect."""
        _none_violates(change, outcome)
        runner = self._number(outcome)
        change[len(self._safekeepers) + run] = runner
        for index in self._safekeepers:
            queue = run * self.steps.width + index
            answers, requests = self._answers + queue, self._requests + queue
            if (sent := self._sent(outcome, index + 1)).any():
                change[requests] = self._append(sent, change[requests])
            if (closed := self._closes(outcome, index + 1)).any():
                change[requests] = np.where(closed, _CLOSED, change[requests])
                change[answers] = np.where(closed, _CLOSED, change[answers])
                nodes, hung_up = change[index].copy(), closed == 1
                nodes[hung_up] = self._hung_up(run, nodes[hung_up])
                change[index] = nodes
            if (ended := runner == ENDED).any():
                change[answers] = np.where(ended, _CLOSED, change[answers])
        change[self._truth] = self._truth_after(change[self._truth], run, runner)
        _none_violates(change, change[self._truth])

    def _died(self, change: Change, index: int, node: Numbers) -> None:
        """A safekeeper has crashed: its requests are lost, its answers arrive, and then the end."""
        _none_violates(change, node)
        for run in self._runs:
            queue = run * self.steps.width + index
            answers, requests = self._answers + queue, self._requests + queue
            born = change[len(self._safekeepers) + run] != UNBORN
            change[requests] = np.where(born, _CLOSED, change[requests])
            change[answers] = np.where(born, self._append(self._end, change[answers]), change[answers])
        change[index] = node
        change[self._crashes] = change[self._crashes] - 1

    def _check(self, change: Change) -> None:
        holders = np.zeros(len(change.parents), np.int32)
        for index in self._safekeepers:
            holds = self._holds_committed(change[index], change[self._truth])
            _none_violates(change, holds)
            holders += holds
        _none_violates(change, np.where(holders < self.steps.holders, VIOLATES, 0))


def _change(batch: Batch, possible: Numbers) -> Change | None:
    parents = np.flatnonzero(possible)
    return Change(batch, parents) if parents.size else None


def _none_violates(change: Change, values: Numbers) -> None:
    violating = np.flatnonzero(values == VIOLATES)
    if violating.size:
        raise Violating(int(change.parents[violating[0]]))
