"""What the node does for a message and for the end of a flush, as effects for a simulated disk and network.

As safekeeper/node/node.py: an append that the acceptor accepts is written at once, all else is for `receive`.
"""

from safekeeper.acceptor.acceptor import Acceptor
from safekeeper.acceptor.effects import Effects, Send, WriteWal
from safekeeper.base.errors import StorageFull
from safekeeper.base.lsn import Lsn
from safekeeper.consensus.messages import AppendRequest, AppendResponse, ProposerMessage


def message_effects(acceptor: Acceptor, connection: int, message: ProposerMessage, now: float) -> Effects:
    """Handle a proposer's message."""
    if type(message) is not AppendRequest or not acceptor.accepts(connection, message):
        yield from acceptor.receive(connection, message, now)
        return
    try:
        if message.payload:
            yield WriteWal(message.begin_lsn, message.payload)
    except StorageFull as full:
        yield from acceptor.no_room(connection, full)
    else:
        yield from _answer_effects(acceptor, acceptor.wrote(message, now))


def flushed_effects(acceptor: Acceptor, flush_lsn: Lsn) -> Effects:
    """Handle the end of a flush."""
    yield from _answer_effects(acceptor, acceptor.flushed(flush_lsn))


def _answer_effects(acceptor: Acceptor, answer: AppendResponse | None) -> Effects:
    if answer is not None and acceptor.leader_connection is not None:
        yield Send(acceptor.leader_connection, answer)
