"""`walproxy members`: look at the members, and change them, through the safekeepers.

The command connects to every safekeeper as a proxy does, with the same protection, and reads its state from its
greeting. It hands the change to any safekeeper that follows a leader, which relays it; the leader makes the change
(walproxy/proposer/member_change.py). The leader keeps the wish in its memory only: the command repeats it until a
quorum has the last membership on disk. So every process may be killed at any time, and the command be repeated.
"""

import asyncio
import secrets
from collections.abc import Callable, Mapping
from typing import NamedTuple

from safekeeper.base.errors import WalproxyError
from safekeeper.base.settings import Address
from safekeeper.base.settings import address as parse_address
from safekeeper.consensus.membership import Member
from safekeeper.consensus.messages import (
    AcceptorGreeting,
    ChangeMembers,
    MembersAnswer,
    PreVoteRequest,
    PreVoteResponse,
    RefusalCode,
)
from safekeeper.net.safekeeper_connection import Credentials
from walproxy.proposer.member_change import Target
from walproxy.proposer.roster import Cluster
from walproxy.proxy.members_plan import (
    Cancel,
    Headway,
    Wish,
    has_ended,
    headway,
    target_of_wish,
)
from walproxy.proxy.safekeeper_requests import RequestRefused, SafekeeperRequests
from walproxy.proxy.sight import Sight

_POLL_S = 0.2
_REPEAT_S = 1.0
# An election may be under way when the command begins, or take place meanwhile.
_NO_LEADER_S = 15.0


class Changed(NamedTuple):
    """The end of a change.

    Attributes:
        changed: whether the leader was asked for it; else nothing was to do.
    """

    cluster: Cluster
    changed: bool


class Fleet:
    """The safekeepers of a command: the listed ones, and the members that the list lacks.

    Args:
        timeout_s: how long one may take to reply, its connection included; None: as `SafekeeperRequests`.
    """

    def __init__(
        self,
        safekeepers: tuple[tuple[int, Address], ...],
        credentials: Credentials,
        *,
        timeout_s: float | None = None,
    ) -> None:
        self._addresses = dict(safekeepers)
        self._credentials = credentials
        self._timeout_s = timeout_s
        self._run = secrets.token_hex(16)
        self._connections: dict[int, SafekeeperRequests] = {}

    @property
    def addresses(self) -> dict[int, Address]:
        """Where each safekeeper is dialled, by its id."""
        return dict(self._addresses)

    def dial(self, safekeeper_id: int, address: Address) -> None:
        """Take this address for a safekeeper from now on."""
        if self._addresses.get(safekeeper_id) != address:
            self._addresses[safekeeper_id] = address
            self._connections.pop(safekeeper_id, None)

    async def look(self) -> Sight:
        """Greet all safekeepers at once, also the members that they name, and return what was found."""
        found: dict[int, AcceptorGreeting | str] = {}
        while lacking := sorted(self._addresses.keys() - found.keys()):
            found.update(zip(lacking, await asyncio.gather(*map(self.see, lacking)), strict=True))
            for each in found.values():
                if not isinstance(each, str) and each.membership is not None:
                    for half in each.membership.halves():
                        self._learn(half)
        return self.sight_of(found)

    def sight_of(self, found: Mapping[int, AcceptorGreeting | str]) -> Sight:
        """Return what `see` has found of some safekeepers."""
        return Sight(
            {i: each for i, each in found.items() if not isinstance(each, str)},
            {i: each for i, each in found.items() if isinstance(each, str)},
            {i: str(self._addresses[i]) for i in found},
        )

    def _learn(self, members: tuple[Member, ...]) -> None:
        for member in members:
            if member.id not in self._addresses and member.address:
                self._addresses[member.id] = parse_address(member.address)

    async def see(self, safekeeper_id: int) -> AcceptorGreeting | str:
        """Greet one safekeeper; return its reply, or why there is none."""
        connection = self._connections.get(safekeeper_id)
        if connection is None:
            connection = SafekeeperRequests(safekeeper_id, self._addresses[safekeeper_id], self._credentials)
        try:
            async with asyncio.timeout(self._timeout_s):
                greeting = await connection.greet(self._run)
        except TimeoutError:
            self._connections.pop(safekeeper_id, None)
            return f"{connection.name} did not reply within {self._timeout_s or 0:g} s"
        except WalproxyError as error:
            self._connections.pop(safekeeper_id, None)
            return str(error)
        self._connections[safekeeper_id] = connection
        return greeting

    async def live_proposers(self) -> dict[int, str]:
        """Return the proxy with a primary that each safekeeper follows, "" for none, of those that reply (step 2)."""
        connections = list(self._connections.items())
        answers = await asyncio.gather(*(self._live_proposer(each, connection) for each, connection in connections))
        return {each: run for (each, _), run in zip(connections, answers, strict=True) if run is not None}

    async def _live_proposer(self, safekeeper_id: int, connection: SafekeeperRequests) -> str | None:
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await connection.ask(PreVoteRequest(self._run, takeover=False), PreVoteResponse)
        except (WalproxyError, TimeoutError):
            await self._drop(safekeeper_id)
            return None
        return answer.live_proposer_id

    async def request(self, change: ChangeMembers) -> str | None:
        """Hand a change to the leader, through a safekeeper that follows it.

        Returns:
            Why the leader refuses it, empty if it makes it; None if no safekeeper follows a leader.
        """
        for safekeeper_id, connection in sorted(self._connections.items()):
            try:
                answer = await connection.ask(change, MembersAnswer)
            except RequestRefused as refused:
                if refused.code is not RefusalCode.NO_LEADER:
                    raise
            except WalproxyError:
                # Its proxy may have been lost with the request. The change is repeated in any case.
                await self._drop(safekeeper_id)
            else:
                return answer.refusal
        return None

    async def _drop(self, safekeeper_id: int) -> None:
        connection = self._connections.pop(safekeeper_id, None)
        if connection is not None:
            await connection.close()

    async def close(self) -> None:
        """Close all connections."""
        for safekeeper_id in list(self._connections):
            await self._drop(safekeeper_id)


