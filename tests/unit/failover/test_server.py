"""What a server has returned, and what is said of its errors."""

import dataclasses
import re
from typing import cast

import pytest

from safekeeper.base.errors import WalproxyError
from safekeeper.base.lsn import format_lsn, parse_lsn
from tests.unit.failover.looks import log_end
from tests.unit.wal_builder import MIB, WalBuilder
from walproxy.failover.candidates import HostLook
from walproxy.failover.server import Server, complete_end, look_of, plain
from walproxy.postgres.bounded_sql import BoundedConnection
from walproxy.postgres.hosts import PrimaryHost
from walproxy.postgres.problems import ServerHangs, problem_of_connect, problem_of_error

NOBODY = PrimaryHost("db1:1", "host=127.0.0.1 port=1 target_session_attrs=read-write")


def standby(*, may_be_read_only: bool = False, **changes: str | None) -> HostLook:
    """Return the look at a standby, of which some columns are others."""
    columns = {
        "in_recovery": "t",
        "system_id": "7",
        "segment": None,
        "written": None,
        "received": "0/3000060",
        "replayed": "0/3000028",
        "tli": "2",
        "receives": "t",
        "promotes": "t",
        "places": "t",
        "read_only": "off",
        "role": "walproxy",
        "paused": "f",
        "targets": None,
    }
    row = tuple({**columns, **changes}.values())
    return look_of("db1:5432", row, may_be_read_only=may_be_read_only)


def test_a_standby() -> None:
    assert standby() == HostLook(
        "db1:5432",
        in_recovery=True,
        system_id=7,
        tli=2,
        received_lsn=parse_lsn("0/3000060"),
        replayed_lsn=parse_lsn("0/3000028"),
    )
    # Nothing received since its start, and nothing replayed.
    silent = standby(received=None, replayed=None, receives="f", places="f")
    assert (silent.reached_lsn, silent.receives, silent.places_files) == (0, False, False)


def test_a_primary_s_timeline_is_that_of_the_segment_that_it_writes() -> None:
    look = standby(in_recovery="f", segment="0000000A0000000000000003", written="0/3000060", received=None, tli="9")
    assert (look.in_recovery, look.tli, look.written_lsn) == (False, 10, parse_lsn("0/3000060"))
    assert look.hindrance == ""


def test_a_system_id_is_printed_as_a_signed_number() -> None:
    assert standby(system_id="-1").system_id == (1 << 64) - 1


def test_what_keeps_a_standby_from_being_promoted() -> None:
    assert standby(promotes="f").hindrance == (
        "cannot be promoted by the role walproxy: GRANT EXECUTE ON FUNCTION pg_promote TO walproxy"
    )
    assert "ALTER SYSTEM RESET default_transaction_read_only" in standby(read_only="on").hindrance
    # An agent makes it so, and takes it away once commits succeed.
    assert standby(read_only="on", may_be_read_only=True).hindrance == ""
    # An old primary may be read-only, and need not be promoted.
    assert standby(in_recovery="f", segment="0" * 7 + "1" + "0" * 16, promotes="f", read_only="on").hindrance == ""


def test_a_server_that_does_not_reply_is_one_with_a_problem() -> None:
    look = Server(NOBODY).look()
    assert look.in_recovery is None and "Connection refused" in look.problem
    assert "waiting for it" not in look.problem


def test_a_change_of_a_server_that_does_not_reply_is_one_line() -> None:
    with pytest.raises(WalproxyError, match=r"cannot connect to PostgreSQL: .*Connection refused$"):
        Server(NOBODY).request_promotion(log_end())
    with pytest.raises(WalproxyError, match=r"Connection refused$"):
        Server(NOBODY).place_histories(range(2, 4))
    Server(NOBODY).place_histories(range(2, 2))  # Nothing to do.


def test_an_error_is_said_without_the_advice_for_a_proxy() -> None:
    refused = problem_of_error("promote db1", "42501", "ERROR:  permission denied for function pg_promote")
    assert str(refused).endswith("; ALTER ROLE ... REPLICATION")
    assert plain(refused) == "cannot promote db1: permission denied for function pg_promote"
    assert plain(problem_of_error("look at it", None, "server closed the connection")) == (
        "cannot look at it: server closed the connection"
    )
    assert plain(problem_of_connect("connection refused oddly")) == (
        "cannot connect to PostgreSQL: connection refused oddly"
    )
    assert plain(ServerHangs("db1 does not reply within 3 s")) == "db1 does not reply within 3 s"


