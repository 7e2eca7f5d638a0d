"""Rebootstrap: begin a new cluster on safekeepers that may hold WAL (protocol step 0).

For the loss of most disks, and for a primary that no longer has the WAL that the quorum needs. Nothing here happens
automatically: `survey` changes nothing and reports what may be lost; `execute` begins the cluster after the operator
has agreed. WAL that the primary does not have, because another PostgreSQL wrote it or because the primary's WAL ends
earlier or is on another timeline, is given up only if the operator has typed which (`Consent`).
Every safekeeper must be reachable, because one that is omitted would return with the old cluster; no proxy may serve,
because its clients' commits would be lost. The old WAL is set aside in the data folders, not deleted.

The new cluster has a random id and a higher generation, so messages and members of the old one are refused. After a
crash, repeat the command.
"""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from safekeeper.base.errors import ConfigurationError, WalproxyError
from safekeeper.base.lsn import Lsn, format_lsn
from safekeeper.consensus.membership import Member, Membership
from safekeeper.consensus.messages import (
    AcceptorGreeting,
    Bootstrap,
    Bootstrapped,
    PreVoteRequest,
    PreVoteResponse,
    ReadRequest,
    ReadResponse,
    TailRequest,
    TailResponse,
)
from safekeeper.waldecode.format import PAGE_HEADER, PAGE_HEADER_SIZE, PAGE_SIZE
from walproxy.postgres.hosts import primary_hosts
from walproxy.postgres.problems import PrimaryProblem, ProblemKind, problem_of_identity
from walproxy.postgres.replication import PrimaryFacts
from walproxy.postgres.sql import SlotState, read_slot
from walproxy.postgres.walreceiver import ReplicationConnection
from walproxy.proxy.config import ConnectionConfig, MembersConfig
from walproxy.proxy.credentials import read_peer_credentials
from walproxy.proxy.safekeeper_requests import SafekeeperRequests, SafekeeperUnreachable


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
    """The operator's confirmation, as typed.

    Attributes:
        system_ids: the systems whose WAL may be given up.
        discard_above_lsn: WAL of the primary's own system above it may be given up; None if none may.
    """

    system_ids: tuple[int, ...] = ()
    discard_above_lsn: Lsn | None = None


@dataclass(frozen=True)
class RebootstrapSurvey:
    """The state before a rebootstrap.

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
        """Return the lines to show to the operator."""
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
        """Return the lines about what may be lost, and where the old WAL is kept."""
        lines = [self._loss(safekeeper_id, gap) for safekeeper_id, gap in sorted(self.given_up.items())]
        if not lines:
            lines.append("the WAL of this primary is kept; acknowledged commits that only a lost primary had are lost")
        for safekeeper_id, greeting in sorted(self.greetings.items()):
            size = greeting.flush_lsn - greeting.wal_begin_lsn
            if size > 0:
                lines.append(
                    f"safekeeper {safekeeper_id}: {size} bytes of WAL are set aside in its data folder, in "
                    f"wal.{self.cluster_id}"
                )
        lines.append("the new log begins at the primary's present position: safekeepers no longer serve older WAL")
        lines.append(
            "an archive, if there is one, keeps its WAL, but accepts none of the new cluster before "
            "walproxy archive adopt --cluster-id names it"
        )
        return lines

    def _loss(self, safekeeper_id: int, gap: GivenUp) -> str:
        held = (
            f"LOSS: safekeeper {safekeeper_id} holds {gap.end_lsn - gap.begin_lsn} bytes of WAL, "
            f"[{format_lsn(gap.begin_lsn)}, {format_lsn(gap.end_lsn)}), of "
        )
        if gap.system_id != self.primary.system_id:
            return f"{held}another PostgreSQL, system {gap.system_id}: all acknowledged commits of that system are lost"
        return f"{held}timeline {gap.tli}, which the primary does not have: acknowledged commits in that range are lost"

    def check_consent(self, consent: Consent) -> None:
        """Refuse what would give up WAL that the operator has not named.

        Raises:
            ConfigurationError: the message contains the option to use.
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


