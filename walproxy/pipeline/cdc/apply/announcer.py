"""Send announcements to their receiver from a thread of its own: a receiver that does not reply delays no table.

They are sent in order, one at a time, each until it was taken. A failure is logged when it begins and when it is over.
The job's file has those that were not taken yet: `pending` returns which.
"""

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from safekeeper.base.lsn import Lsn
from walproxy.pipeline.cdc.apply.announcements import Announcement, TableChange, announcement
from walproxy.pipeline.cdc.apply.receivers import NotTaken, Receiver, parse_receiver

_log = logging.getLogger(__name__)

PENDING_MAX: Final = 10_000
"""Announcements that wait for their receiver; then the oldest ones are given up, as the job's file has them all."""

_RETRY_MIN_S: Final = 1.0
_RETRY_MAX_S: Final = 60.0
_END_S: Final = 10.0


class Announcer:
    """Announcements of one job; all methods return at once, but for `drain`.

    Args:
        receiver: None: nothing is announced.
    """

    def __init__(self, receiver: Receiver | None) -> None:
        self._receiver = receiver
        self._changed = threading.Condition()
        self._waiting: deque[Announcement] = deque()
        self._taken: set[str] = set()
        self._failures = 0
        self._hurries = self._is_closed = self._is_full = False

    def pending(
        self, known: Sequence[Announcement], changes: Iterable[TableChange], database: str, slot: str, lsn: Lsn
    ) -> list[Announcement]:
        """Return what the job's file is to have: what it has and the receiver has not taken, and new announcements.

        Args:
            known: those of the job's file.
            changes: what is new.
            lsn: the job's position.
        """
        if self._receiver is None:
            return list(known)
        with self._changed:
            self._taken &= {each.id for each in known}
            kept = [each for each in known if each.id not in self._taken]
        made = [*kept, *(announcement(change, database, slot, lsn) for change in changes)]
        if len(made) > PENDING_MAX and not self._is_full:
            _log.error(
                "%d announcements of schema changes wait for %s: the oldest are given up", len(made), self._receiver
            )
        self._is_full = len(made) > PENDING_MAX
        return made[-PENDING_MAX:]

    def send(self, pending: Sequence[Announcement]) -> None:
        """Have the receiver get these, and no others: they are in the job's file."""
        if self._receiver is None:
            return
        with self._changed:
            self._waiting = deque(each for each in pending if each.id not in self._taken)
            self._changed.notify_all()

    @property
    def has_taken(self) -> bool:
        """Whether the receiver has taken some since `pending` was asked for: the job's file need not have them."""
        with self._changed:
            return bool(self._taken)

    def drain(self) -> None:
        """Return when all are taken; or when an attempt has failed from now on, after some seconds at most."""
        if self._receiver is None:
            return
        with self._changed:
            failures, self._hurries = self._failures, True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._waiting or self._failures > failures, _END_S)

    def close(self) -> None:
        """End the thread, when its attempt is over."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def run(self) -> None:
        """Send until `close`."""
        assert self._receiver is not None  # by `announcing`
        delay_s = 0.0
        while (first := self._next(delay_s)) is not None:
            try:
                self._receiver.send(msgspec.json.encode(first))
            except NotTaken as error:
                if not delay_s:
                    _log.warning("schema changes are not announced, retrying until they are: %s", error)
                delay_s = min(max(2 * delay_s, _RETRY_MIN_S), _RETRY_MAX_S)
                self._note_failure()
            else:
                if delay_s:
                    _log.info("schema changes are announced again: %s", self._receiver)
                delay_s = 0.0
                self._note_taken(first)

    def _next(self, delay_s: float) -> Announcement | None:
        """Return the oldest one, after a delay that `drain` ends; None to end."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._hurries, delay_s)
            self._hurries = False
            self._changed.wait_for(lambda: self._is_closed or bool(self._waiting))
            return None if self._is_closed else self._waiting[0]

    def _note_failure(self) -> None:
        with self._changed:
            self._failures += 1
            self._changed.notify_all()

    def _note_taken(self, taken: Announcement) -> None:
        with self._changed:
            self._taken.add(taken.id)
            if self._waiting and self._waiting[0].id == taken.id:
                self._waiting.popleft()
            self._changed.notify_all()


@contextlib.contextmanager
def announcing(receiver: str | None) -> Iterator[Announcer]:
    """Give an announcer whose thread runs during the block. Raises ConfigurationError: `receiver` is none."""
    announcer = Announcer(None if receiver is None else parse_receiver(receiver))
    if receiver is not None:
        threading.Thread(target=announcer.run, name="announcer", daemon=True).start()
    try:
        yield announcer
    finally:
        announcer.close()