@pytest.mark.parametrize(
    ("sqlstate", "end"),
    [
        ("42501", "; the role needs more rights, see walproxy failover --help"),
        ("53100", "; free space there and repeat the command, or promote another standby with --to"),
        ("XX000", "no"),
    ],
)
def test_what_to_do_follows(monkeypatch: pytest.MonkeyPatch, sqlstate: str, end: str) -> None:
    server = Server(NOBODY)

    def fail(timeout_s: float) -> None:
        raise problem_of_error("promote db1", sqlstate, "ERROR:  no")

    monkeypatch.setattr(server, "connection", fail)
    with pytest.raises(WalproxyError) as failed:
        server.request_promotion(log_end())
    assert str(failed.value).endswith(end)
    with pytest.raises(WalproxyError) as failed:
        server.place_histories(range(2, 3))
    assert str(failed.value).endswith(end)


def test_an_incomplete_record_or_what_is_none_ends_the_complete_ones() -> None:
    builder = WalBuilder()
    builder.add(b"first")
    begin_lsn = builder.position + -builder.position % 8
    ends = [builder.add(bytes(size)).end_lsn for size in (41, 9001, 80)]
    wal = builder.read(begin_lsn, builder.position)

    def end_of(wal: bytes) -> int:
        return complete_end(wal, begin_lsn, MIB)

    assert [end_of(wal), end_of(wal[:-1]), end_of(wal[:9000]), end_of(wal[:8])] == [
        ends[2],
        ends[1],
        ends[0],
        begin_lsn,
    ]
    assert end_of(wal + b"recycled" * 9) == ends[2]
    assert end_of(b"") == begin_lsn


class Answers:
    """A connection to a standby that is asked what it has received and not replayed."""

    def __init__(self, builder: WalBuilder, replayed_lsn: int, tli: str | None = "1", may_be_read: str = "t") -> None:
        self.builder, self.replayed_lsn, self.tli, self.may_be_read = builder, replayed_lsn, tli, may_be_read
        self.missing = ""

    def rows(self, sql: str, doing: str) -> list[tuple[str | None, ...]]:
        positions = (format_lsn(self.builder.position), format_lsn(self.replayed_lsn))
        return [(self.may_be_read, str(MIB), self.tli, *positions)]

    def value(self, sql: str, doing: str) -> str | None:
        found = re.search(r"'pg_wal/(\w+)', (\d+), (\d+), true", sql)
        assert found is not None
        if found[1] == self.missing:
            return None
        begin_lsn = int(found[1][-8:], 16) * MIB + int(found[2])
        return self.builder.read(begin_lsn, begin_lsn + int(found[3])).hex()


def test_the_end_of_what_is_complete_is_known_only_if_all_of_it_can_be_read() -> None:
    builder = WalBuilder()
    builder.add(bytes(MIB - 9000))
    replayed_lsn = builder.add(b"replayed").end_lsn
    complete_lsn = builder.add(bytes(20_000)).end_lsn
    builder.add(bytes(500), held=100)
    look = dataclasses.replace(standby(), tli=1)

    def end_of(answers: Answers) -> int:
        return Server(NOBODY)._complete_lsn(cast(BoundedConnection, answers), look)

    answers = Answers(builder, replayed_lsn)
    assert end_of(answers) == complete_lsn > 2 * MIB, "over two segments"
    answers.missing = "000000010000000000000002"
    assert end_of(answers) == 0
    assert end_of(Answers(builder, replayed_lsn, tli="2")) == 0
    assert end_of(Answers(builder, replayed_lsn, tli=None)) == 0
    assert end_of(Answers(builder, replayed_lsn, may_be_read="f")) == 0
    assert end_of(Answers(builder, 0)) == 0
    builder.add(bytes(MIB))
    assert end_of(Answers(builder, replayed_lsn)) == 0, "more than is looked at"
