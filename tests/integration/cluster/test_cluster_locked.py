"""A whole cluster behind every lock at once: commits, a standby and pg_receivewal, and clients that must be refused.

Each wrong credential is tried while commits flow. It is refused with one line on each side, and nothing else happens:
no other term, no connection lost. At the end standby, pg_receivewal and safekeepers have what the primary has.
"""

import itertools
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from safekeeper.net.tls import ClientTls
from safekeeper.peers.peer_auth import NONCE_BYTES, Challenge, Hello, ProposerSide, Reason, Refused
from tests.integration.cluster.cluster_fixtures import CLUSTER_SETTINGS, Load, bulk, field_of, wait_for
from tests.integration.cluster.intruders import (
    Impostor,
    Prover,
    Raw,
    hung_up,
    knock,
    log_in,
    passes_on,
    presents,
    reflects,
)
from tests.integration.cluster.locked_fixtures import (
    ELSEWHERE,
    PASSWORDS,
    SECRET,
    LockedCluster,
    context_of,
    has_tls,
    make_locked,
    undisturbed,
    warned_once,
)
from tests.integration.conftest import SERVERS
from tests.integration.serving.serve_fixtures import ReceiveWal, assert_equal_to_primary, wait_for_feeder
from tests.scratch import scratch_folder
from tests.unit.certificates import Authority
from walproxy.postgres.local_server import LocalPostgres, ServerBinaries

WITH_TLS = [major for major, binaries in SERVERS.items() if has_tls(binaries)]
pytestmark = [
    pytest.mark.skipif(not WITH_TLS, reason="no PostgreSQL server here was built with TLS"),
    pytest.mark.parametrize("major", WITH_TLS[-1:] or [0], indirect=True, ids=lambda major: f"pg{major}"),
]
PASSWORD = PASSWORDS["standby1"]
# A listener answers ten strangers a minute: the intruders alternate.
_turns = itertools.cycle((1, 2, 3))


class House(NamedTuple):
    """The cluster, what reads from it, the load on it, and a CA that is not trusted."""

    cluster: LockedCluster
    standby: LocalPostgres
    receiver: ReceiveWal
    load: Load
    stranger: Authority


@pytest.fixture(scope="module")
def house(servers: dict[int, ServerBinaries], major: int, small_template: Path) -> Iterator[House]:
    with (
        scratch_folder() as folder,
        make_locked(servers[major], small_template, folder, CLUSTER_SETTINGS) as cluster,
    ):
        cluster.lock()
        cluster.start_gated()
        standby = cluster.add_standby("standby1", 1, 2)
        with ReceiveWal(servers[major], cluster, 3, folder / "received") as receiver:
            with cluster.load() as load:
                yield House(cluster, standby, receiver, load, Authority(cluster.keys, "stranger"))
            assert_equal_to_primary(cluster, standby)
            receiver.wait_for(cluster, cluster.commit_lsn_of_all())
            for process in (*cluster.safekeepers.values(), cluster.proxy):
                text = process.log_path.read_text()
                # Where the disks are slow, the members that receive 64 MiB at once reply late.
                unexpected = [line for line in text.splitlines() if "commits wait: no quorum" not in line]
                assert not [line for line in unexpected if "Traceback" in line or " ERROR " in line]
                assert not [secret for secret in (SECRET, *PASSWORDS.values()) if secret in text]


def test_everybody_who_belongs_is_in_over_tls(house: House) -> None:
    cluster = house.cluster
    rows = cluster.postgres.execute(
        "SELECT usename, ssl, sync_state FROM pg_stat_replication JOIN pg_stat_ssl USING (pid)"
    )
    assert [row for row in rows if row[0] == "walproxy"] == [("walproxy", True, "sync")]
    feeder = wait_for_feeder(cluster, house.standby)
    ((conninfo,),) = house.standby.execute("SELECT conninfo FROM pg_stat_wal_receiver")
    assert "sslmode=verify-full" in conninfo and "channel_binding=require" in conninfo

    def readers(safekeeper_id: int, name: str) -> list[str]:
        return [reader[name] for reader in field_of(cluster.safekeepers[safekeeper_id], "readers")]

    # A walreceiver calls itself streaming before the safekeeper has its command.
    wait_for(lambda: readers(feeder, "user") == ["standby1"], "the standby is a reader")
    with undisturbed(house.load):
        wait_for(lambda: readers(3, "application_name") == ["pg_receivewal"], "pg_receivewal is a reader")


