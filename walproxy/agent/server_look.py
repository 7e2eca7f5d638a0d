"""The result of a look at the local server. Pure."""

from dataclasses import dataclass
from enum import Enum

from safekeeper.base.lsn import Lsn
from walproxy.agent.control_data import ControlData


class ServerState(Enum):
    """What the local server does.

    MISSING: the data folder does not exist.
    STOPPED: no process of it runs.
    STARTING: it starts, recovers from a crash, or is a standby that is not consistent yet.
    STOPPING: it is being stopped.
    PRIMARY, STANDBY: it replies to SQL.
    HANGS: it runs and does not reply.
    REFUSES: it runs and refuses the connection, or the connection reaches another server; `problem` has the reason.
    """

    MISSING = "missing"
    STOPPED = "stopped"
    STARTING = "starting"
    STOPPING = "stopping"
    PRIMARY = "primary"
    STANDBY = "standby"
    HANGS = "hangs"
    REFUSES = "refuses"


@dataclass(frozen=True)
class ServerLook:
    """The state of the local server at one moment.

    Attributes:
        state: what it does.
        pid: of the postmaster; None if none runs. A server is stopped only without any process, so STARTING, STOPPING
            or HANGS with None means: processes remain after the postmaster has died.
        system_id: 0 if unknown.
        server_version: as server_version_num; 0 if it does not reply to SQL.
        tli: of the WAL that it writes, or receives, or that its data folder ended with; 0 if unknown.
        is_read_only: default_transaction_read_only; None if it does not reply to SQL.
        written_lsn: the end of the WAL that a primary has flushed; of a stopped server, its latest checkpoint; 0 if
            unknown.
        received_lsn, replayed_lsn: of a standby; 0 if nothing was received since its start, or if it does not reply.
        is_streaming: of a standby: its walreceiver streams.
        control: pg_control, read only if the server does not reply to SQL; it may be old.
        has_standby_signal: of a server that does not reply: it would start as a standby, e.g. from a base backup.
        rejoin_begun: an overwrite of the data folder has begun and is not complete: it must not be started.
        hangs_s: of one that HANGS: for how long it has not replied to this look.
        problem: one line; "" if there is none.
    """

    state: ServerState
    pid: int | None = None
    system_id: int = 0
    server_version: int = 0
    tli: int = 0
    is_read_only: bool | None = None
    written_lsn: Lsn = 0
    received_lsn: Lsn = 0
    replayed_lsn: Lsn = 0
    is_streaming: bool = False
    control: ControlData | None = None
    has_standby_signal: bool = False
    rejoin_begun: bool = False
    hangs_s: float = 0.0
    problem: str = ""

    @property
    def is_running(self) -> bool:
        """Whether any process of the server exists."""
        return self.state not in (ServerState.MISSING, ServerState.STOPPED)

    @property
    def is_in_recovery(self) -> bool | None:
        """Whether it is a standby, running or stopped; None if that is unknown."""
        if self.state in (ServerState.PRIMARY, ServerState.STANDBY):
            return self.state is ServerState.STANDBY
        if self.has_standby_signal:
            return True
        return self.control.was_standby if self.control is not None else None
