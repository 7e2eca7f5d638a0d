"""A rebootstrap and its undo, with safekeepers that are there, gone, silent, somebody else, or served by a proxy."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

import walproxy.proxy.rebootstrap
import walproxy.proxy.safekeeper_requests
from safekeeper.base.errors import ConfigurationError, WalproxyError
from safekeeper.base.settings import load
from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.membership import Member, Membership, QuorumSizes
from safekeeper.consensus.messages import (
    AcceptorGreeting,
    AcceptorMessage,
    Bootstrap,
    Bootstrapped,
    PreVoteRequest,
    PreVoteResponse,
    ProposerGreeting,
    ProposerMessage,
    ReadRequest,
    ReadResponse,
    Refusal,
    RefusalCode,
    Replaced,
    TailRequest,
    TailResponse,
)
from safekeeper.peers.codec import (
    PROPOSER_AUTHENTICATION,
    PROPOSER_DIALECT,
    FrameDecoder,
    encode,
    encode_authentication,
)
from safekeeper.peers.local_secret import LocalSecret
from safekeeper.peers.peer_auth import NONCE_BYTES, AcceptorSide
from safekeeper.waldecode.format import PAGE_HEADER
from tests.unit.event_loop import on_the_loop
from tests.unit.greetings import empty
from walproxy.postgres.replication import PrimaryFacts
from walproxy.proxy.config import ENVIRONMENT_PREFIX, ProxyConfig
from walproxy.proxy.rebootstrap import Consent, GivenUp, RebootstrapSurvey, execute, survey
from walproxy.proxy.rebootstrap_undo import UndoSurvey, execute_undo, survey_undo

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
)


def greeting(safekeeper_id: int, *, flush_lsn: int = 5 << 20, generation: int = 1) -> AcceptorGreeting:
    greeting = empty(safekeeper_id, server_version=180000, promised=LeaderId(generation, "a" * 32), last_term=3)
    if not flush_lsn:
        return greeting
    return msgspec.structs.replace(
        greeting,
        cluster_id="c" * 32,
        system_id=SYSTEM_ID,
        segment_size=1 << 20,
        membership=Membership(generation, tuple(Member(i, f"{i}" * 32) for i in (1, 2, 3))),
        wal_begin_lsn=1 << 20,
        flush_lsn=flush_lsn,
        commit_lsn=flush_lsn,
    )


class FakeSafekeeper:
    """Answers as a safekeeper does; `answers` replaces what it says to a type of message, None is silence."""

    def __init__(self, safekeeper_id: int, **options: Any) -> None:
        self.safekeeper_id = safekeeper_id
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
        decoder: FrameDecoder[Any] = FrameDecoder(PROPOSER_AUTHENTICATION)
        secret = AcceptorSide(LocalSecret().value, self.safekeeper_id, bytes(NONCE_BYTES), b"")
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                for message in decoder.feed(data):
                    if not secret.done:
                        writer.write(encode_authentication(secret.receive(message)))
                        decoder.use(PROPOSER_DIALECT if secret.done else PROPOSER_AUTHENTICATION)
                        continue
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


def surveyed(*safekeepers: FakeSafekeeper, primary: PrimaryFacts = PRIMARY) -> RebootstrapSurvey:
    greetings = {number: safekeeper.greeting for number, safekeeper in enumerate(safekeepers, 1)}
    return RebootstrapSurvey(primary, greetings, {})


@on_the_loop
async def test_all_safekeepers_are_sent_one_new_cluster_of_a_higher_generation() -> None:
    safekeepers = FakeSafekeeper(1, generation=4), FakeSafekeeper(2, flush_lsn=0), FakeSafekeeper(3, generation=6)
    async with cluster(*safekeepers) as config:
        first = await execute(config, surveyed(*safekeepers))
        second = await execute(config, surveyed(*safekeepers))
    assert first != second, "the id of a cluster is random"
    reported = [safekeeper.bootstraps() for safekeeper in safekeepers]
    assert reported[0] == reported[1] == reported[2]
    bootstrap = reported[0][0]
    assert bootstrap.replace and bootstrap.cluster_id == first
    assert (bootstrap.system_id, bootstrap.segment_size) == (SYSTEM_ID, 1 << 20)
    addresses = dict(config.safekeepers)
    members = tuple(Member(i, f"{i}" * 32, str(addresses[i])) for i in (1, 2, 3))
    assert bootstrap.membership == Membership(7, members)


def gone(safekeeper: FakeSafekeeper) -> None:
    safekeeper.server.close()


def says(message_type: type, answer: AcceptorMessage | bytes | None) -> Callable[[FakeSafekeeper], None]:
    def change(safekeeper: FakeSafekeeper) -> None:
        safekeeper.answers[message_type] = answer

    return change


REFUSAL = Refusal(RefusalCode.WRONG_ID, "this is safekeeper 1, not 3", LeaderId(0, ""))
OTHER_FOLDER = msgspec.structs.replace(greeting(3), incarnation="f" * 32)


@pytest.mark.parametrize(
    ("fault", "kind", "reason"),
    [
        (gone, ConfigurationError, "safekeeper 3 at .* cannot be reached .*needs every safekeeper"),
        (says(ProposerGreeting, b""), WalproxyError, "safekeeper 3 at .* closed the connection; see its log"),
        (says(ProposerGreeting, b"HTTP/1.1 400\r\n\r\n"), WalproxyError, "safekeeper 3 at .* is not a safekeeper"),
        (says(ProposerGreeting, None), WalproxyError, "safekeeper 3 at .* did not reply within"),
        (says(ProposerGreeting, REFUSAL), WalproxyError, "safekeeper 3 at .* refuses: this is safekeeper 1"),
        (
            says(ProposerGreeting, Bootstrapped("c" * 32, 1)),
            WalproxyError,
            "safekeeper 3 at .* replied with Bootstrapped",
        ),
        (says(ProposerGreeting, OTHER_FOLDER), WalproxyError, "safekeeper 3 has another data folder than before"),
        (says(PreVoteRequest, PreVoteResponse(False, "b" * 32)), ConfigurationError, "a proxy serves on safekeeper 3"),
    ],
)
@on_the_loop
async def test_nothing_is_sent_unless_all_are_fit(
    fault: Callable[[FakeSafekeeper], None],
    kind: type[WalproxyError],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(walproxy.proxy.safekeeper_requests, "_TIMEOUT_S", 0.3)
    safekeepers = FakeSafekeeper(1), FakeSafekeeper(2), FakeSafekeeper(3)
    async with cluster(*safekeepers) as config:
        before = surveyed(*safekeepers)
        fault(safekeepers[2])
        with pytest.raises(kind, match=reason):
            await execute(config, before)
    assert not any(safekeeper.bootstraps() for safekeeper in safekeepers)


@pytest.mark.parametrize("answer", [b"", None, Refusal(RefusalCode.GENERATION, "not above 9", LeaderId(1, "a"))])
@on_the_loop
async def test_what_breaks_off_in_the_middle_is_to_be_done_again(
    answer: AcceptorMessage | bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walproxy.proxy.safekeeper_requests, "_TIMEOUT_S", 0.3)
    safekeepers = FakeSafekeeper(1), FakeSafekeeper(2), FakeSafekeeper(3)
    async with cluster(*safekeepers) as config:
        safekeepers[1].answers[Bootstrap] = answer
        with pytest.raises(
            WalproxyError, match=r"^safekeeper 2 at .* may have joined cluster \w{8}: repeat the command$"
        ):
            await execute(config, surveyed(*safekeepers))


@pytest.mark.parametrize("primary", ["host=db1,db2 target_session_attrs=read-write", "postgresql://db1,db2/postgres"])
@on_the_loop
async def test_which_of_several_primaries_the_new_cluster_begins_with_is_not_left_to_chance(primary: str) -> None:
    safekeeper = FakeSafekeeper(1)
    async with cluster(safekeeper) as config:
        with pytest.raises(ConfigurationError, match=r"^--primary names 2 hosts \(db1:5432, db2:5432\): name one,"):
            await survey(dataclasses.replace(config, primary=primary))
    assert safekeeper.asked == []


def test_what_each_safekeeper_holds_and_where_it_is_set_aside_is_said() -> None:
    found = surveyed(FakeSafekeeper(1), FakeSafekeeper(2, flush_lsn=7 << 20), FakeSafekeeper(3, flush_lsn=0))
    lines = found.lines()
    assert lines[0] == "primary: system 7, timeline 1, WAL up to 0/900000"
    assert lines[1].startswith("safekeeper 1: cluster cccccccc, system 7, last term 3, WAL [0/100000, 0/500000)")
    assert lines[3] == "safekeeper 3: empty"
    assert "the WAL of this primary is kept" in lines[4]
    assert lines[5:7] == [
        f"safekeeper 1: 4194304 bytes of WAL are set aside in its data folder, in wal.{found.cluster_id}",
        f"safekeeper 2: 6291456 bytes of WAL are set aside in its data folder, in wal.{found.cluster_id}",
    ]
    assert "walproxy archive adopt" in lines[-1]


def ends_on(tli: int, record_end_lsn: int = 0) -> Callable[[FakeSafekeeper], None]:
    """Set the timeline of the last page of the safekeeper's WAL, and the end of the record after the fork, if any."""

    def change(safekeeper: FakeSafekeeper) -> None:
        safekeeper.answers[ReadRequest] = ReadResponse(1, 0, PAGE_HEADER.pack(0xD118, 0, tli, 0, 0))
        safekeeper.answers[TailRequest] = TailResponse(2, 0, record_end_lsn, 0)

    return change


