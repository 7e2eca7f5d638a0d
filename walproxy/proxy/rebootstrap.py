"""The operator's way out: begin a new cluster on safekeepers that may hold WAL (protocol step 0).

For the loss of most disks, and for a primary that no longer has the WAL that the quorum needs. Nothing here happens by
itself: `survey` looks, changes nothing and says what may be lost, `execute` does it after the operator has agreed.
WAL that the primary does not have, because another PostgreSQL wrote it or because the primary is behind or on another
timeline, is given up only if the operator has typed out which (`Consent`).
Every safekeeper must be there, because one that is left out would come back with the old cluster; no proxy may serve,
because its clients' commits would be given up. The old WAL is set aside in the data folders, not deleted.

The new cluster has a random id and a higher generation, so messages and members of the old one are refused. A crash in
the middle is repaired by doing it again.
"""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from safekeeper.base.errors import ConfigurationError, RemoteProtocolError, WalproxyError
from safekeeper.base.lsn import Lsn, format_lsn
from safekeeper.base.settings import Address
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
    ReadRequest,
    ReadResponse,
    Refusal,
    TailRequest,
    TailResponse,
)
from safekeeper.peers.codec import encode
from safekeeper.waldecode.format import PAGE_HEADER, PAGE_HEADER_SIZE, PAGE_SIZE
from walproxy.postgres.hosts import primary_hosts
from walproxy.postgres.problems import PrimaryProblem, ProblemKind, problem_of_identity
from walproxy.postgres.replication import PrimaryFacts
from walproxy.postgres.sql import SlotState, read_slot
from walproxy.postgres.walreceiver import ReplicationConnection
from walproxy.proxy.config import ProxyConfig
from walproxy.proxy.credentials import read_credentials
from walproxy.proxy.safekeeper_connection import Credentials, SafekeeperConnection

_TIMEOUT_S = 10.0
_Answer = TypeVar("_Answer", AcceptorGreeting, PreVoteResponse, Bootstrapped, ReadResponse, TailResponse)


class GivenUp(NamedTuple):
    """WAL of one safekeeper that the primary does not have.

    Attributes:
        begin_lsn, end_lsn: the range.
        system_id: of the PostgreSQL that wrote it.
        tli: the timeline at its end, 0 if that does not matter because another system wrote it.
    """

    begin_lsn: Lsn
    end_lsn: Lsn
    system_id: int
    tli: int


@dataclass(frozen=True)
class Consent:
    """What the operator has typed out, beyond agreeing.

    Attributes:
        system_ids: the systems whose WAL may be given up.
        discard_above_lsn: WAL of the primary's own system above it may be given up; None if none may.
    """

    system_ids: tuple[int, ...] = ()
    discard_above_lsn: Lsn | None = None