# The replication listener.


class Login(NamedTuple):
    """A client that would stream WAL: how it tries, the reply, and the safekeeper's log line."""

    attempt: Callable[[House, int], str]
    reply: str
    logged: str


def by_libpq(**options: str) -> Callable[[House, int], str]:
    """Log in as standby1 does, but for these options."""
    return lambda house, i: log_in(house.cluster.standby_conninfo(i), replication="true", **options)


def with_certificate(
    name: str, *, stranger: bool = False, expired: bool = False, **options: str
) -> Callable[[House, int], str]:
    """Log in as standby1, with another certificate."""

    def attempt(house: House, i: int) -> str:
        authority = house.stranger if stranger else None
        cert, key = house.cluster.pair(name, authority=authority, expired=expired)
        return by_libpq(sslcert=str(cert), sslkey=str(key), **options)(house, i)

    return attempt


def raw(house: House, i: int) -> Raw:
    pair = house.cluster.pair("standby1")
    return Raw(house.cluster.pg_port(i), ClientTls(house.cluster.authority.ca, *pair).context)


def by_hand(password: str = PASSWORD, *, strips_plus: bool = False) -> Callable[[House, int], str]:
    """Log in with messages of its own."""

    def attempt(house: House, i: int) -> str:
        with raw(house, i) as client:
            return client.log_in("standby1", password, strips_plus=strips_plus)

    return attempt


def replayed(house: House, i: int) -> str:
    with raw(house, i) as client:
        assert client.log_in("standby1", PASSWORD) == "let in"
    with raw(house, i) as thief:
        return thief.log_in("standby1", PASSWORD, replayed=client.final)


def through_relay(house: House, i: int, authority: Authority | None = None) -> str:
    """Log in through a relay in between, which has a certificate of that CA, by default of the one that is trusted."""
    cluster = house.cluster
    onward = ClientTls(cluster.authority.ca, *cluster.pair("standby1")).context
    passes = passes_on(cluster.pg_port(i), onward, postgres=True)
    with Impostor(passes, context_of(cluster.pair("standby1", authority=authority)), postgres=True) as relay:
        return by_libpq(port=str(relay.port))(house, i)


WRONG_PASSWORD = 'password authentication failed for user "standby1"'
WRONG_NAME = 'the certificate is that of "standby2" (CN)'
TLS_ONLY = "this listener requires TLS"
IN_BETWEEN = "a third party may relay the connection"

LOGINS = {
    "wrong password": Login(by_libpq(password="wrong"), WRONG_PASSWORD, WRONG_PASSWORD),
    "empty password": Login(by_hand(""), WRONG_PASSWORD, WRONG_PASSWORD),
    "no password": Login(
        by_libpq(passfile="/nonexistent"), "no password supplied", "disconnected at the request for a password"
    ),
    "no SCRAM": Login(by_libpq(require_auth="md5"), "server requested SASL", "does not support SCRAM-SHA-256"),
    "unknown user": Login(
        with_certificate("nobody", user="nobody", password=PASSWORD),
        'password authentication failed for user "nobody"',
        'user "nobody" does not exist in pg_users',
    ),
    "plaintext": Login(by_libpq(sslmode="disable", channel_binding="disable"), TLS_ONLY, TLS_ONLY),
    "stripped channel binding": Login(by_hand(strips_plus=True), IN_BETWEEN, IN_BETWEEN),
    "replayed proof": Login(replayed, "another nonce", "another nonce"),
    "relay in between": Login(through_relay, IN_BETWEEN, IN_BETWEEN),
    "another user's certificate": Login(with_certificate("standby2"), WRONG_NAME, WRONG_NAME),
    "certificate of another CA": Login(with_certificate("standby1", stranger=True), "unknown ca", "not signed by a CA"),
    "expired certificate": Login(with_certificate("standby1", expired=True), "certificate expired", "it has expired"),
    "no certificate": Login(
        by_libpq(sslcert="/nonexistent", sslkey="/nonexistent"), "certificate required", "no client certificate"
    ),
}


@pytest.mark.parametrize("name", LOGINS)
def test_no_wrong_login_streams_wal(house: House, name: str) -> None:
    i, login = next(_turns), LOGINS[name]
    with undisturbed(house.load), warned_once(house.cluster.safekeepers[i].log_path, login.logged):
        reply = login.attempt(house, i)
    assert login.reply in reply and len(reply.splitlines()) == 1, reply


