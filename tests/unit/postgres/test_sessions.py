"""The settings of our SQL sessions, and that one module alone opens them."""

import ast

import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.unit.test_layers import MODULES, ROOT
from walproxy.postgres.sessions import later_settings, session_conninfo, with_settings

# What connects besides: replication, safekeepers as servers, and clients of clusters that the lab and commands make.
OTHERS = {
    "walproxy.postgres.verbose_connect": "the function that those below connect by",
    "walproxy.postgres.command_connection": "replication commands",
    "walproxy.postgres.bounded_sql": "a server that may hang, with the settings of `session_conninfo`",
    "walproxy.wal_sources.wal_fetch_client": "a safekeeper's WAL",
    "walproxy.postgres.local_server": "a server of ours, for its users: the lab, tests, a restored page",
}
CONNECTS = {"connect", "connect_start"}
OURS = {"start_verbose", "connect_blocking"}
LIBRARIES = {"psycopg", "AsyncConnection", "VerboseConnection", "Connection", "PGconn", "asyncpg"}


def connects(module: str) -> bool:
    """Whether a module calls a function of a driver that connects."""
    for node in ast.walk(ast.parse(MODULES[module].read_text(), str(MODULES[module].relative_to(ROOT)))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in OURS:
            return True
        if isinstance(node, ast.Attribute) and node.attr in CONNECTS:
            of = node.value
            name = of.id if isinstance(of, ast.Name) else of.attr if isinstance(of, ast.Attribute) else ""
            if name in LIBRARIES:
                return True
    return False


def test_one_module_opens_every_sql_session() -> None:
    ours = [each for each in MODULES if not each.startswith(("walproxy.lab.", "walproxy.testing"))]
    assert {each for each in ours if connects(each)} == {"walproxy.postgres.sessions", *OTHERS}


def settings_of(conninfo: str) -> list[str]:
    return str(conninfo_to_dict(conninfo)["options"]).split("-c ")[1:]


def test_settings_of_a_session_come_after_those_of_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGOPTIONS", "-c search_path=evil")
    assert settings_of(session_conninfo("host=db", "us"))[:2] == [
        "search_path=evil ",
        "search_path=pg_catalog,pg_temp ",
    ]
    given = session_conninfo("host=db options='-c lock_timeout=1' application_name=other client_encoding=latin1", "us")
    assert "search_path=evil " not in settings_of(given)
    assert settings_of(given)[0] == "lock_timeout=1 "
    assert "lock_timeout=0 " in settings_of(given)
    words = conninfo_to_dict(given)
    assert (words["application_name"], words["client_encoding"], words["dbname"]) == ("us", "UTF8", "postgres")


def test_only_a_session_that_writes_is_not_read_only() -> None:
    assert "default_transaction_read_only=on" in session_conninfo("host=db", "us")
    assert "default_transaction_read_only" not in session_conninfo("host=db", "us", writes=True)


def test_a_setting_with_a_space_is_one_word() -> None:
    assert with_settings("-c a=b", {"c": "d e\\f"}) == "-c a=b -c c=d\\ e\\\\f"


@pytest.mark.parametrize(
    ("server_version", "settings"),
    [(130021, []), (140009, ["idle_session_timeout"]), (170002, ["idle_session_timeout", "transaction_timeout"])],
)
def test_settings_that_a_server_does_not_have_are_left_out(server_version: int, settings: list[str]) -> None:
    statement = (later_settings(server_version) or b"").decode()
    assert [name for name in ("idle_session_timeout", "transaction_timeout") if name in statement] == settings


def test_a_read_only_session_is_not_taken_for_a_server_that_permits_no_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """libpq looks at default_transaction_read_only for read-write, and at pg_is_in_recovery() for primary."""
    wanted = "target_session_attrs"
    text = "host=a,b target_session_attrs=read-write"
    assert conninfo_to_dict(session_conninfo(text, "x"))[wanted] == "primary"
    assert conninfo_to_dict(session_conninfo(text, "x", writes=True))[wanted] == "read-write"
    assert wanted not in conninfo_to_dict(session_conninfo("host=a", "x"))
    monkeypatch.setenv("PGTARGETSESSIONATTRS", "read-write")
    assert conninfo_to_dict(session_conninfo("host=a", "x"))[wanted] == "primary"


def test_a_service_may_want_a_server_that_permits_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only libpq can read it, and a value of the connection string is above it."""
    wanted = "target_session_attrs"
    assert conninfo_to_dict(session_conninfo("service=db", "x"))[wanted] == "primary"
    assert conninfo_to_dict(session_conninfo("service=db target_session_attrs=any", "x"))[wanted] == "any"
    assert wanted not in conninfo_to_dict(session_conninfo("service=db", "x", writes=True))
    assert wanted not in conninfo_to_dict(session_conninfo("host=a", "x"))
    monkeypatch.setenv("PGSERVICE", "db")
    assert conninfo_to_dict(session_conninfo("host=a", "x"))[wanted] == "primary"
