"""What a failover looks at and changes: the safekeepers and the servers. It decides nothing."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Protocol

from safekeeper.base.settings import Address
from safekeeper.consensus.messages import AcceptorGreeting, Elected
from safekeeper.net.safekeeper_connection import Credentials
from walproxy.failover.candidates import HostLook
from walproxy.failover.log_end import LogEnd, find_log_end
from walproxy.failover.polls import Polls
from walproxy.failover.sealer import Sealer, sealing_run
from walproxy.failover.server import Server
from walproxy.failover.survey import Survey, survey_of
from walproxy.postgres.hosts import PrimaryHost
from walproxy.proposer.purpose import Purpose
from walproxy.proposer.roster import Cluster
from walproxy.proxy.members import Fleet

# A machine that is gone does not refuse a connection: it is silent.
_SURVEY_PATIENCE_S = 3.0
_PATIENCE_S = 0.2


class SealingRun(Protocol):
    """See `Sealer`."""

    @property
    def elected(self) -> Elected: ...
    @property
    def given_before(self) -> int | None: ...
    async def pursue(self, purpose: Purpose) -> None: ...
    def check(self) -> None: ...


class World(Protocol):
    """See `RealWorld`."""

    async def survey(self) -> Survey: ...
    async def looks(self) -> tuple[HostLook, ...]: ...
    async def greetings(self) -> tuple[dict[int, AcceptorGreeting], str]: ...
    def sealing(self, *, takeover: bool, waiting: Callable[[str], None]) -> AbstractAsyncContextManager[SealingRun]: ...
    async def log_end(self, elected: Elected) -> LogEnd: ...
    async def highest_history(self, name: str) -> int: ...
    async def place_histories(self, name: str, tlis: range) -> None: ...
    async def request_promotion(self, name: str, end: LogEnd) -> None: ...
    async def close(self) -> None: ...


class RealWorld:
    """The safekeepers over their protocol, the servers over SQL.

    Args:
        safekeepers: ids and addresses; members that the list lacks are found.
        hosts: the servers.
        seal_timeout_s: for one seal.
        may_be_read_only: see `Server`.
    """

    def __init__(
        self,
        safekeepers: Sequence[tuple[int, Address]],
        hosts: Sequence[PrimaryHost],
        credentials: Credentials,
        *,
        seal_timeout_s: float,
        may_be_read_only: bool = False,
    ) -> None:
        self._safekeepers = tuple(safekeepers)
        self._credentials = credentials
        self._seal_timeout_s = seal_timeout_s
        self._servers = {host.name: Server(host, may_be_read_only=may_be_read_only) for host in hosts}
        self._looks = Polls({name: partial(asyncio.to_thread, server.look) for name, server in self._servers.items()})
        self._fleet: Fleet | None = None
        self._cluster: Cluster | None = None
        self._greetings: Polls[int, AcceptorGreeting | str] | None = None

    async def survey(self) -> Survey:
        """Look at all safekeepers and servers, once.

        Raises:
            WalproxyError: no safekeeper replies.
            ConfigurationError: none is a member.
            FailoverRefused: no member replies, or the log is empty.
        """
        fleet = await self._new_fleet()
        looking = asyncio.create_task(self._looks.answers(_SURVEY_PATIENCE_S))
        try:
            sight = await fleet.look()
            proposers = await fleet.live_proposers()
            looks = self._in_order(await looking)
        finally:
            looking.cancel()
        self._cluster = sight.present_cluster()
        return survey_of(self._cluster, sight, proposers, looks)

    async def looks(self) -> tuple[HostLook, ...]:
        """Return the latest looks at the servers, of which at least one is new."""
        return self._in_order(await self._looks.answers(_PATIENCE_S))

    async def greetings(self) -> tuple[dict[int, AcceptorGreeting], str]:
        """Return the latest greetings of the members, and why others do not reply. Only after `survey`."""
        assert self._fleet is not None and self._cluster is not None  # by `survey`
        if self._greetings is None:
            self._greetings = Polls({each: partial(self._fleet.see, each) for each in self._fleet.addresses})
        sight = self._fleet.sight_of(await self._greetings.answers(_PATIENCE_S))
        return sight.member_greetings(self._cluster), sight.describe_problems()

    def sealing(self, *, takeover: bool, waiting: Callable[[str], None]) -> AbstractAsyncContextManager[Sealer]:
        """See `sealing_run`."""
        return sealing_run(
            self._safekeepers,
            takeover=takeover,
            credentials=self._credentials,
            timeout_s=self._seal_timeout_s,
            waiting=waiting,
        )

    async def log_end(self, elected: Elected) -> LogEnd:
        """Return the end of the log of a sealing term that is led. Raises as `find_log_end`."""
        fleet_addresses = self._fleet.addresses if self._fleet is not None else dict(self._safekeepers)
        return await find_log_end(elected, tuple(fleet_addresses.items()), self._credentials)

    async def highest_history(self, name: str) -> int:
        """See `Server.highest_history`."""
        return await asyncio.to_thread(self._servers[name].highest_history)

    async def place_histories(self, name: str, tlis: range) -> None:
        """See `Server.place_histories`."""
        await asyncio.to_thread(self._servers[name].place_histories, tlis)

    async def request_promotion(self, name: str, end: LogEnd) -> None:
        """See `Server.request_promotion`."""
        await asyncio.to_thread(self._servers[name].request_promotion, end)

    async def close(self) -> None:
        """Close all connections. They are opened again when needed."""
        if self._greetings is not None:
            await self._greetings.close()
            self._greetings = None
        await self._looks.close()
        if self._fleet is not None:
            await self._fleet.close()
            self._fleet = None

    async def _new_fleet(self) -> Fleet:
        if self._greetings is not None or self._fleet is not None:
            await self.close()
        self._fleet = Fleet(self._safekeepers, self._credentials, timeout_s=_SURVEY_PATIENCE_S)
        return self._fleet

    def _in_order(self, found: Mapping[str, HostLook]) -> tuple[HostLook, ...]:
        silent = "has not replied yet"
        return tuple(found.get(name, HostLook(name, problem=silent)) for name in self._servers)
