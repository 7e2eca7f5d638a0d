"""Servers and logs as a failover finds them, for its tests."""

from typing import Any

from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.messages import AcceptorGreeting
from tests.unit.greetings import empty
from walproxy.failover.candidates import HostLook
from walproxy.failover.log_end import LogEnd
from walproxy.failover.survey import Survey

SYSTEM = 7
END_LSN = 1000


def standby(name: str, received_lsn: int = END_LSN, **changes: Any) -> HostLook:
    """Return a standby that has replayed what it has received."""
    fields = {"in_recovery": True, "system_id": SYSTEM, "tli": 1, "replayed_lsn": received_lsn, **changes}
    return HostLook(f"{name}:5432", received_lsn=received_lsn, **fields)


def primary(name: str, tli: int = 1, **changes: Any) -> HostLook:
    fields = {"in_recovery": False, "system_id": SYSTEM, "tli": tli, "written_lsn": END_LSN, **changes}
    return HostLook(f"{name}:5432", **fields)


def dead(name: str) -> HostLook:
    return HostLook(f"{name}:5432", problem="cannot connect to PostgreSQL: Connection refused")


def greeting(safekeeper_id: int = 1, **changes: Any) -> AcceptorGreeting:
    """Return that of a member whose log is on timeline 1."""
    positions = {
        "last_term": 4,
        "flush_lsn": END_LSN,
        "commit_lsn": END_LSN,
        "log_tli": 1,
        "promised": LeaderId(4, "run"),
    }
    of_log = {
        "cluster_id": "c" * 32,
        "system_id": SYSTEM,
        "segment_size": 1 << 20,
        "server_version": 180000,
        **positions,
    }
    return empty(safekeeper_id, **{**of_log, **changes})


def survey(*looks: HostLook, is_led: bool = False, **of_log: Any) -> Survey:
    return Survey(greeting(**of_log), 3, 3, True, is_led, looks)


def log_end(**changes: Any) -> LogEnd:
    """Return that of timeline 1, sealed once; its last bytes are no complete record."""
    fields: dict[str, Any] = {
        "system_id": SYSTEM,
        "tli": 1,
        "lineage": (),
        "end_lsn": END_LSN + 24,
        "records_end_lsn": END_LSN,
        "given": 1,
    }
    return LogEnd(**{**fields, **changes})
