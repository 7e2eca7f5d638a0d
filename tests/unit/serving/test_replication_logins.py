"""Logins at the replication listener of a real process, by libpq: every right credential and every wrong one."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest

from safekeeper.peers.local_secret import LocalSecret
from safekeeper.serving.users import user_line
from tests.unit.certificates import Authority, Pair
from tests.unit.safekeeper_process import SafekeeperProcess

PASSWORD = "the password of standby1"
# What a client hears that was let in, and asks an empty safekeeper for something.
LET_IN = "this safekeeper does not have committed WAL yet"


class House(NamedTuple):
    """A safekeeper with users and a CA for clients, another one with the CA alone, and certificates."""

    authority: Authority
    client: Pair
    nameless: Pair
    strangers: Pair
    passwords: int
    certificates: int


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    directory = tmp_path_factory.mktemp("house")
    authority, other = Authority(directory), Authority(directory, "other")
    server = authority.sign("server")
    (directory / "users").write_text(f"{user_line('standby1', PASSWORD)}\n{user_line('standby2', PASSWORD)}\n")
    client, nameless = authority.sign("client", common_name="standby1"), authority.sign("nameless")
    strangers = other.sign("client", common_name="standby1")
    for pair in (client, nameless, strangers):
        pair.key.chmod(0o600)  # libpq refuses others.
    tls = ("-c", f"tls_cert={server.cert}", "-c", f"tls_key={server.key}", "--pg-listen", "127.0.0.1:0")
    users, client_ca = ("-c", f"pg_users={directory / 'users'}"), ("-c", f"pg_client_ca={authority.ca}")
    with (
        SafekeeperProcess(directory / "sk1", *tls, *users) as one,
        SafekeeperProcess(directory / "sk2", *tls, *client_ca, safekeeper_id=2) as two,
    ):
        yield House(authority, client, nameless, strangers, pg_port(one), pg_port(two))


@pytest.fixture(scope="module")
def open_to_nobody(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SafekeeperProcess]:
    """A safekeeper on loopback without any option of users."""
    with SafekeeperProcess(tmp_path_factory.mktemp("alone") / "sk", "--pg-listen", "127.0.0.1:0") as process:
        yield process


def pg_port(process: SafekeeperProcess) -> int:
    return int(process.get("/status")[1]["addresses"]["pg"].rpartition(":")[2])


def log_in(port: int, user: str = "standby1", **options: str) -> str:
    """Log in as a walreceiver does and ask for one thing; return what libpq says to that."""
    given = {"host": "127.0.0.1", "port": str(port), "user": user, "dbname": "replication", "replication": "true"}
    given |= {"connect_timeout": "10", "passfile": "/nonexistent"}
    try:
        with psycopg.connect(psycopg.conninfo.make_conninfo("", **{**given, **options}), autocommit=True) as connection:
            connection.execute("SHOW wal_segment_size")
            return "answered"
    except psycopg.Error as error:
        return str(error)


def verify(house: House) -> dict[str, str]:
    return {"sslmode": "verify-full", "sslrootcert": str(house.authority.ca)}


def presents(pair: Pair) -> dict[str, str]:
    return {"sslcert": str(pair.cert), "sslkey": str(pair.key)}


@pytest.mark.parametrize("binding", ["require", "prefer", "disable"])
def test_the_right_password_over_tls_is_let_in(house: House, binding: str) -> None:
    assert log_in(house.passwords, password=PASSWORD, channel_binding=binding, **verify(house)).startswith(LET_IN)


@pytest.mark.parametrize(
    ("user", "options", "said"),
    [
        ("standby1", {"password": "wrong"}, 'password authentication failed for user "standby1"'),
        ("nobody", {"password": PASSWORD}, 'password authentication failed for user "nobody"'),
        ("standby1", {}, "no password supplied"),
        ("standby1", {"password": PASSWORD, "sslmode": "disable"}, "requires TLS"),
    ],
)
def test_without_the_right_password_nobody_is_let_in(
    house: House, user: str, options: dict[str, str], said: str
) -> None:
    assert said in log_in(house.passwords, user, **{**verify(house), **options})


def test_a_client_certificate_that_names_the_user_is_let_in(house: House) -> None:
    assert log_in(house.certificates, **verify(house), **presents(house.client)).startswith(LET_IN)


def test_a_client_certificate_lets_nobody_else_in(house: House) -> None:
    said = log_in(house.certificates, "standby2", **verify(house), **presents(house.client))
    assert 'certificate authentication failed for user "standby2"' in said


def test_a_client_certificate_without_a_name_lets_nobody_in(house: House) -> None:
    for user in ("standby1", "127.0.0.1", " "):
        said = log_in(house.certificates, user, **verify(house), **presents(house.nameless))
        assert "authentication failed" in said or "no user" in said


def test_without_a_certificate_of_the_ca_there_is_no_tls(house: House) -> None:
    nothing = {"sslcert": "/nonexistent", "sslkey": "/nonexistent"}
    assert "certificate required" in log_in(house.certificates, **verify(house), **nothing)
    assert "unknown ca" in log_in(house.certificates, **verify(house), **presents(house.strangers))
    plaintext = log_in(house.certificates, sslmode="disable")
    assert "requires TLS" in plaintext


def test_a_client_that_checks_it_does_not_take_somebody_else_for_the_safekeeper(house: House, tmp_path: Path) -> None:
    other = Authority(tmp_path)
    said = log_in(house.passwords, password=PASSWORD, sslmode="verify-full", sslrootcert=str(other.ca))
    assert "certificate verify failed" in said


@pytest.mark.parametrize("options", [{}, {"password": "wrong"}, {"password": "x" * 64, "user": "postgres"}])
def test_on_loopback_without_users_other_users_of_the_machine_are_refused(
    open_to_nobody: SafekeeperProcess, options: dict[str, str]
) -> None:
    said = log_in(pg_port(open_to_nobody), **options)
    assert "no password supplied" in said or "password authentication failed" in said
    passfile = LocalSecret().passfile
    open_to_nobody.wait_for_line(f"; the password is in {passfile}: connect with passfile={passfile}")


@pytest.mark.parametrize("user", ["standby1", "anybody at all"])
def test_on_loopback_without_users_the_password_file_of_this_user_lets_in(
    open_to_nobody: SafekeeperProcess, user: str
) -> None:
    passfile = LocalSecret().passfile
    assert passfile.stat().st_mode & 0o777 == 0o600
    assert log_in(pg_port(open_to_nobody), user, passfile=str(passfile)).startswith(LET_IN)
    # Who has it can read WAL, and not lead the cluster.
    assert LocalSecret().value not in passfile.read_bytes()


def test_a_new_local_secret_is_a_new_password_after_sighup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with SafekeeperProcess(tmp_path / "sk", "--pg-listen", "127.0.0.1:0") as process:
        passfile = LocalSecret().passfile
        before = passfile.read_bytes()
        LocalSecret().file.unlink()
        process.signal(signal.SIGHUP)
        process.wait_for_line("changed: the users, the shared secret")
        assert passfile.read_bytes() != before
        assert log_in(pg_port(process), passfile=str(passfile)).startswith(LET_IN)
        old = before.decode().strip().rpartition(":")[2]
        assert "password authentication failed" in log_in(pg_port(process), password=old)