async def change_members(
    fleet: Fleet,
    wish: Wish,
    *,
    force: bool = False,
    begun: Callable[[Cluster, Target], None],
    show: Callable[[Headway], None],
) -> Changed:
    """Fulfil a wish, and return when a quorum of the wanted members has that on disk.

    Args:
        force: begin even if commits wait then.
        begun: is called once, with the present cluster and the wanted members, before anything is changed.
        show: is called with the headway at each look.

    Raises:
        ConfigurationError: the wish cannot be fulfilled.
        WalproxyError: the leader refuses it, or there is no leader for 15 s.
    """
    loop = asyncio.get_running_loop()
    sight = await fleet.look()
    first = sight.present_cluster()
    wanted = target_of_wish(wish, first, sight)
    begun(first, wanted)
    led_at, request_at = loop.time(), 0.0
    is_handed_over = False
    while True:
        cluster = sight.present_cluster()
        # Before the change has begun, nothing shows a wish that is to be cancelled.
        if has_ended(cluster, wanted, sight) and (is_handed_over or not isinstance(wish, Cancel)):
            return Changed(cluster, is_handed_over)
        _check_newcomer(cluster, wanted, sight)
        if loop.time() >= request_at:
            request_at = loop.time() + _REPEAT_S
            change = ChangeMembers(
                0, first.id, first.membership.generation, wanted.members, wanted.sizes, force, is_handed_over
            )
            refusal = await fleet.request(change)
            if refusal is not None:
                led_at = loop.time()
            elif loop.time() - led_at > _NO_LEADER_S:
                problems = sight.describe_problems()
                raise WalproxyError(
                    f"no safekeeper follows a proxy for {_NO_LEADER_S:.0f} s, and only a proxy that leads changes the "
                    f"members: start walproxy run, and repeat the command{f' ({problems})' if problems else ''}"
                )
            if refusal:
                sight = await fleet.look()
                if has_ended(sight.present_cluster(), wanted, sight):
                    continue
                raise WalproxyError(f"the leader refuses: {refusal}")
            is_handed_over = is_handed_over or refusal == ""
        show(headway(cluster, wanted, sight))
        await asyncio.sleep(_POLL_S)
        sight = await fleet.look()


def _check_newcomer(cluster: Cluster, wanted: Target, sight: Sight) -> None:
    """Refuse to wait for a data folder that another one has replaced since the command began."""
    present = cluster.membership.identities()
    for member in wanted.members:
        greeting = sight.greetings.get(member.id)
        if member.identity not in present and greeting is not None and greeting.incarnation != member.incarnation:
            raise WalproxyError(
                f"safekeeper {member.id} has another data folder than when the command began: run walproxy members "
                "cancel, and repeat the command"
            )
