"""A rebootstrap against safekeepers that are there, gone, silent, somebody else, or still served by a proxy."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

import walproxy.rebootstrap
from safekeeper.consensus.control_state import NodeId
from safekeeper.consensus.membership import Member, Membership
from safekeeper.consensus.messages import (
    PROTOCOL_VERSION,
    AcceptorGreeting,
    AcceptorMessage,
    Bootstrap,
    Bootstrapped,
    PreVoteRequest,
    PreVoteResponse,
    ProposerGreeting,
    ProposerMessage,
    Refusal,
    RefusalCode,
)
from safekeeper.errors import ConfigurationError, WalproxyError
from safekeeper.settings import load
from safekeeper.wire import PROPOSER_DIALECT, FrameDecoder, encode
from tests.unit.event_loop import on_the_loop
from walproxy.config import ENVIRONMENT_PREFIX, ProxyConfig
from walproxy.rebootstrap import Survey, execute, survey
from walproxy.replication import PrimaryFacts

SYSTEM_ID = 7
PRIMARY = PrimaryFacts(
    system_id=SYSTEM_ID,
    tli=1,
    flush_lsn=9 << 20,
    segment_size=1 << 20,
    server_version=180000,
    in_recovery=False,
    timeline_history=b"",
    lineage=(),
    wal_level="replica",
    fsync=True,
    full_page_writes=True,
    synchronous_standby_names="walproxy",
    synchronous_commit="on",
)


def greeting(safekeeper_id: int, *, flush_lsn: int = 5 << 20, generation: int = 1) -> AcceptorGreeting:
    members = tuple(Member(i, f"{i}" * 32) for i in (1, 2, 3))
    return AcceptorGreeting(
        protocol_version=PROTOCOL_VERSION,
        safekeeper_id=safekeeper_id,
        incarnation=f"{safekeeper_id}" * 32,
        cluster_id="c" * 32 if flush_lsn else "",
        system_id=SYSTEM_ID if flush_lsn else 0,
        segment_size=1 << 20 if flush_lsn else 0,
        server_version=180000,
        membership=Membership(generation, members) if flush_lsn else None,
        promised=NodeId(generation, "a" * 32),
        last_term=3,
        wal_begin_lsn=1 << 20 if flush_lsn else 0,
        flush_lsn=flush_lsn,
        commit_lsn=flush_lsn,
        truncate_lsn=0,
    )


class FakeSafekeeper:
    """Answers as a safekeeper does; `answers` replaces what it says to a type of message, None is silence."""

    def __init__(self, safekeeper_id: int, **options: Any) -> None:
        self.greeting = greeting(safekeeper_id, **options)
        self.asked: list[ProposerMessage] = []
        self.answers: dict[type, AcceptorMessage | bytes | None] = {
            ProposerGreeting: self.greeting,
            PreVoteRequest: PreVoteResponse(True),
            Bootstrap: Bootstrapped("c" * 32, 1),
        }
        self.writers: list[asyncio.StreamWriter] = []
        self.server: asyncio.Server

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        decoder: FrameDecoder[ProposerMessage] = FrameDecoder(PROPOSER_DIALECT)
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                for message in decoder.feed(data):
                    self.asked.append(message)
                    answer = self.answers[type(message)]
                    if answer == b"":
                        writer.close()
                    elif isinstance(answer, bytes):
                        writer.write(answer)
                    elif answer is not None:
                        writer.writelines(encode(answer))
        writer.close()

    def bootstraps(self) -> list[Bootstrap]:
        return [message for message in self.asked if isinstance(message, Bootstrap)]


@contextlib.asynccontextmanager
async def cluster(*safekeepers: FakeSafekeeper) -> AsyncIterator[ProxyConfig]:
    """Have the safekeepers listen; the value is a configuration that names them."""
    places = []
    for number, safekeeper in enumerate(safekeepers, 1):
        safekeeper.server = await asyncio.start_server(safekeeper.serve, "127.0.0.1", 0)
        places.append(f"{number}=127.0.0.1:{safekeeper.server.sockets[0].getsockname()[1]}")
    options = {"primary": "host=db1", "safekeepers": ",".join(places)}
    try:
        yield load(ProxyConfig, ENVIRONMENT_PREFIX, command_line=options, environment={}, file=None)
    finally:
        for safekeeper in safekeepers:
            safekeeper.server.close()
            for writer in safekeeper.writers:
                writer.close()
                with contextlib.suppress(ConnectionError):
                    await writer.wait_closed()
            await safekeeper.server.wait_closed()


def surveyed(*safekeepers: FakeSafekeeper, primary: PrimaryFacts = PRIMARY) -> Survey:
    return Survey(primary, {number: safekeeper.greeting for number, safekeeper in enumerate(safekeepers, 1)})


@on_the_loop
async def test_all_safekeepers_are_told_of_one_new_cluster_of_a_higher_generation() -> None:
    safekeepers = FakeSafekeeper(1, generation=4), FakeSafekeeper(2, flush_lsn=0), FakeSafekeeper(3, generation=6)
    async with cluster(*safekeepers) as config:
        first = await execute(config, surveyed(*safekeepers))
        second = await execute(config, surveyed(*safekeepers))
    assert first != second, "the id of a cluster is random"
    told = [safekeeper.bootstraps() for safekeeper in safekeepers]
    assert told[0] == told[1] == told[2]
    bootstrap = told[0][0]
    assert bootstrap.replace and bootstrap.cluster_id == first
    assert (bootstrap.system_id, bootstrap.segment_size) == (SYSTEM_ID, 1 << 20)
    assert bootstrap.membership == Membership(7, tuple(Member(i, f"{i}" * 32) for i in (1, 2, 3)))


def gone(safekeeper: FakeSafekeeper) -> None:
    safekeeper.server.close()


def says(message_type: type, answer: AcceptorMessage | bytes | None) -> Callable[[FakeSafekeeper], None]:
    def change(safekeeper: FakeSafekeeper) -> None:
        safekeeper.answers[message_type] = answer

    return change


REFUSAL = Refusal(RefusalCode.WRONG_ID, "this is safekeeper 1, not 3", NodeId(0, ""))
OTHER_FOLDER = msgspec.structs.replace(greeting(3), incarnation="f" * 32)


@pytest.mark.parametrize(
    ("fault", "kind", "reason"),
    [
        (gone, ConfigurationError, "safekeeper 3 at .* is not there .*needs every safekeeper"),
        (says(ProposerGreeting, b""), WalproxyError, "safekeeper 3 at .* closed the connection; see its log"),
        (says(ProposerGreeting, b"HTTP/1.1 400\r\n\r\n"), WalproxyError, "safekeeper 3 at .* is no safekeeper"),
        (says(ProposerGreeting, None), WalproxyError, "safekeeper 3 at .* gave no answer within"),
        (says(ProposerGreeting, REFUSAL), WalproxyError, "safekeeper 3 at .* refuses: this is safekeeper 1"),
        (
            says(ProposerGreeting, Bootstrapped("c" * 32, 1)),
            WalproxyError,
            "safekeeper 3 at .* answered with Bootstrapped",
        ),
        (says(ProposerGreeting, OTHER_FOLDER), WalproxyError, "safekeeper 3 has another data folder than a moment ago"),
        (says(PreVoteRequest, PreVoteResponse(False, "b" * 32)), ConfigurationError, "a proxy serves on safekeeper 3"),
    ],
)
def test_nobody_is_told_anything_unless_all_are_fit(
    fault: Callable[[FakeSafekeeper], None],
    kind: type[WalproxyError],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(walproxy.rebootstrap, "_TIMEOUT_S", 0.3)
    safekeepers = FakeSafekeeper(1), FakeSafekeeper(2), FakeSafekeeper(3)

    @on_the_loop
    async def run() -> None:
        async with cluster(*safekeepers) as config:
            before = surveyed(*safekeepers)
            fault(safekeepers[2])
            with pytest.raises(kind, match=reason):
                await execute(config, before)

    run()
    assert not any(safekeeper.bootstraps() for safekeeper in safekeepers)


@pytest.mark.parametrize("answer", [b"", None, Refusal(RefusalCode.GENERATION, "not above 9", NodeId(1, "a"))])
def test_what_breaks_off_in_the_middle_is_to_be_done_again(
    answer: AcceptorMessage | bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walproxy.rebootstrap, "_TIMEOUT_S", 0.3)
    safekeepers = FakeSafekeeper(1), FakeSafekeeper(2), FakeSafekeeper(3)

    @on_the_loop
    async def run() -> None:
        async with cluster(*safekeepers) as config:
            safekeepers[1].answers[Bootstrap] = answer
            with pytest.raises(
                WalproxyError, match=r"^safekeeper 2 at .* may have begun the new cluster: run it again$"
            ):
                await execute(config, surveyed(*safekeepers))

    run()


@pytest.mark.parametrize("primary", ["host=db1,db2 target_session_attrs=read-write", "postgresql://db1,db2/postgres"])
def test_which_of_several_primaries_the_new_cluster_begins_with_is_not_left_to_chance(primary: str) -> None:
    safekeeper = FakeSafekeeper(1)

    @on_the_loop
    async def run() -> None:
        async with cluster(safekeeper) as config:
            with pytest.raises(ConfigurationError, match=r"^--primary names 2 hosts \(db1:5432, db2:5432\): name one,"):
                await survey(dataclasses.replace(config, primary=primary))

    run()
    assert safekeeper.asked == []


def test_what_may_be_lost_is_said_with_both_positions() -> None:
    safekeepers = FakeSafekeeper(1), FakeSafekeeper(2, flush_lsn=12 << 20), FakeSafekeeper(3, flush_lsn=0)
    lines = surveyed(*safekeepers).lines()
    assert lines[0] == "primary: system 7, timeline 1, WAL up to 0/900000"
    assert lines[1].startswith("safekeeper 1: cluster cccccccc, system 7, last term 3, WAL [0/100000, 0/500000)")
    assert lines[3] == "safekeeper 3: empty"
    assert "LOSS: safekeepers hold WAL up to 0/C00000, the primary only up to 0/900000" in lines[4]
    assert "walproxy archive adopt" in lines[-1]


def test_wal_of_another_system_is_not_what_the_primary_lacks() -> None:
    safekeepers = FakeSafekeeper(1, flush_lsn=12 << 20), FakeSafekeeper(2), FakeSafekeeper(3)
    other = dataclasses.replace(PRIMARY, system_id=8)
    lines = surveyed(*safekeepers, primary=other).losses()
    assert not any("LOSS" in line for line in lines)
