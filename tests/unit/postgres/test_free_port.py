"""Ports for servers of one's own: none is handed out twice in a row, and they do not run out."""

import contextlib
import socket

import pytest

from walproxy.postgres import local_server
from walproxy.postgres.local_server import free_port


def test_ports_are_handed_out_again_when_most_of_the_share_was_and_not_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_server, "_ports", range(31_800, 31_832))
    monkeypatch.setattr(local_server, "_handed_out", {})
    ports = [free_port() for _ in range(200)]
    assert set(ports) <= set(range(31_800, 31_832))
    for index, port in enumerate(ports):
        assert port not in ports[index + 1 : index + 9], "the newer half is kept"


def test_a_share_in_which_every_port_is_in_use_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_server, "_ports", range(31_840, 31_843))
    monkeypatch.setattr(local_server, "_handed_out", {})
    with contextlib.ExitStack() as stack:
        for port in range(31_840, 31_843):
            stack.enter_context(socket.create_server(("127.0.0.1", port)))
        with pytest.raises(OSError, match=r"no port of 127\.0\.0\.1 from 31840 to 31842 is free"):
            free_port()
