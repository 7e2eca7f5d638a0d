"""Which input a URL of safekeepers names, and what is pickled of it. The rest needs a cluster."""

import pickle
import re

import pytest
from psycopg.conninfo import conninfo_to_dict

from safekeeper.base.errors import ConfigurationError
from walproxy.pipeline.input.opening import connection_string, open_input
from walproxy.wal_sources.source import SourceUnavailable


def test_the_url_becomes_a_connection_string_of_libpq() -> None:
    url = "safekeeper://one:5433,[::1]:5434/?user=reader&password=a%26b%3D&sslmode=verify-full"
    listed, conninfo = connection_string(url, {"sslrootcert": "/ca.pem"})
    assert listed == "one:5433,[::1]:5434"
    assert conninfo_to_dict(conninfo) == {
        "host": "one,::1",
        "port": "5433,5434",
        "user": "reader",
        "password": "a&b=",
        "sslmode": "verify-full",
        "sslrootcert": "/ca.pem",
        "connect_timeout": "3",
    }


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("safekeeper://", "safekeeper:// lacks a host: write safekeeper://HOST:PORT"),
        ("safekeeper://one", "'one' is not an address"),
        ("safekeeper://one:5433,", "lacks a host"),
        ("safekeeper://me:secret@one:5433", "the input's URL has more than hosts before its parameters: write"),
        ("safekeeper://one:5433/base", "the input's URL has more than hosts"),
        ("safekeeper://one:5433?user", "parameters are written ?KEY=VALUE&KEY=VALUE"),
        ("safekeeper://one:5433?host=two", "takes no parameter host: leave it out"),
        ("safekeeper://one:5433?user=me&secret=hidden", "libpq does not accept all of user, secret"),
    ],
)
def test_a_url_that_cannot_be_used_is_reported_without_its_secrets(url: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(problem)) as caught:
        open_input(url)
    assert "hidden" not in str(caught.value)
    assert "secret@" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_input_is_pickled_as_what_it_was_opened_with_and_shows_no_password() -> None:
    wal_input = pickle.loads(pickle.dumps(open_input("safekeeper://127.0.0.1:1?password=x", {"user": "me"})))
    assert wal_input.name == "the safekeepers 127.0.0.1:1"
    with pytest.raises(SourceUnavailable, match=r"the safekeeper 127\.0\.0\.1:1: .*refused"):
        wal_input.origin()