@dataclass(frozen=True)
class Survey:
    """What there is before a rebootstrap.

    Attributes:
        greetings: of each safekeeper, by its id.
        given_up: WAL that the primary does not have, by the ids of the safekeepers that hold it.
        cluster_id: of the new cluster, which is not begun yet.
    """

    primary: PrimaryFacts
    greetings: dict[int, AcceptorGreeting]
    given_up: dict[int, GivenUp]
    cluster_id: str = field(default_factory=lambda: secrets.token_hex(16))

    def lines(self) -> list[str]:
        """Return what the operator must know, a line each."""
        lines = [
            f"primary: system {self.primary.system_id}, timeline {self.primary.tli}, "
            f"WAL up to {format_lsn(self.primary.flush_lsn)}"
        ]
        for safekeeper_id, greeting in sorted(self.greetings.items()):
            if not greeting.cluster_id:
                lines.append(f"safekeeper {safekeeper_id}: empty")
            else:
                lines.append(
                    f"safekeeper {safekeeper_id}: cluster {greeting.cluster_id[:8]}, system {greeting.system_id}, last "
                    f"term {greeting.last_term}, WAL [{format_lsn(greeting.wal_begin_lsn)}, "
                    f"{format_lsn(greeting.flush_lsn)}), committed up to at least {format_lsn(greeting.commit_lsn)}"
                )
            if greeting.replaced is not None:
                lines.append(
                    f"safekeeper {safekeeper_id}: keeps cluster {greeting.replaced.cluster_id[:8]}, which a "
                    "rebootstrap has replaced (walproxy rebootstrap --undo)"
                )
        return [*lines, *self.losses()]

    def losses(self) -> list[str]:
        """Return what may be lost for good, and where the old WAL is kept."""
        lines = [self._loss(safekeeper_id, gap) for safekeeper_id, gap in sorted(self.given_up.items())]
        if not lines:
            lines.append(
                "what this primary has is kept; commits that only a lost primary had, and acknowledged, are given up"
            )
        for safekeeper_id, greeting in sorted(self.greetings.items()):
            size = greeting.flush_lsn - greeting.wal_begin_lsn
            if size > 0:
                lines.append(
                    f"safekeeper {safekeeper_id}: {size} bytes of WAL are set aside in its data folder, in "
                    f"wal.{self.cluster_id}"
                )
        lines.append(
            "the new log begins at the primary's present position: what is older is no longer served by the safekeepers"
        )
        lines.append(
            "an archive, if there is one, keeps what it has, but takes nothing from the new cluster before "
            "walproxy archive adopt --cluster-id names it"
        )
        return lines

    def _loss(self, safekeeper_id: int, gap: GivenUp) -> str:
        held = (
            f"LOSS: safekeeper {safekeeper_id} holds {gap.end_lsn - gap.begin_lsn} bytes of WAL, "
            f"[{format_lsn(gap.begin_lsn)}, {format_lsn(gap.end_lsn)}), of "
        )
        if gap.system_id != self.primary.system_id:
            return (
                f"{held}another PostgreSQL, system {gap.system_id}: all commits of that system that were acknowledged "
                "are given up"
            )
        return (
            f"{held}timeline {gap.tli}, which the primary does not have: commits in that range that were acknowledged "
            "are given up"
        )

    def check_consent(self, consent: Consent) -> None:
        """Refuse what would give up WAL that the operator has not named.

        Raises:
            ConfigurationError: it says what to type.
        """
        systems = {gap.system_id for gap in self.given_up.values()} - {self.primary.system_id}
        unnamed = sorted(systems - set(consent.system_ids))
        if unnamed:
            raise ConfigurationError(
                f"the safekeepers hold WAL of system {unnamed[0]}, and this primary is system "
                f"{self.primary.system_id}, another PostgreSQL: correct --primary, or give up that system's commits "
                f"with --replace-system-id {unnamed[0]}"
            )
        own = [gap.begin_lsn for gap in self.given_up.values() if gap.system_id == self.primary.system_id]
        if own and (consent.discard_above_lsn is None or consent.discard_above_lsn > min(own)):
            lsn = format_lsn(min(own))
            raise ConfigurationError(
                f"this primary lacks WAL from {lsn} on that safekeepers hold: serve the primary that has it, or give "
                f"up the commits in it with --discard-wal-above {lsn}"
            )


async def survey(config: ProxyConfig) -> Survey:
    """Ask the primary and every safekeeper what they have.

    Raises:
        WalproxyError: one of them does not answer, or is not fit for a new cluster; or several primaries are named.
    """
    _require_one_host(config.primary)
    primary = await _look_at_primary(config)
    talks = await greet_all(config)
    try:
        given_up = {i: await _given_up(talk, primary) for i, talk in talks.items()}
    finally:
        for talk in talks.values():
            await talk.close()
    return Survey(
        primary,
        {i: talk.greeting for i, talk in talks.items()},
        {i: gap for i, gap in given_up.items() if gap is not None},
    )


async def _given_up(talk: "Talk", primary: PrimaryFacts) -> GivenUp | None:
    """Return which WAL of a safekeeper the primary does not have, None if it has all complete records."""
    greeting = talk.greeting
    begin_lsn, end_lsn = greeting.wal_begin_lsn, greeting.flush_lsn
    if end_lsn <= begin_lsn:
        return None
    if greeting.system_id != primary.system_id:
        return GivenUp(begin_lsn, end_lsn, greeting.system_id, 0)
    tli = await talk.last_tli()
    common_lsn = _common_lsn(primary, tli)
    if common_lsn >= end_lsn:
        return None
    if tli != primary.tli and common_lsn >= begin_lsn:
        # What follows a fork is a loss only if a record is complete there: only that can have been acknowledged.
        tail = await talk.ask(TailRequest(greeting.promised, 2, common_lsn), TailResponse)
        if not tail.record_end_lsn:
            return None
    return GivenUp(max(begin_lsn, common_lsn), end_lsn, greeting.system_id, tli)


def _common_lsn(primary: PrimaryFacts, tli: int) -> Lsn:
    """Return up to where the primary has the WAL of `tli`, 0 if that timeline is not in its history."""
    return primary.flush_lsn if tli == primary.tli else dict(primary.lineage).get(tli, 0)


