"""For which hosts, and with which password, a request is answered."""

import base64

import pytest

from safekeeper.base.settings import Secret
from safekeeper.net.http_access import AccessVerdict, HttpAccess
from safekeeper.peers.shared_secret import SharedSecret

PASSWORD = "correct horse battery staple"
OWN = HttpAccess(hosts=frozenset({"walproxy1", "sk1.example.com"}))
LOCKED = HttpAccess(password=SharedSecret(None, Secret(PASSWORD.encode())), probes=("/healthz",))


def basic(credentials: str) -> bytes:
    return b"Basic " + base64.b64encode(credentials.encode())


@pytest.mark.parametrize(
    ("host", "is_accepted"),
    [
        *(
            (host, True)
            for host in ("127.0.0.1", "127.0.0.1:7667", "10.1.2.3:80", "[::1]", "[::1]:7667", "[fe80::1]:1")
        ),
        *((host, True) for host in ("localhost", "localhost:7667", "LocalHost.", "localhost.:7667")),
        *((host, True) for host in ("walproxy1", "WALPROXY1:7667", "sk1.example.com.", "db1:1", "DB1")),
        *((host, False) for host in ("evil.example", "evil.example:7667", "127.0.0.1.evil.example", "localhost.evil")),
        # No browser sends these: it has made an IP address of them, or refuses them.
        *((host, False) for host in ("", ":7667", "127.1", "2130706433", "0x7f.1", "::1", "[::1", "[evil]", "[]")),
        *(
            (host, False)
            for host in ("x@127.0.0.1", "127.0.0.1@evil", "127.0.0.1:7667:1", "127.0.0.1:80x", "127.0.0.1/")
        ),
        *((host, False) for host in ("walproxy1.evil.example", "walproxy", "localhost,evil", "127.0.0.1 evil", "\xff")),
    ],
)
def test_a_request_is_answered_for_addresses_localhost_and_known_names(host: str, is_accepted: bool) -> None:
    expected = AccessVerdict.FULL if is_accepted else AccessVerdict.MISDIRECTED
    assert OWN.judge("Db1", "", [(b"host", host.encode("latin-1"))], "/") is expected


def test_the_host_of_the_target_counts_before_that_of_the_header() -> None:
    assert OWN.judge("", "evil.example:80", [(b"host", b"127.0.0.1")], "/") is AccessVerdict.MISDIRECTED
    assert OWN.judge("", "127.0.0.1:80", [(b"host", b"evil.example")], "/") is AccessVerdict.FULL


def test_a_request_without_host_is_answered_because_no_browser_sends_it() -> None:
    assert OWN.judge("", "", [], "/") is AccessVerdict.FULL


@pytest.mark.parametrize(
    ("authorization", "verdict"),
    [
        (basic(f"prometheus:{PASSWORD}"), AccessVerdict.FULL),
        (basic(f":{PASSWORD}"), AccessVerdict.FULL),
        (basic(f"prometheus:{PASSWORD}").replace(b"Basic", b"bAsIc"), AccessVerdict.FULL),
        (b"", AccessVerdict.NO_PASSWORD),
        (basic(f"prometheus:{PASSWORD} "), AccessVerdict.WRONG_PASSWORD),
        (basic("prometheus:"), AccessVerdict.WRONG_PASSWORD),
        (basic(PASSWORD), AccessVerdict.WRONG_PASSWORD),
        (b"Bearer " + PASSWORD.encode(), AccessVerdict.WRONG_PASSWORD),
        (b"Basic", AccessVerdict.WRONG_PASSWORD),
        (b"Basic \xff\xfe", AccessVerdict.WRONG_PASSWORD),
        (b"Basic " + PASSWORD.encode(), AccessVerdict.WRONG_PASSWORD),
    ],
)
def test_a_page_needs_the_password(authorization: bytes, verdict: AccessVerdict) -> None:
    headers = [(b"host", b"127.0.0.1"), *([(b"authorization", authorization)] if authorization else [])]
    assert LOCKED.judge("", "", headers, "/status") is verdict


def test_a_probe_has_its_status_code_without_the_password_and_nothing_with_a_wrong_one() -> None:
    assert LOCKED.judge("", "", [], "/healthz") is AccessVerdict.STATUS_ONLY
    assert LOCKED.judge("", "", [(b"authorization", basic("x:y"))], "/healthz") is AccessVerdict.WRONG_PASSWORD
    assert LOCKED.judge("", "", [(b"host", b"evil")], "/healthz") is AccessVerdict.MISDIRECTED
