"""What an agent reports of its server through the safekeepers, and the settings that all agents share (step 14).

Safekeepers keep both as bytes that they do not read: JSON objects. A field that this version does not know is ignored,
so agents of two versions work side by side.
"""

from typing import TypeVar

import msgspec

from safekeeper.base.errors import RemoteProtocolError
from safekeeper.base.lsn import Lsn

_Known = TypeVar("_Known", bound=msgspec.Struct)


class AgentReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """An agent and its server at one moment.

    Attributes:
        name: of the agent, unique in the cluster.
        address: HOST:PORT at which clients and other servers reach its PostgreSQL.
        url: of its REST.
        state: see `ServerState`.
        server_version: as server_version_num, 0 if unknown.
        tli: the timeline that the server writes, or receives and replays.
        written_lsn: of a primary; or of a stopped server, the end of what is known of its WAL.
        received_lsn, replayed_lsn: of a standby; 0 for nothing since its start.
        is_streaming: of a standby: its walreceiver streams; else it restores WAL, or waits.
        is_leader: the server is the primary, accepts writes, and its proxy streams to a quorum.
        has_resigned: it led, and gives the lead up: the others need not wait for its loss.
        is_read_only: new transactions are read-only by default.
        may_lead: False with no_failover.
        priority: of several equal standbys the one with the highest is promoted.
        dead_after_s: how long this agent waits for a lost leader.
        is_failing_over: it makes its server the primary.
        has_sealed: it has sealed the timeline of the old primary for that.
        is_paused: it has received that all agents are paused.
        doing: what it does beyond watching, one line; "" for nothing. It begins with "switchover", "failover",
            "rejoining" or "rebuilding" while the agent does that.
        problem: why it cannot do what it should, one line; "" for none.
        order_done, order_result: the id of the last order that it has executed or refused, and how that ended.
    """

    name: str
    address: str = ""
    url: str = ""
    state: str = "missing"
    system_id: int = 0
    server_version: int = 0
    tli: int = 0
    written_lsn: Lsn = 0
    received_lsn: Lsn = 0
    replayed_lsn: Lsn = 0
    is_streaming: bool = False
    is_leader: bool = False
    has_resigned: bool = False
    is_read_only: bool = False
    may_lead: bool = True
    priority: int = 100
    dead_after_s: float = 5.0
    is_failing_over: bool = False
    has_sealed: bool = False
    is_paused: bool = False
    doing: str = ""
    problem: str = ""
    order_done: str = ""
    order_result: str = ""

    @property
    def reached_lsn(self) -> Lsn:
        """The end of the WAL that a promotion would keep."""
        return max(self.received_lsn, self.replayed_lsn)


class Order(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an operator wants of the agents, once.

    Attributes:
        id: random, 32 hexadecimal digits.
        kind: "switchover", "failover", "cancel" or "reinit". A cancel lasts until a primary leads, or another order is
            given: no agent fails over before.
        agent: of a switchover or failover the agent to promote, "" for the most advanced; of a reinit that agent.
        at: when it was given, in seconds since 1970. For people.
    """

    id: str
    kind: str
    agent: str = ""
    at: float = 0.0


class PrimaryChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """A change of the primary, as its new agent has recorded it.

    Attributes:
        kind: "switchover" or "failover".
        agent: of the new primary.
        tli, term: of the new primary.
        fork_lsn: where the new timeline begins.
        seconds: without a leader: from the last message of the old one that a quorum of safekeepers received until
            commits went on.
        at: in seconds since 1970.
        old_tli: the timeline that ended; 0 if unknown.
    """

    kind: str
    agent: str
    tli: int
    term: int
    fork_lsn: Lsn = 0
    seconds: float = 0.0
    at: float = 0.0
    old_tli: int = 0


CHANGES_MAX = 50


class AgentSettings(msgspec.Struct, frozen=True, omit_defaults=True):
    """What all agents share, durably.

    Attributes:
        is_paused: agents watch, report and serve REST, and change nothing by themselves.
        order: the last one.
        changes: of the primary, the last one at the end; at most `CHANGES_MAX`.
    """

    is_paused: bool = False
    order: Order | None = None
    changes: tuple[PrimaryChange, ...] = ()

    def without(self, order: Order | None) -> "AgentSettings":
        """Return the settings without an order that is done, was refused, or is withdrawn."""
        if order is None or self.order is None or self.order.id != order.id:
            return self
        return msgspec.structs.replace(self, order=None)


def encode(value: AgentReport | AgentSettings) -> bytes:
    """Return the JSON object."""
    return msgspec.json.encode(value)


def decode(content: bytes, kind: type[_Known]) -> _Known:
    """Return what `encode` was given.

    Raises:
        RemoteProtocolError: it is not such an object.
    """
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"an agent has sent no {kind.__name__}: {error}") from None