async def survey(config: ConnectionConfig) -> RebootstrapSurvey:
    """Request the positions of the primary and of every safekeeper.

    Raises:
        WalproxyError: one of them does not reply, or cannot be in a new cluster; or several primaries are named.
    """
    _require_one_host(config.primary)
    primary = await _look_at_primary(config)
    connections = await greet_all(config)
    try:
        given_up = {i: await _given_up(connection, primary) for i, connection in connections.items()}
    finally:
        for connection in connections.values():
            await connection.close()
    return RebootstrapSurvey(
        primary,
        {i: connection.greeting for i, connection in connections.items()},
        {i: gap for i, gap in given_up.items() if gap is not None},
    )


async def _given_up(connection: SafekeeperRequests, primary: PrimaryFacts) -> GivenUp | None:
    """Return which WAL of a safekeeper the primary does not have, None if it has all complete records."""
    greeting = connection.greeting
    begin_lsn, end_lsn = greeting.wal_begin_lsn, greeting.flush_lsn
    if end_lsn <= begin_lsn:
        return None
    if greeting.system_id != primary.system_id:
        return GivenUp(begin_lsn, end_lsn, greeting.system_id, 0)
    tli = await _last_tli(connection)
    common_lsn = _common_lsn(primary, tli)
    if common_lsn >= end_lsn:
        return None
    if tli != primary.tli and common_lsn >= begin_lsn:
        # WAL after a fork is lost only if it contains a complete record: only that can have been acknowledged.
        tail = await connection.ask(TailRequest(greeting.promised, 2, common_lsn), TailResponse)
        if not tail.record_end_lsn:
            return None
    return GivenUp(max(begin_lsn, common_lsn), end_lsn, greeting.system_id, tli)


def _common_lsn(primary: PrimaryFacts, tli: int) -> Lsn:
    """Return the end of the primary's WAL of `tli`, 0 if that timeline is not in its history."""
    return primary.flush_lsn if tli == primary.tli else dict(primary.lineage).get(tli, 0)


def _require_one_host(conninfo: str) -> None:
    """Refuse several hosts: the operator must choose the primary whose commits the new cluster keeps."""
    hosts = primary_hosts(conninfo)
    if len(hosts) > 1:
        names = ", ".join(host.name for host in hosts)
        raise ConfigurationError(
            f"--primary names {len(hosts)} hosts ({names}): name one, the primary whose commits the new cluster keeps"
        )


async def _look_at_primary(config: ConnectionConfig) -> PrimaryFacts:
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
        # The end of the message is for a proxy, which can wait.
        raise PrimaryProblem(problem.kind, problem.message.removesuffix("; waiting for it"), problem.sqlstate) from None
    unfit = problem_of_identity(primary)
    if unfit is not None:
        raise unfit
    if slot is not None and slot.wal_status == "lost":
        raise ConfigurationError(
            f"slot \"{config.slot}\" was invalidated: run SELECT pg_drop_replication_slot('{config.slot}') first; "
            "walproxy run creates it again"
        )
    return primary


async def _look_at_slot(config: ConnectionConfig) -> SlotState | None:
    try:
        return await read_slot(config.primary, config.slot, timeout_s=config.connect_timeout)
    except PrimaryProblem as problem:
        if problem.kind is not ProblemKind.NO_LOGIN:
            raise
        # A role that may only replicate cannot query it; walproxy run reports it.
        return None


