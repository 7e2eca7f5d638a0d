"""HTTP clients that send as many requests as they can: commits go on, and the log has their address."""

import http.client
import socket
import subprocess
import sys
import threading

from tests.integration.conftest import NEWEST, NewStand
from tests.integration.refusals.refusal_fixtures import log_of
from walproxy.lab.testing import hostile_http

REQUESTS = 1600
PIPELINED = b"GET /metrics HTTP/1.1\r\nHost: [::1]\r\n\r\n" * REQUESTS
# While the answers are sent, which needs seconds within the share, a busy machine still commits more. Without it: 1.
COMMITS = 10


def read_answers(port: int, answered: list[int]) -> None:
    """Send the requests in one write; count the answers."""
    with socket.create_connection(("127.0.0.1", port), timeout=300) as client, client.makefile("rb") as stream:
        client.sendall(PIPELINED)
        while answered[0] < REQUESTS and (line := stream.readline()):
            answered[0] += line.endswith(b"HTTP/1.1 200 OK\r\n")


@NEWEST
def test_while_pipelined_requests_are_answered_commits_go_on(new_stand: NewStand) -> None:
    stand = new_stand().serve()
    stand.commit(1)
    daemons = [stand.proxy, stand.safekeepers[1], stand.safekeepers[2]]
    counts = [[0] for _ in daemons]
    clients = [
        threading.Thread(target=read_answers, args=(daemon.http_port, count))
        for daemon, count in zip(daemons, counts, strict=True)
    ]
    for client in clients:
        client.start()
    commits = 0
    while any(client.is_alive() for client in clients):
        stand.commit(2 + commits)
        commits += 1
    assert counts == [[REQUESTS]] * 3
    assert commits >= COMMITS
    assert "limiting HTTP to 10% of this process's time: 127.0.0.1 used 100% of that" in log_of(stand.proxy)
    assert log_of(stand.proxy).count(": elected by ") == 1
    stand.verify()


@NEWEST
def test_beside_many_hostile_connections_another_client_is_answered(new_stand: NewStand) -> None:
    stand = new_stand().serve()
    stand.commit(1)
    port = stand.proxy.http_port
    command = [sys.executable, hostile_http.__file__, "pipelined", "200", "60", f"127.0.0.1:{port}"]
    hostile = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        for number in range(2, 12):
            stand.commit(number)
            other = http.client.HTTPConnection("127.0.0.1", port, timeout=30, source_address=("127.0.0.2", 0))
            other.request("GET", "/metrics")
            assert other.getresponse().status == 200
            other.close()
        assert hostile.poll() is None
    finally:
        hostile.kill()
        hostile.wait()
    assert log_of(stand.proxy).count(": elected by ") == 1
    stand.verify()
