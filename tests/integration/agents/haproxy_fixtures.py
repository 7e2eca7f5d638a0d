"""Debian's HAProxy, configured as in front of Patroni, with the shorter intervals that docs/reference/rest.md names."""

import re
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.waiting import wait_for
from walproxy.postgres.local_server import free_port

_HOST = "127.0.0.1"
_START_TIMEOUT_S = 20.0

_PAGE = Path(__file__).parents[3] / "docs" / "reference" / "rest.md"
_USUAL, _SHORT = "inter 3s fall 3 rise 2", "inter 500ms fall 2 rise 1"
# What the examples of older versions of Patroni have: OPTIONS / of HTTP/1.0, and any code from 200 to 399.
_OLD = """\

listen old
    bind *:5002
    option httpchk
    default-server inter 3s fall 3 rise 2 on-marked-down shutdown-sessions
    server
"""


class Backend(NamedTuple):
    """A server behind HAProxy: its name, its PostgreSQL's port and its agent's."""

    name: str
    port: int
    rest_port: int


class Ports(NamedTuple):
    """The ports of HAProxy."""

    primary: int
    replicas: int
    old: int


def _configuration(ports: Ports, backends: Sequence[Backend]) -> str:
    """Return the configuration of docs/reference/rest.md, Patroni's users', with other addresses and intervals only."""
    page = _PAGE.read_text()
    example = re.search(r"^```\n(global\n.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert example is not None and f"`{_SHORT}`" in page
    text = example[1] + _OLD
    assert text.count(_USUAL) == 3
    text = text.replace(_USUAL, _SHORT)
    for written, port in (("*:5000", ports.primary), ("*:5001", ports.replicas), ("*:5002", ports.old)):
        assert text.count(f"bind {written}\n") == 1
        text = text.replace(f"bind {written}\n", f"bind {_HOST}:{port}\n")
    servers = "".join(
        f"    server {each.name} {_HOST}:{each.port} maxconn 100 check port {each.rest_port}\n" for each in backends
    )
    return re.sub(r"(?:^    server.*\n)+", servers, text, flags=re.MULTILINE)


@contextmanager
def haproxy(folder: Path, backends: Sequence[Backend]) -> Iterator[Ports]:
    """Run HAProxy in front of these servers."""
    program = shutil.which("haproxy", path="/usr/sbin:/usr/bin:/usr/local/sbin")
    if program is None:
        pytest.skip("there is no haproxy")
    ports = Ports(free_port(), free_port(), free_port())
    path, log_path = folder / "haproxy.cfg", folder / "haproxy.log"
    path.write_text(_configuration(ports, backends))
    with log_path.open("wb") as log:
        process = subprocess.Popen([program, "-db", "-f", str(path)], stdout=log, stderr=subprocess.STDOUT)
    try:

        def accepts() -> bool:
            assert process.poll() is None, log_path.read_text()
            with socket.socket() as probe:
                return probe.connect_ex((_HOST, ports.primary)) == 0

        wait_for(accepts, "HAProxy accepts connections", _START_TIMEOUT_S)
        yield ports
    finally:
        process.terminate()
        process.wait(_START_TIMEOUT_S)