async def execute(config: ConnectionConfig, before: RebootstrapSurvey) -> str:
    """Begin a new cluster on all safekeepers and return its id.

    Raises:
        WalproxyError: a safekeeper cannot be reached, or has changed since the survey; repeat the command.
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

    await send_bootstrap(config, before.greetings, bootstrap)
    return before.cluster_id


def next_generation(greetings: dict[int, AcceptorGreeting]) -> int:
    """Return a generation above that of every membership."""
    return 1 + max((g.membership.generation for g in greetings.values() if g.membership is not None), default=0)


async def send_bootstrap(
    config: MembersConfig,
    surveyed: dict[int, AcceptorGreeting],
    bootstrap_of: Callable[[dict[int, AcceptorGreeting]], Bootstrap],
    order: Sequence[int] | None = None,
) -> None:
    """Send all safekeepers the bootstrap that follows from their greetings; return when all have confirmed it.

    Args:
        order: the safekeepers in this order; None for all.

    Raises:
        WalproxyError: a safekeeper cannot be reached, has changed since the survey, or refuses; repeat the command.
    """
    connections = await greet_all(config)
    try:
        changed = [
            i for i, connection in connections.items() if connection.greeting.incarnation != surveyed[i].incarnation
        ]
        if changed:
            raise WalproxyError(f"safekeeper {changed[0]} has another data folder than before: repeat the command")
        changed = [i for i, connection in connections.items() if _held(connection.greeting) != _held(surveyed[i])]
        if changed:
            raise WalproxyError(f"safekeeper {changed[0]} has other WAL than before: repeat the command")
        bootstrap = bootstrap_of({i: connection.greeting for i, connection in connections.items()})
        for i in connections if order is None else order:
            try:
                await connections[i].ask(bootstrap, Bootstrapped)
            except WalproxyError as error:
                raise WalproxyError(
                    f"{error}; some safekeepers may have joined cluster {bootstrap.cluster_id[:8]}: repeat the command"
                ) from None
    finally:
        for connection in connections.values():
            await connection.close()


def _held(greeting: AcceptorGreeting) -> tuple[str, int, Lsn]:
    return greeting.cluster_id, greeting.system_id, greeting.flush_lsn


async def greet_all(config: MembersConfig) -> dict[int, SafekeeperRequests]:
    """Connect to every safekeeper and receive its greeting.

    Raises:
        WalproxyError: one does not reply, or refuses, or a proxy serves on it.
    """
    connections: dict[int, SafekeeperRequests] = {}
    credentials = read_peer_credentials(config)
    run = secrets.token_hex(16)
    try:
        for safekeeper_id, address in config.safekeepers:
            connections[safekeeper_id] = connection = SafekeeperRequests(safekeeper_id, address, credentials)
            await connection.greet(run)
            live_proposer_id = (
                await connection.ask(PreVoteRequest(run, takeover=False), PreVoteResponse)
            ).live_proposer_id
            if live_proposer_id:
                raise ConfigurationError(
                    f"a proxy serves on safekeeper {safekeeper_id} (run {live_proposer_id[:8]}): stop it first"
                )
    except BaseException as error:
        for connection in connections.values():
            await connection.close()
        if isinstance(error, SafekeeperUnreachable):
            raise ConfigurationError(
                f"{error}: a rebootstrap needs every safekeeper; replace a lost one with an empty one first"
            ) from None
        raise
    return connections


async def _last_tli(connection: SafekeeperRequests) -> int:
    """Return the timeline of the last page of the safekeeper's WAL."""
    greeting = connection.greeting
    page_lsn = (greeting.flush_lsn - 1) // PAGE_SIZE * PAGE_SIZE
    if greeting.flush_lsn - page_lsn < PAGE_HEADER_SIZE and page_lsn > greeting.wal_begin_lsn:
        page_lsn -= PAGE_SIZE
    # A safekeeper serves reads to the promised LeaderId only. A read changes nothing, so using that id is safe.
    end_lsn = min(page_lsn + PAGE_HEADER_SIZE, greeting.flush_lsn)
    page = await connection.ask(ReadRequest(greeting.promised, 1, page_lsn, end_lsn), ReadResponse)
    if len(page.payload) < PAGE_HEADER_SIZE:
        raise WalproxyError(f"{connection.name} has no whole WAL page at {format_lsn(page_lsn)}")
    _, _, tli, _, _ = PAGE_HEADER.unpack_from(page.payload)
    return int(tli)
