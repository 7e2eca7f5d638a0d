"""A storage driven at random on a virtual disk, beside a model of what must be true of it.

One seed is one schedule of appends, flushes, cuts, removals of old segments, resets, crashes, kills, failing and full
disks. After every restart: nothing that was acked and not cut or removed is missing, nothing is there that was not
written, the bytes are the model's, and every segment is there once, under the name it must have.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from safekeeper.base.errors import LocalProtocolError, StorageFailed, StorageFull
from safekeeper.base.lsn import format_lsn, segment_name, segment_start
from safekeeper.storage.disk_work import Flush, Preparation
from safekeeper.storage.wal_log import WalStorage
from tests.simulation.model.virtual_disk import VirtualCrash, VirtualFileSystem
from tests.simulation.world.world import SimulationFailed

DIRECTORY = Path("/data/wal")
SEGMENT_SIZE = 4096
STEPS = 40
ROOMY_BYTES = 1 << 40


class Decision(NamedTuple):
    """What the control file says is still to be done: cut or reset to `lsn` and go on under `tli`."""

    lsn: int
    tli: int


class Machine:
    """One safekeeper's storage on a virtual disk, driven at random, and the model of what must be true of it."""

    def __init__(self, seed: int, trace: list[str]) -> None:
        self.rng = random.Random(seed)
        self.fs = VirtualFileSystem(random.Random(seed + 1))
        self.trace = trace  # What happened so far, for whoever looks at a failing seed.
        # The control file's part, always durable: what it takes to finish what a crash interrupted.
        self.tli = 1
        self.cut: Decision | None = None
        self.base: Decision | None = Decision(SEGMENT_SIZE * self.rng.randint(1, 4), 1)
        # The model: the log [begin_lsn, begin_lsn + len(log)), the part of it that was acked, and its files' TLIs.
        # Where the log begins stands in the control file, too.
        self.begin_lsn = 0
        self.log = bytearray()
        self.acked_lsn = 0
        self.tlis: dict[int, int] = {}
        # What the node has in hand.
        self.flush: Flush | None = None
        self.preparation: Preparation | None = None
        self.failures_seen = 0
        self.lost_pages_at_start = False
        self.restart()

    @property
    def end_lsn(self) -> int:
        return self.begin_lsn + len(self.log)

    def run(self) -> None:
        steps: dict[Callable[[], None], int] = {
            self.append: 30,
            self.flush_now: 8,
            self.begin_flush: 12,
            self.carry_out_flush: 10,
            self.end_flush: 10,
            self.prepare_ahead: 6,
            self.carry_out_preparation: 5,
            self.end_preparation: 5,
            self.truncate: 5,
            self.trim: 6,
            self.reset: 1,
            self.arm: 6,
            self.end_process: 3,
            self.fill_disk: 2,
        }
        for step in self.rng.choices(list(steps), list(steps.values()), k=STEPS):
            try:
                step()
            except VirtualCrash:
                self.restart()
            except StorageFull:
                self.note("full")
                assert self.fs.capacity_bytes < ROOMY_BYTES, "no disk is full"
                self.check_reads()
                self.fs.capacity_bytes = ROOMY_BYTES
                self.finish_decisions_or_restart()
            except StorageFailed as error:
                self.expect_failure(error)
                self.refuses_everything()
                self.restart()
        self.end_process()

    # Steps.

    def append(self) -> None:
        size = self.rng.choice((1, 7, 100, 500, 1500, SEGMENT_SIZE, 3 * SEGMENT_SIZE))
        data = self.rng.randbytes(self.rng.randint(1, size))
        self.note(f"append {len(data)}")
        before = self.end_lsn
        # Any part may have been written when the process ends in the middle.
        self.log += data
        try:
            self.storage.append(before, data)
        except StorageFull:
            del self.log[before - self.begin_lsn :]
            assert self.storage.write_lsn == before, "a refused append has moved the write position"
            raise
        for start in range(segment_start(before, SEGMENT_SIZE), self.end_lsn, SEGMENT_SIZE):
            self.tlis.setdefault(start, self.tli)
        assert self.storage.write_lsn == self.end_lsn

    def flush_now(self) -> None:
        if self.flush is None:
            self.note("flush_now")
            self.storage.flush_now()
            self.acked_lsn = self.storage.flush_lsn
            assert self.acked_lsn == self.end_lsn

    def begin_flush(self) -> None:
        flush = self.storage.start_flush()
        if flush is not None:
            self.note("start_flush")
            self.flush = flush

    def carry_out_flush(self) -> None:
        if self.flush is not None and not self.flush.done:
            if self.rng.random() < 0.3:
                self.fs.during_fdatasync = self.meanwhile
            self.note("run flush")
            self.flush.run()
            self.fs.during_fdatasync = None
            self.note("flush ran")

    def meanwhile(self) -> None:
        """The loop's thread goes on while the disk's thread waits for its fdatasync."""
        try:
            self.append()
        except StorageFull:
            self.note("full meanwhile")
        self.begin_flush_of_another()

    def begin_flush_of_another(self) -> None:
        flush = self.storage.start_flush()
        if flush is not None:
            # Only a storage with a planted bug gets here.
            flush.run()
            self.storage.finish_flush(flush)
            self.acked_lsn = self.storage.flush_lsn

    def end_flush(self) -> None:
        if self.flush is not None and self.flush.done:
            self.storage.finish_flush(self.flush)
            self.flush = None
            self.acked_lsn = self.storage.flush_lsn
            self.note(f"acked {format_lsn(self.acked_lsn)}")

    def prepare_ahead(self) -> None:
        preparation = self.storage.prepare_ahead()
        if preparation is not None:
            self.note("prepare_ahead")
            self.preparation = preparation

    def carry_out_preparation(self) -> None:
        if self.preparation is not None:
            self.preparation.run()

    def end_preparation(self) -> None:
        if self.preparation is not None:
            self.storage.finish_preparation(self.preparation)
            self.preparation = None

    def truncate(self) -> None:
        if self.flush is not None:
            return
        lsn = self.rng.randint(self.begin_lsn, self.end_lsn)
        choice = self.rng.randrange(4)
        if choice == 0:
            lsn = max(self.begin_lsn, segment_start(lsn, SEGMENT_SIZE))
        elif choice == 1:
            lsn = self.rng.choice((self.end_lsn, self.acked_lsn, self.begin_lsn))
        self.tli += self.rng.randrange(2)
        self.cut = Decision(lsn, self.tli)
        self.finish_decisions()

    def trim(self) -> None:
        """Remove old segments, also while a flush is under way; the control file says before where the log begins."""
        highest_lsn = segment_start(max(self.begin_lsn, self.acked_lsn - 1), SEGMENT_SIZE)
        lsn = self.rng.randrange(self.begin_lsn, highest_lsn + 1, SEGMENT_SIZE)
        self.note(f"trim {format_lsn(lsn)}")
        self.forget_below(lsn)
        self.storage.trim(lsn)
        assert self.storage.begin_lsn == lsn
        self.check_reads()

    def forget_below(self, lsn: int) -> None:
        del self.log[: lsn - self.begin_lsn]
        self.begin_lsn = lsn
        self.tlis = {start: tli for start, tli in self.tlis.items() if start >= lsn}

    def reset(self) -> None:
        if self.flush is not None:
            return
        self.tli += self.rng.randrange(2)
        self.base = Decision(SEGMENT_SIZE * self.rng.randint(1, 8), self.tli)
        self.finish_decisions()

    def arm(self) -> None:
        if self.rng.random() < 0.7:
            self.fs.crash_in(self.rng.randint(1, 12))
        else:
            self.fs.fail_in(self.rng.randint(1, 6), only=self.rng.choice((None, "sync")))

    def end_process(self) -> None:
        self.note("the process ends")
        self.restart()

    def fill_disk(self) -> None:
        if self.fs.capacity_bytes == ROOMY_BYTES:
            self.fs.capacity_bytes = self.fs.used_bytes() + self.rng.randint(0, 20000)

    # Restarts.

    def restart(self) -> None:
        """Let the machine or the process end, and come back, perhaps dying again on the way."""
        while True:
            if self.rng.random() < 0.5:
                self.note("crash")
                self.fs.crash()
            else:
                self.note("kill")
                self.fs.kill()
                if self.rng.random() < 0.5:
                    self.note("evict")
                    self.fs.evict()
            self.flush = self.preparation = None
            if self.rng.random() < 0.3:
                self.arm()
            self.lost_pages_at_start = self.fs.shows_lost_pages
            try:
                self.storage = WalStorage.open(
                    self.fs, DIRECTORY, segment_size=SEGMENT_SIZE, tli=self.tli, begin_lsn=self.begin_lsn
                )
                self.check_recovered()
                self.finish_decisions()
                break
            except VirtualCrash:
                continue
            except StorageFull:
                assert self.fs.capacity_bytes < ROOMY_BYTES, "no disk is full"
                self.fs.capacity_bytes = ROOMY_BYTES
            except StorageFailed as error:
                self.expect_failure(error)

    def finish_decisions_or_restart(self) -> None:
        try:
            self.finish_decisions()
        except VirtualCrash:
            self.restart()
        except StorageFailed as error:
            self.expect_failure(error)
            self.restart()

    def finish_decisions(self) -> None:
        """Do what the control file says is pending, then record that it is done: before any append."""
        if self.base is not None:
            lsn, tli = self.base
            self.note(f"reset {format_lsn(lsn)} tli {tli}")
            self.storage.reset(lsn, tli)
            self.begin_lsn = self.acked_lsn = lsn
            self.log.clear()
            self.tlis = {lsn: tli}
            self.base = self.cut = None
            self.preparation = None
        if self.cut is not None:
            lsn, tli = min(self.cut.lsn, self.storage.write_lsn), self.cut.tli
            self.note(f"truncate {format_lsn(lsn)} tli {tli}")
            # Flushing what lies below is part of it, and not an ack.
            self.storage.truncate(lsn, tli)
            del self.log[lsn - self.begin_lsn :]
            self.acked_lsn = lsn
            self.tlis = {start: each for start, each in self.tlis.items() if start < lsn or start == self.begin_lsn}
            if lsn % SEGMENT_SIZE or lsn == self.begin_lsn:
                self.tlis[segment_start(lsn, SEGMENT_SIZE)] = tli
            self.preparation = None
            self.forget_cut()
        assert self.storage.write_lsn == self.end_lsn
        self.check_reads()

    def forget_cut(self) -> None:
        self.cut = None

    # Checks.

    def check_recovered(self) -> None:
        storage = self.storage
        self.note(f"recovered {format_lsn(storage.flush_lsn)}")
        assert storage.write_lsn == storage.flush_lsn
        if self.base is not None:
            return  # Any part of the old log may be left, or the new one's start; the reset comes next.
        needed_lsn = self.acked_lsn if self.cut is None else min(self.acked_lsn, self.cut.lsn)
        assert storage.begin_lsn == self.begin_lsn
        assert needed_lsn <= storage.flush_lsn, f"acked up to {format_lsn(needed_lsn)}"
        assert storage.flush_lsn <= self.end_lsn, f"only written up to {format_lsn(self.end_lsn)}"
        del self.log[storage.flush_lsn - self.begin_lsn :]
        self.acked_lsn = storage.flush_lsn
        self.tlis = {start: tli for start, tli in self.tlis.items() if start < max(self.end_lsn, self.begin_lsn + 1)}
        self.check_reads()
        if self.cut is None:
            files = {segment_name(tli, start, SEGMENT_SIZE) for start, tli in self.tlis.items()}
            assert set(self.fs.listdir(DIRECTORY)) == files

    def check_reads(self) -> None:
        if self.base is None:
            held = self.storage.read(self.begin_lsn, self.storage.write_lsn)
            assert held == self.log, "the bytes held differ from the bytes written"

    def expect_failure(self, error: StorageFailed) -> None:
        self.note(f"failed: {error}")
        if "changed while it was read" in str(error):
            assert self.lost_pages_at_start
            return
        assert self.fs.failures > self.failures_seen, f"a healthy disk is said to have failed: {error}"
        self.failures_seen = self.fs.failures

    def refuses_everything(self) -> None:
        for refused in (
            lambda: self.storage.append(self.storage.write_lsn, b"x"),
            lambda: self.storage.start_flush(),
            lambda: self.storage.truncate(self.storage.begin_lsn, self.tli),
            lambda: self.storage.read(self.storage.begin_lsn, self.storage.begin_lsn),
        ):
            with pytest.raises(StorageFailed):
                refused()

    def note(self, line: str) -> None:
        self.trace.append(line)


def drive(seed: int) -> None:
    """Run one schedule as a part of a seed of the simulator.

    Raises:
        SimulationFailed: a violation.
    """
    try:
        run_schedule(seed)
    except AssertionError as error:
        raise SimulationFailed(error, []) from error


def run_schedule(seed: int, machine_type: type[Machine] = Machine) -> None:
    """Run one schedule.

    Raises:
        AssertionError: a violation; the message names the seed and tells what happened.
    """
    trace: list[str] = []
    try:
        machine_type(seed, trace).run()
    except (AssertionError, StorageFailed, StorageFull, LocalProtocolError) as error:
        raise AssertionError(f"seed {seed}: {error!r} after: " + "; ".join(trace)) from error
