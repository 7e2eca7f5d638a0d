"""What the text of a failed connection means, and the advice that follows it."""

import pytest

from walproxy.postgres.problems import ProblemKind, problem_of_connect

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
