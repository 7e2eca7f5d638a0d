"""Hold a transaction back until its whole commit record is on the quorum (S7a). Pure: waiting is done elsewhere.

A server sends a transaction when the commit record is on its own disk, and sends the end of that record last, after all
changes. What a reader does with a change cannot be undone: a table that shows it, shows it also after a failover that
discards the commit. So changes wait here for the Commit, and then for the quorum to have the end of the record.

A transaction that is too large to be held is passed on in parts. Its Begin has arrived, so the server has flushed the
whole record: once the quorum has what the server has flushed by now, it has the record.
"""

from collections.abc import Generator, Iterable
from typing import Protocol

from safekeeper.base.lsn import Lsn
from walproxy.pipeline.cdc.messages import Begin, Commit, Rows
from walproxy.pipeline.cdc.transactions import Sent


class QuorumWaiter(Protocol):
    """Waits for the quorum. Both may raise: the transaction is not passed on then."""

    def wait_for(self, lsn: Lsn) -> None:
        """Return when the quorum has everything below `lsn`."""
        ...

    def wait_for_flushed(self) -> None:
        """Return when the quorum has everything that the server has flushed at the time of the call, or later."""
        ...


def on_quorum(
    stream: Iterable[Sent], quorum: QuorumWaiter, *, known_lsn: Lsn, held_bytes_max: int
) -> Generator[Sent, None, None]:
    """Yield what `stream` yields, each transaction when its commit record is on the quorum.

    Args:
        stream: committed transactions, as `committed` yields them.
        known_lsn: the quorum is known to have everything below it.
        held_bytes_max: bytes of a transaction that wait for its Commit, at most one change more.
    """
    held: list[Sent] = []
    held_bytes = 0
    is_open = False  # a Begin came, and neither its Commit nor a wait
    for sent in stream:
        if isinstance(sent.message, Begin):
            is_open = True
        elif isinstance(sent.message, Commit):
            if is_open and sent.message.end_lsn > known_lsn:
                quorum.wait_for(sent.message.end_lsn)
                known_lsn = sent.message.end_lsn
            is_open = False
        elif isinstance(sent.message, Rows) and sent.message.end_lsn is not None:  # whole transactions
            if sent.message.end_lsn > known_lsn:
                quorum.wait_for(sent.message.end_lsn)
                known_lsn = sent.message.end_lsn
        elif is_open and held_bytes > held_bytes_max:
            quorum.wait_for_flushed()
            is_open = False
        held.append(sent)
        held_bytes += sent.size
        if not is_open:
            yield from held
            held.clear()
            held_bytes = 0