def test_a_client_that_checks_certificates_refuses_a_server_in_between(house: House) -> None:
    with undisturbed(house.load):
        assert "certificate verify failed" in through_relay(house, next(_turns), house.stranger)


# The proposers' listener.


class Knock(NamedTuple):
    """A proxy that would lead the cluster: its TLS and its secret, the reply, and the safekeeper's log line."""

    tls: Callable[[House], ClientTls | None]
    secret: str
    reply: str
    logged: str


def proxys(house: House) -> ClientTls:
    return ClientTls(house.cluster.authority.ca, *house.cluster.pair("proxy"))


def of_another_ca(house: House) -> ClientTls:
    return ClientTls(house.cluster.authority.ca, *house.cluster.pair("proxy", authority=house.stranger))


def expired(house: House) -> ClientTls:
    return presents(house.cluster.authority.ca, *house.cluster.pair("proxy", expired=True))


KNOCKS = {
    "wrong secret": Knock(
        proxys, SECRET + "!", "refuses the proof of the shared secret", "proof of the shared secret is wrong"
    ),
    "no secret": Knock(proxys, "", "set secret_file or WALPROXY_SECRET", "the proxy sends no proof of a shared secret"),
    "plaintext": Knock(lambda house: None, SECRET, "set the proxy's tls_ca", "the peer does not use TLS"),
    "no certificate": Knock(
        lambda house: ClientTls(house.cluster.authority.ca), SECRET, "set tls_cert", "no client certificate"
    ),
    "certificate of another CA": Knock(
        of_another_ca, SECRET, "does not trust the CA of this side's", "not signed by a CA"
    ),
    "expired certificate": Knock(expired, SECRET, "reports this side's certificate as expired", "it has expired"),
}


@pytest.mark.parametrize("name", KNOCKS)
def test_no_wrong_proxy_leads_the_cluster(house: House, name: str) -> None:
    i, (tls, secret, reply, logged) = next(_turns), KNOCKS[name]
    with undisturbed(house.load), warned_once(house.cluster.safekeepers[i].log_path, logged):
        answered = knock(house.cluster.port(i), tls(house), secret, i)
    assert reply in answered and len(answered.splitlines()) == 1, answered


def test_a_proof_that_was_recorded_proves_nothing_on_another_connection(house: House) -> None:
    i, context = next(_turns), proxys(house).context
    nonce = secrets.token_bytes(NONCE_BYTES)
    with undisturbed(house.load):
        with Prover(house.cluster.port(i), context) as proxy:
            side = ProposerSide(SECRET.encode(), i, nonce, proxy.certificate_der)
            recorded = side.receive(proxy.ask(side.begin()))
            assert recorded is not None
            side.receive(proxy.ask(recorded))
            assert side.done
        log = house.cluster.safekeepers[i].log_path
        with warned_once(log, "proof of the shared secret is wrong"), Prover(house.cluster.port(i), context) as thief:
            assert isinstance(thief.ask(Hello(nonce)), Challenge)
            assert thief.ask(recorded) == Refused(Reason.WRONG_PROOF)


def test_a_safekeeper_that_returns_our_own_proof_is_refused(house: House) -> None:
    tls = context_of(house.cluster.pair("safekeeper1"))
    with undisturbed(house.load), Impostor(reflects, tls) as false_safekeeper:
        assert "it does not belong to this cluster" in knock(false_safekeeper.port, proxys(house), SECRET)


def test_a_relay_in_between_with_a_certificate_of_our_ca_cannot_pass_on_a_proof(house: House) -> None:
    i, cluster = next(_turns), house.cluster
    passes = passes_on(cluster.port(i), proxys(house).context)
    with (
        undisturbed(house.load),
        warned_once(cluster.safekeepers[i].log_path, "or a third party relays the connection"),
        Impostor(passes, context_of(cluster.pair("proxy"))) as relay,
    ):
        assert "refuses the proof" in knock(relay.port, proxys(house), SECRET, i)


# HTTP, and addresses.


def status(*arguments: str, ca: Path) -> subprocess.CompletedProcess[str]:
    """Run `walproxy status`."""
    command = [sys.executable, "-m", "walproxy", "status", "--json", *arguments]
    environment = {**os.environ, "WALPROXY_TLS_CA": str(ca)}
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False, env=environment)