def _require_one_host(conninfo: str) -> None:
    """Which of several hosts the new cluster begins with, and so which commits are kept, is not for chance to say."""
    hosts = primary_hosts(conninfo)
    if len(hosts) > 1:
        names = ", ".join(host.name for host in hosts)
        raise ConfigurationError(
            f"--primary names {len(hosts)} hosts ({names}): name one, the primary whose commits the new cluster keeps"
        )


async def _look_at_primary(config: ProxyConfig) -> PrimaryFacts:
    try:
        connection = await ReplicationConnection.connect(
            config.primary, application_name=config.application_name, timeout_s=config.connect_timeout
        )
        try:
            primary = await connection.identify()
        finally:
            connection.close()
        slot = await _look_at_slot(config)
    except PrimaryProblem as problem:
        # Its advice is for a proxy, which can wait.
        raise PrimaryProblem(problem.kind, problem.message.removesuffix("; waiting for it"), problem.sqlstate) from None
    unfit = problem_of_identity(primary)
    if unfit is not None:
        raise unfit
    if slot is not None and slot.wal_status == "lost":
        raise ConfigurationError(
            f"slot \"{config.slot}\" was invalidated: run SELECT pg_drop_replication_slot('{config.slot}') first; "
            "walproxy run makes it anew"
        )
    return primary


async def _look_at_slot(config: ProxyConfig) -> SlotState | None:
    try:
        return await read_slot(config.primary, config.slot, timeout_s=config.connect_timeout)
    except PrimaryProblem as problem:
        if problem.kind is not ProblemKind.NO_LOGIN:
            raise
        # A role that may do nothing but replicate cannot look; walproxy run finds out.
        return None


async def execute(config: ProxyConfig, before: Survey) -> str:
    """Begin a new cluster on all safekeepers and return its id.

    Raises:
        WalproxyError: a safekeeper is gone, or has changed since the survey; do it again.
    """

    def bootstrap(greetings: dict[int, AcceptorGreeting]) -> Bootstrap:
        addresses = dict(config.safekeepers)
        members = tuple(Member(i, g.incarnation, str(addresses[i])) for i, g in sorted(greetings.items()))
        return Bootstrap(
            before.cluster_id,
            before.primary.system_id,
            before.primary.segment_size,
            before.primary.server_version,
            Membership(next_generation(greetings), members),
            replace=True,
        )

    await tell_all(config, before.greetings, bootstrap)
    return before.cluster_id


def next_generation(greetings: dict[int, AcceptorGreeting]) -> int:
    """Return a generation above that of every membership."""
    return 1 + max((g.membership.generation for g in greetings.values() if g.membership is not None), default=0)


async def tell_all(
    config: ProxyConfig,
    surveyed: dict[int, AcceptorGreeting],
    bootstrap_of: Callable[[dict[int, AcceptorGreeting]], Bootstrap],
    order: Sequence[int] | None = None,
) -> None:
    """Send all safekeepers the bootstrap that is made of their greetings; return when all have it.

    Args:
        order: who is told, one after the other; None for all.

    Raises:
        WalproxyError: a safekeeper is gone, or has changed since it was surveyed, or refuses; do it again.
    """
    talks = await greet_all(config)
    try:
        changed = [i for i, talk in talks.items() if talk.greeting.incarnation != surveyed[i].incarnation]
        if changed:
            raise WalproxyError(f"safekeeper {changed[0]} has another data folder than a moment ago: run it again")
        changed = [i for i, talk in talks.items() if _held(talk.greeting) != _held(surveyed[i])]
        if changed:
            raise WalproxyError(f"safekeeper {changed[0]} holds other WAL than a moment ago: run it again")
        bootstrap = bootstrap_of({i: talk.greeting for i, talk in talks.items()})
        for i in talks if order is None else order:
            try:
                await talks[i].ask(bootstrap, Bootstrapped)
            except WalproxyError as error:
                raise WalproxyError(
                    f"{error}; some safekeepers may have begun cluster {bootstrap.cluster_id[:8]}: run it again"
                ) from None
    finally:
        for talk in talks.values():
            await talk.close()


def _held(greeting: AcceptorGreeting) -> tuple[str, int, Lsn]:
    return greeting.cluster_id, greeting.system_id, greeting.flush_lsn