def survey_of(
    primary: PrimaryFacts, *safekeepers: FakeSafekeeper, monkeypatch: pytest.MonkeyPatch
) -> RebootstrapSurvey:
    found = []

    async def look(config: ProxyConfig) -> PrimaryFacts:
        return primary

    monkeypatch.setattr(walproxy.proxy.rebootstrap, "_look_at_primary", look)

    @on_the_loop
    async def run() -> None:
        async with cluster(*safekeepers) as config:
            found.append(await survey(config))

    run()
    return found[0]


PROMOTED = dataclasses.replace(PRIMARY, tli=2, lineage=((1, 4 << 20),))
MIB = 1 << 20


@pytest.mark.parametrize(
    ("primary", "end", "given_up"),
    [
        (PRIMARY, ends_on(1), None),
        (dataclasses.replace(PRIMARY, flush_lsn=3 * MIB), ends_on(1), GivenUp(3 * MIB, 5 * MIB, SYSTEM_ID, 1)),
        (dataclasses.replace(PRIMARY, system_id=8), ends_on(1), GivenUp(MIB, 5 * MIB, SYSTEM_ID, 0)),
        (PROMOTED, ends_on(2), None),
        (PROMOTED, ends_on(1, record_end_lsn=4 * MIB + 64), GivenUp(4 * MIB, 5 * MIB, SYSTEM_ID, 1)),
        (PROMOTED, ends_on(1), None),
        (PROMOTED, ends_on(3), GivenUp(MIB, 5 * MIB, SYSTEM_ID, 3)),
        (PRIMARY, ends_on(2), GivenUp(MIB, 5 * MIB, SYSTEM_ID, 2)),
    ],
    ids=["all", "behind", "other system", "same fork", "early fork", "torn record", "unknown timeline", "old primary"],
)
def test_what_the_primary_lacks_is_found_by_system_timeline_and_position(
    primary: PrimaryFacts,
    end: Callable[[FakeSafekeeper], None],
    given_up: GivenUp | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    safekeepers = FakeSafekeeper(1, flush_lsn=0), FakeSafekeeper(2)
    end(safekeepers[1])
    found = survey_of(primary, *safekeepers, monkeypatch=monkeypatch)
    assert found.given_up == ({2: given_up} if given_up is not None else {})
    assert any("LOSS: safekeeper 2 holds" in line for line in found.lines()) == (given_up is not None)


def test_the_wal_of_another_system_is_given_up_only_if_that_system_is_typed_out() -> None:
    primary = dataclasses.replace(PRIMARY, system_id=8)
    found = dataclasses.replace(
        surveyed(FakeSafekeeper(1), primary=primary), given_up={1: GivenUp(MIB, 5 * MIB, SYSTEM_ID, 0)}
    )
    assert (
        "LOSS: safekeeper 1 holds 4194304 bytes of WAL, [0/100000, 0/500000), of another PostgreSQL"
        in found.losses()[0]
    )
    for consent in (Consent(), Consent(discard_above_lsn=MIB)):
        with pytest.raises(ConfigurationError, match=r"hold WAL of system 7, and .* 8.*--replace-system-id 7$"):
            found.check_consent(consent)
    with pytest.raises(ConfigurationError, match=r"--replace-system-id 7$"):
        found.check_consent(Consent((8,)))
    found.check_consent(Consent((7,)))
    # The same command is repeated after it broke off: by then no safekeeper may hold that system's WAL any more.
    surveyed(FakeSafekeeper(1), primary=primary).check_consent(Consent((7,)))


def test_wal_that_the_primary_lacks_is_given_up_only_from_the_position_that_is_typed_out() -> None:
    gaps = {1: GivenUp(4 * MIB, 5 * MIB, SYSTEM_ID, 1), 2: GivenUp(3 * MIB, 6 * MIB, SYSTEM_ID, 1)}
    found = dataclasses.replace(surveyed(FakeSafekeeper(1), FakeSafekeeper(2)), given_up=gaps)
    for consent in (Consent(), Consent((SYSTEM_ID,)), Consent(discard_above_lsn=4 * MIB)):
        with pytest.raises(ConfigurationError, match=r"lacks WAL from 0/300000 on .* --discard-wal-above 0/300000$"):
            found.check_consent(consent)
    found.check_consent(Consent(discard_above_lsn=3 * MIB))
    found.check_consent(Consent(discard_above_lsn=2 * MIB))


@on_the_loop
async def test_a_safekeeper_that_has_received_wal_since_the_survey_is_surveyed_again() -> None:
    safekeeper = FakeSafekeeper(1)
    async with cluster(safekeeper) as config:
        before = surveyed(safekeeper)
        safekeeper.answers[ProposerGreeting] = greeting(1, flush_lsn=6 << 20)
        with pytest.raises(WalproxyError, match="safekeeper 1 has other WAL than before: repeat the command"):
            await execute(config, before)
    assert not safekeeper.bootstraps()


OLD, NEW = "c" * 32, "d" * 32
MEMBERS = tuple(Member(i, f"{i}" * 32) for i in (1, 2, 3))
KEPT = Replaced(OLD, SYSTEM_ID, MIB, 180000, Membership(1, MEMBERS), MIB, 4 * MIB)


# Of which every member must vote.
OF_ALL = msgspec.structs.replace(KEPT, membership=Membership(1, MEMBERS, quorum_sizes=QuorumSizes("1", "N")))


def replaced(
    safekeeper_id: int, *, flush_lsn: int = 0, kept: Replaced | None = KEPT, cluster_id: str = NEW
) -> FakeSafekeeper:
    """Return a safekeeper after a rebootstrap; WAL up to `flush_lsn` was written since."""
    safekeeper = FakeSafekeeper(safekeeper_id, generation=2)
    safekeeper.greeting = msgspec.structs.replace(
        safekeeper.greeting,
        cluster_id=cluster_id,
        last_term=4 if flush_lsn else 0,
        wal_begin_lsn=5 * MIB if flush_lsn else 0,
        flush_lsn=flush_lsn,
        replaced=kept,
    )
    safekeeper.answers[ProposerGreeting] = safekeeper.greeting
    return safekeeper


async def undone(*safekeepers: FakeSafekeeper, discard_above_lsn: int | None = None) -> UndoSurvey:
    """Carry the command out, and return what it has found."""
    async with cluster(*safekeepers) as config:
        found = await survey_undo(config)
        found.check_consent(discard_above_lsn)
        await execute_undo(config, found)
    return found


@on_the_loop
async def test_an_undo_sends_all_safekeepers_the_cluster_of_before_with_a_higher_generation() -> None:
    # The rebootstrap has not come as far as the third one.
    safekeepers = replaced(1), replaced(2), FakeSafekeeper(3)
    found = await undone(*safekeepers)
    reported = [message for safekeeper in safekeepers for message in safekeeper.bootstraps()]
    assert reported == [Bootstrap(OLD, SYSTEM_ID, MIB, 180000, Membership(3, MEMBERS), undo=True)] * 3
    assert found.lines()[:4] == [
        f"cluster {OLD} is restored: system 7",
        "safekeeper 1: its WAL from 0/100000 on, committed up to at least 0/400000, is moved back",
        "safekeeper 2: its WAL from 0/100000 on, committed up to at least 0/400000, is moved back",
        "safekeeper 3: belongs to it, and keeps its WAL",
    ]


@on_the_loop
async def test_who_was_no_member_before_the_rebootstrap_becomes_a_learner() -> None:
    kept = msgspec.structs.replace(KEPT, membership=Membership(1, (*MEMBERS[:2], Member(3, "9" * 32))))
    safekeepers = replaced(1, kept=kept), replaced(2, kept=kept), replaced(3, kept=None)
    found = await undone(*safekeepers)
    assert "safekeeper 3: is not a member of it; it joins as a learner" in found.lines()
    assert len(safekeepers[2].bootstraps()) == 1
    empty = FakeSafekeeper(3, flush_lsn=0)
    found = await undone(replaced(1, kept=kept), replaced(2, kept=kept), empty)
    assert "safekeeper 3: empty; it joins as a learner" in found.lines()
    assert empty.bootstraps() == []


def of_five(safekeeper_id: int, kept: Replaced | None = KEPT) -> FakeSafekeeper:
    """Return a safekeeper after a rebootstrap over five, three of which were the old cluster."""
    safekeeper = replaced(safekeeper_id, kept=kept)
    five = Membership(2, tuple(Member(i, f"{i}" * 32) for i in range(1, 6)))
    safekeeper.answers[ProposerGreeting] = msgspec.structs.replace(safekeeper.greeting, membership=five)
    return safekeeper


@on_the_loop
async def test_the_new_cluster_has_lost_its_quorum_before_the_old_one_has_one_again() -> None:
    # Safekeepers 3 to 5 might elect a proxy at this moment, and go on with the new cluster: 2 of the old one say no.
    safekeepers = [of_five(1), of_five(2), of_five(3), of_five(4, kept=None), of_five(5, kept=None)]
    safekeepers[0].answers[Bootstrap] = Refusal(RefusalCode.NOT_EMPTY, "a term was adopted", LeaderId(5, "a" * 32))
    with pytest.raises(WalproxyError, match="a term was adopted"):
        await undone(*safekeepers)
    assert [len(safekeeper.bootstraps()) for safekeeper in safekeepers] == [1, 0, 0, 1, 1]


@on_the_loop
async def test_an_undo_that_leaves_members_of_the_new_cluster_out_is_refused() -> None:
    safekeepers = [of_five(1), of_five(2), of_five(3)]
    with pytest.raises(ConfigurationError, match=r"safekeeper 1 .* dddddddd, which safekeeper 4 .*: list all of its"):
        await undone(*safekeepers)
    assert not any(safekeeper.bootstraps() for safekeeper in safekeepers)


@on_the_loop
async def test_an_undo_that_broke_off_before_those_who_had_not_left_were_sent_it_is_repeated() -> None:
    """The rebootstrap had reached safekeeper 1 only; so the generations differ, and no quorum would elect anybody."""
    safekeepers = replaced(1, kept=None, cluster_id=OLD), FakeSafekeeper(2), FakeSafekeeper(3)
    found = await undone(*safekeepers)
    assert [safekeeper.bootstraps()[0].membership.generation for safekeeper in safekeepers] == [3, 3, 3]
    assert not found.since


@on_the_loop
async def test_an_undo_brings_back_the_members_that_a_quorum_has_changed_to_since() -> None:
    """The rebootstrap had reached safekeeper 1 only: 2 and 3 went on, and replaced it by 4, which has acknowledged."""
    changed = Membership(3, tuple(Member(i, f"{i}" * 32) for i in (2, 3, 4)), author=4)
    safekeepers = [of_five(1), *(FakeSafekeeper(i) for i in (2, 3, 4)), of_five(5, kept=None)]
    for safekeeper in safekeepers[1:4]:
        safekeeper.answers[ProposerGreeting] = msgspec.structs.replace(safekeeper.greeting, membership=changed)
    await undone(*safekeepers)
    reported = [message.membership for safekeeper in safekeepers for message in safekeeper.bootstraps()]
    assert reported == [msgspec.structs.replace(changed, generation=4)] * 5


@pytest.mark.parametrize(
    ("safekeepers", "reason"),
    [
        (
            lambda: [FakeSafekeeper(i) for i in (1, 2, 3)],
            "no safekeeper keeps a cluster that a rebootstrap has replaced",
        ),
        (
            lambda: [replaced(1), replaced(2, kept=None), FakeSafekeeper(3, flush_lsn=0)],
            r"no quorum of a cluster's members keeps it \(safekeeper 1 keeps cluster cccccccc\): the",
        ),
        (
            lambda: [replaced(1, kept=OF_ALL), replaced(2, kept=OF_ALL), replaced(3, kept=None)],
            "no quorum of a cluster's members keeps it",
        ),
        (
            lambda: [replaced(1), replaced(2), replaced(3, kept=None)],
            "safekeeper 3 is a member of cluster cccccccc and has none of its WAL: wipe its data folder",
        ),
    ],
)
@on_the_loop
async def test_what_cannot_be_brought_back_is_said_before_anything_is_changed(
    safekeepers: Callable[[], list[FakeSafekeeper]], reason: str
) -> None:
    all_three = safekeepers()
    with pytest.raises(ConfigurationError, match=reason):
        await undone(*all_three)
    assert not any(safekeeper.bootstraps() for safekeeper in all_three)


@on_the_loop
async def test_wal_that_was_written_since_a_rebootstrap_is_given_up_only_if_that_is_typed_out() -> None:
    safekeepers = replaced(1, flush_lsn=6 * MIB), replaced(2, flush_lsn=7 * MIB), replaced(3)
    for lsn in (None, 6 * MIB):
        with pytest.raises(ConfigurationError, match=r"WAL from 0/500000 on .* --discard-wal-above 0/500000$"):
            await undone(*safekeepers, discard_above_lsn=lsn)
    assert not any(safekeeper.bootstraps() for safekeeper in safekeepers)
    safekeepers = replaced(1, flush_lsn=6 * MIB), replaced(2, flush_lsn=7 * MIB), replaced(3)
    found = await undone(*safekeepers, discard_above_lsn=5 * MIB)
    assert [line for line in found.lines() if "LOSS: safekeeper 2 holds 2097152 bytes of WAL" in line]
    assert all(safekeeper.bootstraps()[0].discard for safekeeper in safekeepers)


@on_the_loop
async def test_a_rebootstrap_says_what_could_still_be_undone() -> None:
    lines = surveyed(replaced(1)).lines()
    assert (
        "safekeeper 1: keeps cluster cccccccc, which a rebootstrap has replaced (walproxy rebootstrap --undo)" in lines
    )
