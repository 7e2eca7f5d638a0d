"""What a failed connection or command means, and the advice that follows it."""

import pytest

from walproxy.postgres.problems import ProblemKind, problem_of_connect, problem_of_error

NO_ENTRY = (
    'connection failed: connection to server at "10.0.0.9", port 5432 failed: FATAL:  28000: no pg_hba.conf entry for '
)
REJECTS = "connection failed: FATAL:  28000: pg_hba.conf rejects connection for "


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            NO_ENTRY + 'host "10.0.0.5", user "walproxy", database "shop", no encryption',
            "host shop walproxy 10.0.0.5/32 scram-sha-256",
        ),
        (
            NO_ENTRY + 'host "10.0.0.5", user "walproxy", database "shop", SSL off',  # 13
            "host shop walproxy 10.0.0.5/32 scram-sha-256",
        ),
        (
            NO_ENTRY + 'replication connection from host "fd00::5", user "walproxy", SSL encryption',
            "host replication walproxy fd00::5/128 scram-sha-256",
        ),
        (
            REJECTS + 'host "[local]", user "wal proxy", database "all", no encryption',
            'local "all" "wal proxy" scram-sha-256',
        ),
        (
            REJECTS + 'host "10.0.0.5", user "walproxy", database "replication", no encryption',
            'host "replication" walproxy 10.0.0.5/32 scram-sha-256',
        ),
    ],
)
def test_the_missing_line_of_pg_hba_conf_is_named(text: str, line: str) -> None:
    problem = problem_of_connect(text)
    assert problem.kind is ProblemKind.NO_LOGIN
    assert problem.message.endswith(f"; add the line `{line}` to pg_hba.conf, and reload PostgreSQL")


def test_a_database_that_does_not_exist_is_an_error_of_the_connection_string() -> None:
    problem = problem_of_connect('connection failed: FATAL:  3D000: database "shop" does not exist')
    assert (problem.kind, "dbname=" in problem.message) == (ProblemKind.WRONG_CONNINFO, True)


@pytest.mark.parametrize(
    ("sqlstate", "routine", "text", "kind"),
    [
        (
            "XX000",
            "StartReplication",
            "angeforderter Startpunkt 0/9000000 ist vor der WAL-Flush-Position dieses Servers 0/3000000",
            ProblemKind.WRONG_POSITION,
        ),
        (
            "XX000",
            "tliSwitchPoint",
            "angeforderte Zeitleiste 7 ist nicht in der History dieses Servers",
            ProblemKind.WRONG_POSITION,
        ),
        ("XX000", "WalSndSegmentOpen", "etwas anderes", ProblemKind.OTHER),
        (
            "55000",
            "StartReplication",
            "logischer Replikations-Slot kann nicht f\u00fcr physische Replikation verwendet werden",
            ProblemKind.WRONG_SLOT,
        ),
        (
            "55000",
            "ReplicationSlotAcquire",
            "auf Replikations-Slot \u00bbwalproxy\u00ab kann nicht mehr zugegriffen werden",
            ProblemKind.SLOT_INVALIDATED,
        ),
        (
            "55000",
            "CheckSlotRequirements",
            "Replikations-Slots k\u00f6nnen nur verwendet werden, wenn max_replication_slots > 0",
            ProblemKind.NO_REPLICATION,
        ),
        ("55000", "pg_current_wal_lsn", "Wiederherstellung l\u00e4uft", ProblemKind.OTHER),
        ("55000", "another", "der logische Slot heisst logical wal_level", ProblemKind.OTHER),
        ("58P01", "XLogFileRead", "das angeforderte WAL-Segment wurde schon entfernt", ProblemKind.WAL_REMOVED),
    ],
)
def test_a_refused_command_is_recognised_in_any_language(
    sqlstate: str, routine: str, text: str, kind: ProblemKind
) -> None:
    problem = problem_of_error("stream TLI 1", sqlstate, f"FEHLER:  {text}", routine)
    assert (problem.kind, problem.sqlstate) == (kind, sqlstate), problem.message
    assert text in problem.message