def test_the_pages_are_for_those_who_come_over_tls_and_trust_our_ca(house: House) -> None:
    cluster, (proxy,) = house.cluster, house.cluster.proxies
    with undisturbed(house.load):
        good = status("--url", proxy.url, ca=cluster.authority.ca)
        assert json.loads(good.stdout)["state"] == "streaming"
        for url, ca, part in (
            (proxy.url, house.stranger.ca, "name its CA with tls_ca"),
            (proxy.url.replace("https", "http"), cluster.authority.ca, "begins with https:// where http_tls is on"),
        ):
            bad = status("--url", url, ca=ca)
            assert bad.returncode == 1 and part in bad.stderr and len(bad.stderr.splitlines()) == 1, bad.stderr


@pytest.mark.parametrize("listener", ["proposers", "pg", "http"])
def test_a_connection_from_elsewhere_is_closed(house: House, listener: str) -> None:
    i = next(_turns)
    address = field_of(house.cluster.safekeepers[i], "addresses")[listener]
    option = {"proposers": "allow", "pg": "pg_allow", "http": "http_allow"}[listener]
    with undisturbed(house.load), warned_once(house.cluster.safekeepers[i].log_path, f"networks of {option}"):
        assert hung_up(int(address.rpartition(":")[2]), ELSEWHERE)


# The primary.


async def does_nothing(reader: object, writer: object) -> None:
    """For an impostor, while no real listener is there."""


def test_a_false_primary_gets_nothing_and_the_proxy_waits_for_the_right_one(house: House) -> None:
    cluster, (proxy,) = house.cluster, house.cluster.proxies
    false_one = context_of(cluster.pair("postgres", authority=house.stranger))
    log_begin = proxy.log_path.stat().st_size
    cluster.postgres.kill9()
    with Impostor(does_nothing, false_one, postgres=True, port=cluster.postgres.port):
        # Before that, the connection is lost, and the port is closed for a moment.
        with warned_once(proxy.log_path, "certificate verify failed", begin=log_begin, beside="no primary: "):
            cluster.wait_for_state("waiting_for_primary")
        second = cluster.make_proxy("walproxy-2", *cluster.credentials(), conninfo=cluster.proxy_conninfo())
        second.environment = proxy.environment
        second.start()
        wait_for(lambda: "certificate verify failed" in second.log_tail(), "a proxy that starts now waits, too")
        assert second.pid is not None
        second.kill9()
    cluster.postgres.start()
    cluster.wait_for_state("streaming")
    house.load.wait_for_commits()


# Between safekeepers.


def miss_wal(house: House, safekeeper_id: int, arguments: list[str]) -> None:
    """Let a safekeeper miss more WAL than the proxy's window has, and start it with these arguments."""
    cluster, process = house.cluster, house.cluster.safekeepers[safekeeper_id]
    process.kill9()
    cluster.postgres.execute(bulk(64))
    process.arguments = arguments
    process.start()


def test_a_safekeeper_pulls_over_tls_with_the_secret(house: House) -> None:
    cluster, process = house.cluster, house.cluster.safekeepers[1]
    miss_wal(house, 1, process.arguments)
    wait_for(lambda: cluster.member(1)["pulled_bytes"], "it pulls")
    wait_for(lambda: cluster.member(1)["state"] == "streaming", "it has caught up", 60.0)
    assert "could not pull WAL" not in process.log_path.read_text()
    assert "safekeeper 1 receives old WAL through this proxy" not in cluster.proxy.log_path.read_text()


def test_a_safekeeper_that_cannot_verify_the_others_is_fed_by_the_proxy(house: House) -> None:
    cluster, process = house.cluster, house.cluster.safekeepers[2]
    arguments = process.arguments
    index = next(i for i, word in enumerate(arguments) if word.startswith("tls_ca=")) - 1
    miss_wal(house, 2, arguments[:index] + arguments[index + 2 :])
    line = "safekeeper 2 receives old WAL through this proxy, it cannot pull it: "
    wait_for(lambda: line in cluster.proxy.log_path.read_text(), "the proxy feeds it")
    wait_for(lambda: cluster.member(2)["state"] == "streaming", "it has caught up", 60.0)
    assert cluster.member(2)["pulled_bytes"] == 0
    assert f"{line}the safekeepers require TLS" in cluster.proxy.log_path.read_text()
    process.kill9()
    process.arguments = arguments
    process.start()
    wait_for(lambda: cluster.member(2)["state"] == "streaming", "it is back")