async def greet_all(config: ProxyConfig) -> dict[int, "Talk"]:
    """Return a conversation with every safekeeper, greeted.

    Raises:
        WalproxyError: one does not answer, or refuses, or a proxy serves on it.
    """
    talks: dict[int, Talk] = {}
    credentials = read_credentials(config)
    run = secrets.token_hex(16)
    try:
        for safekeeper_id, address in config.safekeepers:
            talks[safekeeper_id] = talk = Talk(safekeeper_id, address, credentials)
            await talk.connect()
            talk.greeting = await talk.ask(
                ProposerGreeting(PROTOCOL_VERSION, run, safekeeper_id, None, None), AcceptorGreeting
            )
            live_proposer_id = (await talk.ask(PreVoteRequest(run, takeover=False), PreVoteResponse)).live_proposer_id
            if live_proposer_id:
                raise ConfigurationError(
                    f"a proxy serves on safekeeper {safekeeper_id} (run {live_proposer_id[:8]}): stop it first"
                )
    except BaseException:
        for talk in talks.values():
            await talk.close()
        raise
    return talks


class Talk:
    """A short conversation with one safekeeper: a question, an answer. `greeting` is the first one."""

    greeting: AcceptorGreeting

    def __init__(self, safekeeper_id: int, address: Address, credentials: Credentials) -> None:
        self._who = f"safekeeper {safekeeper_id} at {address}"
        self._address = address
        self._credentials = credentials
        self._answers: asyncio.Queue[AcceptorMessage] = asyncio.Queue()
        self._connection = SafekeeperConnection(
            safekeeper_id,
            credentials,
            opened=lambda: None,
            received=self._answers.put_nowait,
            lost=lambda: None,
        )

    async def connect(self) -> None:
        """Connect.

        Raises:
            ConfigurationError: nobody answers there, or somebody who is no safekeeper of ours.
        """
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await self._connection.connect(self._address, self._credentials.tls)
        except RemoteProtocolError as error:
            raise ConfigurationError(f"{self._who} and this command do not come together: {error}") from None
        except (OSError, TimeoutError) as error:
            reason = str(error) or "no answer in time"
            raise ConfigurationError(
                f"{self._who} is not there ({reason}): a rebootstrap needs every safekeeper; replace a lost one "
                "by an empty one first"
            ) from None

    async def ask(self, question: ProposerMessage, expected: type[_Answer]) -> _Answer:
        """Ask, and return the answer.

        Raises:
            WalproxyError: there is none in time, or another than `expected`, a refusal for one.
        """
        connection = self._connection
        if connection.is_open:
            connection.writelines(encode(question))
        arrived = asyncio.ensure_future(self._answers.get())
        try:
            waited: set[asyncio.Future[Any]] = {arrived, connection.closed}
            await asyncio.wait(waited, timeout=_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
            if not arrived.done():
                if connection.closed.done():
                    raise WalproxyError(f"{self._who}: {connection.reason}; see its log")
                raise WalproxyError(f"{self._who} gave no answer within {_TIMEOUT_S:.0f} s; see its log")
        finally:
            arrived.cancel()
        answer = arrived.result()
        if isinstance(answer, Refusal):
            raise WalproxyError(f"{self._who} refuses: {answer.reason}")
        if not isinstance(answer, expected):
            raise WalproxyError(f"{self._who} answered with {type(answer).__name__}")
        return answer

    async def last_tli(self) -> int:
        """Return the timeline of the last page of the safekeeper's WAL."""
        greeting = self.greeting
        page_lsn = (greeting.flush_lsn - 1) // PAGE_SIZE * PAGE_SIZE
        if greeting.flush_lsn - page_lsn < PAGE_HEADER_SIZE and page_lsn > greeting.wal_begin_lsn:
            page_lsn -= PAGE_SIZE
        # Reading is for the proposer that was promised: nothing is promised or changed here, so its name will do.
        end_lsn = min(page_lsn + PAGE_HEADER_SIZE, greeting.flush_lsn)
        page = await self.ask(ReadRequest(greeting.promised, 1, page_lsn, end_lsn), ReadResponse)
        if len(page.payload) < PAGE_HEADER_SIZE:
            raise WalproxyError(f"{self._who} has no whole WAL page at {format_lsn(page_lsn)}")
        _, _, tli, _, _ = PAGE_HEADER.unpack_from(page.payload)
        return int(tli)

    async def close(self) -> None:
        """End the conversation."""
        self._connection.abort("the rebootstrap is done with it")
        await self._connection.closed
