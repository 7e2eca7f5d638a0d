"""Which hosts a connection string names, and whose turn it is."""

from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from safekeeper.base.errors import ConfigurationError, PrimaryRefused
from walproxy.postgres.hosts import REFUSED_RETRY_S, HostRota, HostState, PrimaryHost, primary_hosts

VARIABLES = ("PGHOST", "PGHOSTADDR", "PGPORT", "PGTARGETSESSIONATTRS", "PGSERVICE", "PGSERVICEFILE", "PGDATABASE")


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def split(conninfo: str) -> list[dict[str, object]]:
    return [dict(conninfo_to_dict(host.conninfo)) for host in primary_hosts(conninfo)]


@pytest.mark.parametrize("conninfo", ["", "host=db1", "host=db1 target_session_attrs=read-write", "service=main"])
def test_a_single_host_keeps_its_connection_string(conninfo: str) -> None:
    assert [host.conninfo for host in primary_hosts(conninfo)] == [conninfo]


@pytest.mark.parametrize(
    "conninfo",
    [
        "host=old,new port=5432,5433 user=walproxy password='a b' target_session_attrs=read-write",
        "postgresql://walproxy:a%20b@old:5432,new:5433/?target_session_attrs=read-write",
    ],
)
def test_each_host_gets_its_own_port_and_everything_else(conninfo: str) -> None:
    shared = {"user": "walproxy", "password": "a b", "target_session_attrs": "read-write"}
    assert split(conninfo) == [{**shared, "host": "old", "port": "5432"}, {**shared, "host": "new", "port": "5433"}]
    assert [host.name for host in primary_hosts(conninfo)] == ["old:5432", "new:5433"]


def test_addresses_and_one_port_for_all_are_spread_as_libpq_spreads_them() -> None:
    hosts = primary_hosts("host=old,new hostaddr=10.0.0.1,::1 port=6000")
    assert [host.name for host in hosts] == ["old:6000", "new:6000"]
    assert split("hostaddr=10.0.0.1,::1")[1]["hostaddr"] == "::1"
    assert [host.name for host in primary_hosts("hostaddr=10.0.0.1,::1")] == ["10.0.0.1:5432", "[::1]:5432"]
    assert [host.name for host in primary_hosts("host=/run/pg,db2")] == ["/run/pg:5432", "db2:5432"]


def test_a_host_that_is_named_twice_is_one() -> None:
    assert len(primary_hosts("host=db1,db1,db2")) == 2


def test_the_environment_counts_where_the_string_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "old,new")
    monkeypatch.setenv("PGPORT", "1,2")
    monkeypatch.setenv("PGTARGETSESSIONATTRS", "read-write")
    assert [host.name for host in primary_hosts("user=walproxy")] == ["old:1", "new:2"]
    assert split("user=walproxy")[0]["target_session_attrs"] == "read-write"
    monkeypatch.setenv("PGPORT", "3")
    assert [host.name for host in primary_hosts("host=other")] == ["other:3"]


def test_a_service_of_the_environment_counts_and_one_of_the_string_is_left_to_libpq(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "services"
    file.write_text("[main]\nhost=old,new\nport=7000\n")
    monkeypatch.setenv("PGSERVICEFILE", str(file))
    assert len(primary_hosts("service=main")) == 1
    monkeypatch.setenv("PGSERVICE", "main")
    assert [host.name for host in primary_hosts("user=walproxy")] == ["old:7000", "new:7000"]


@pytest.mark.parametrize("attrs", ["any", "primary", "prefer-standby"])
def test_a_standby_is_passed_over_here_and_not_by_libpq(attrs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGTARGETSESSIONATTRS", "read-write")
    assert {host["target_session_attrs"] for host in split(f"host=a,b target_session_attrs={attrs}")} == {"any"}


@pytest.mark.parametrize(
    ("conninfo", "reason"),
    [
        ("host=a,b port=1,2,3", "3 values of port for 2 hosts"),
        ("host=a port=1,2", "2 values of port for 1 host$"),
        ("host=a,b,c hostaddr=10.0.0.1,10.0.0.2", "2 values of hostaddr for 3 hosts"),
        ("host=a target_session_attrs=standby", "target_session_attrs=standby asks for a standby.*: use read-write"),
        ("host=a,b target_session_attrs=read-only", "target_session_attrs=read-only asks for a standby"),
        ("host=a,b target_session_attrs=best", "target_session_attrs=best is not a value that libpq accepts"),
        ("host", 'connection string is wrong: missing "="'),
    ],
)
def test_a_string_that_can_name_no_primary_is_a_configuration_error_of_one_line(conninfo: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason) as caught:
        primary_hosts(conninfo)
    assert "\n" not in str(caught.value)


def rota(*names: str) -> HostRota:
    return HostRota([PrimaryHost(name, f"host={name}") for name in names])


def turns(hosts: HostRota, now: float = 0.0) -> str:
    """Return the names of the rest of a round."""
    names = ""
    while (candidate := hosts.next(now)) is not None:
        names += candidate.host.name
        if candidate.state is not HostState.REFUSED:
            hosts.failed(HostState.UNREACHABLE, "nobody there")
    return names


def test_a_round_tries_each_host_once_in_order() -> None:
    hosts = rota("a", "b", "c")
    assert turns(hosts) == "abc"
    assert turns(hosts) == "abc"
    assert hosts.problem() == "a: nobody there; b: nobody there; c: nobody there"


def test_a_round_begins_with_the_host_that_worked_last() -> None:
    hosts = rota("a", "b", "c")
    hosts.next(0.0)
    hosts.failed(HostState.UNREACHABLE, "nobody there")
    hosts.next(0.0)
    hosts.connected()
    assert hosts.problem() == ""
    hosts.works()
    hosts.failed(HostState.UNREACHABLE, "gone")
    assert hosts.next(0.0) is None  # A pause comes first, for it may have been a restart.
    assert turns(hosts) == "bca"


def test_a_refused_host_is_tried_again_after_a_while_and_after_all_others() -> None:
    hosts = rota("a", "b")
    hosts.next(0.0)
    hosts.refused("old", 0.0)
    assert turns(hosts) == "b"
    assert turns(hosts, REFUSED_RETRY_S / 2) == "b"
    assert turns(hosts, REFUSED_RETRY_S) == "b"  # Who is in a round is decided when it begins.
    assert turns(hosts, REFUSED_RETRY_S) == "ba"


def test_only_when_every_host_is_refused_is_there_a_verdict() -> None:
    hosts = rota("a", "b")
    hosts.next(0.0)
    hosts.refused("it is old", 0.0)
    assert hosts.verdict() is None
    hosts.next(0.0)
    hosts.failed(HostState.STANDBY, "in recovery")
    assert hosts.verdict() is None
    hosts.refused("its login fails", 0.0, ConfigurationError.exit_code)
    verdict = hosts.verdict()
    assert isinstance(verdict, PrimaryRefused)
    assert str(verdict) == "every host is refused: a: it is old; b: its login fails"
    # A host that is tried again may serve after all.
    turns(hosts, REFUSED_RETRY_S)
    hosts.connected()
    assert hosts.verdict() is None


def test_hosts_that_no_configuration_lets_in_are_a_configuration_error() -> None:
    hosts = rota("a", "b")
    for _ in range(2):
        hosts.next(0.0)
        hosts.refused("its login fails", 0.0, ConfigurationError.exit_code)
    assert isinstance(hosts.verdict(), ConfigurationError)
