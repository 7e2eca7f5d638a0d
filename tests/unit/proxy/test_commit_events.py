"""The event of a commit that has waited for too long."""

import logging

import pytest

from safekeeper.base.logs import event_of
from walproxy.proxy.commit_events import record_commit_timeout


def test_a_commit_that_waits_too_long_is_an_event(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("walproxy.test")
    record_commit_timeout(logger, xid=771, end_lsn=0x3000060, waits_s=10.04, action="warn", missing=[3, 2])
    (record,) = caplog.records
    event = event_of(record)
    assert event is not None and event.kind == "commit-timeout"
    assert event.fields == {"xid": 771, "end_lsn": "0/3000060", "waits_s": 10.04, "action": "warn", "missing": "2, 3"}
    assert record.getMessage() == (
        "the commit of transaction 771 at 0/3000060 has waited for 10.0 s, action: warn; "
        "not acknowledged by safekeepers: 2, 3"
    )
