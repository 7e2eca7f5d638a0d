"""Exchanges with all safekeepers at once: an agent's report and the shared settings, for what they keep (step 14).

One conversation at a time is under way with each safekeeper: connect if that is necessary, greet, exchange. `exchange`
starts one with every safekeeper that is free, and waits for them until its timeout. A conversation that takes longer
continues without it; what it receives then is not used, because it is old, and the next exchange does not wait for that
safekeeper if the others are a quorum. A safekeeper that cannot be reached is dialled again after a pause.

The greeting before each exchange shows the present membership, so that members which were added are dialled, too.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from safekeeper.base.errors import LocalProtocolError, WalproxyError
from safekeeper.base.settings import Address
from safekeeper.base.settings import address as parse_address
from safekeeper.consensus.membership import Member
from safekeeper.consensus.messages import AcceptorGreeting, AgentExchange, AgentSettingsVersion, AgentView, RefusalCode
from safekeeper.net.safekeeper_connection import Credentials
from safekeeper.peers.message_checks import AGENT_REPORT_BYTES_MAX, AGENT_SETTINGS_BYTES_MAX
from walproxy.agent.report import AgentSettings, encode
from walproxy.agent.sight import AgentSight, TimedView
from walproxy.proposer.roster import Cluster
from walproxy.proxy.safekeeper_requests import RequestRefused, SafekeeperRequests
from walproxy.proxy.sight import latest_cluster

_PAUSE_MIN_S = 0.05
_PAUSE_MAX_S = 1.0
# For a connection with its greeting, and for each further reply on it; then it is closed.
_REPLY_TIMEOUT_S = 5.0
# A safekeeper whose disk is full is offered the settings again after this.
_OFFER_AGAIN_AFTER_S = 5.0
# A safekeeper with another data folder than the member's is dialled at its other address after this.
_REDIRECT_AFTER_S = 5.0
# A change of the settings lets other exchanges take place after each part of this length.
_CHANGE_PART_S = 1.0
_CHANGE_PAUSE_S = 0.1


@dataclass(slots=True)
class _Peer:
    """One safekeeper.

    Attributes:
        addresses: where it is dialled, alternately: the listed one, and the member's if that is another one.
        is_listed: by the caller; else it is dialled only while it is a member.
        requests: its connection, None if there is none.
        conversation: the one under way, None if it is free.
        began_at: when that began.
        has: the key of the settings that it has, as it last replied; (0, "") for none. None: unknown.
        problem: why the last conversation has failed, empty if it has not.
        settings_problem: why it does not keep the settings that it was last offered, empty if it does.
    """

    addresses: list[Address]
    is_listed: bool
    attempts: int = 0
    requests: SafekeeperRequests | None = None
    conversation: "asyncio.Task[None] | None" = None
    began_at: float = 0.0
    has: tuple[int, str] | None = None
    problem: str = ""
    settings_problem: str = ""
    pause_s: float = _PAUSE_MIN_S
    dial_at: float = 0.0
    offer_at: float = 0.0
    redirect_at: float = 0.0

    @property
    def address(self) -> Address:
        """Where it is dialled next."""
        return self.addresses[self.attempts % len(self.addresses)]


@dataclass(slots=True)
class _Round:
    """One exchange with all safekeepers.

    Attributes:
        cluster: the one to exchange with; None if it is not known yet.
        is_decided: set when it is known, or the exchange is over.
        tried: the safekeepers with which a conversation was begun.
        doubted: those that were not free, or had failed, when it began: it does not wait for them if it has a quorum.
    """

    began_at: float
    report: bytes
    cluster: Cluster | None
    doubted: frozenset[int]
    is_over: bool = False
    is_decided: asyncio.Event = field(default_factory=asyncio.Event)
    tried: set[int] = field(default_factory=set)
    greetings: dict[int, AcceptorGreeting] = field(default_factory=dict)
    views: dict[int, TimedView] = field(default_factory=dict)


class SafekeeperViews:
    """Connections to all safekeepers: the listed ones, and the members that the list lacks.

    Args:
        safekeepers: ids and addresses.
        name: of the agent; empty for a command.
        clock: monotonic, in seconds.

    Attributes:
        credentials: for new connections.
    """

    def __init__(
        self,
        safekeepers: Sequence[tuple[int, Address]],
        credentials: Credentials,
        name: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.credentials = credentials
        self._name = name
        self._clock = clock
        self._run = secrets.token_hex(16)
        self._peers = {i: _Peer([address], is_listed=True) for i, address in safekeepers}
        self._cluster: Cluster | None = None
        self._newest: AgentSettingsVersion | None = None  # Of this cluster, of all that members had.
        self._exchanging = asyncio.Lock()
        self._changed = asyncio.Event()  # A conversation has ended, or has received a greeting.
        self._bug: BaseException | None = None

    async def exchange(self, report: bytes, *, timeout_s: float) -> AgentSight:
        """Exchange with all safekeepers; return when all have replied or failed, or when the timeout has passed.

        Members with older settings than the newest ones that a member had in the last exchange receive those.

        Args:
            report: what the other agents see of this one; empty: nothing is reported.

        Raises:
            LocalProtocolError: the report is longer than safekeepers accept.
        """
        return await self._exchange(report, None, timeout_s, lambda sight: False)

    async def change_settings(
        self, change: Callable[[AgentSettings], AgentSettings], *, timeout_s: float
    ) -> AgentSettings:
        """Change the shared settings, and return them once a quorum has them on disk.

        Two changes at the same moment may be written one over the other: the later one wins. That is mostly noticed by
        the other one, which is then repeated.

        Args:
            change: returns the new settings; it may be called several times, each time with the present ones.

        Raises:
            WalproxyError: no quorum replies, or none confirms the new settings, in time; the settings cannot be read.
        """
        deadline = self._clock() + timeout_s
        while True:
            sight = await self._until(lambda sight: sight.has_quorum(), None, deadline)
            if not sight.has_quorum():
                raise WalproxyError(
                    f"the settings of the agents are not changed, no quorum of the safekeepers has replied within "
                    f"{timeout_s:g} s: {sight.missing()}"
                )
            before, present = sight.settings(), sight.shared()
            wanted = change(present)
            version = before
            if wanted != present:
                counter = before.counter + 1 if before is not None else 1
                version = AgentSettingsVersion(counter, secrets.token_hex(16), encode(wanted))
            if version is None:
                return wanted
            sight = await self._until(_is_settled(version), version, deadline)
            newest = sight.settings()
            if newest is not None and newest.key > version.key and self._clock() < deadline:
                continue  # Another change was written at the same time: this one is made from there.
            if not sight.keeps(version):
                raise WalproxyError(
                    f"no quorum of the safekeepers has confirmed the settings of the agents within {timeout_s:g} s; "
                    f"they may be changed later: {sight.missing()}"
                )
            return wanted

    async def close(self) -> None:
        """Close all connections."""
        conversations = [peer.conversation for peer in self._peers.values() if peer.conversation is not None]
        for conversation in conversations:
            conversation.cancel()
        await asyncio.gather(*conversations, return_exceptions=True)
        for peer in self._peers.values():
            await _disconnect(peer)

    async def _until(
        self, is_enough: Callable[[AgentSight], bool], settings: AgentSettingsVersion | None, deadline: float
    ) -> AgentSight:
        """Exchange repeatedly, without a report, until what is found is enough, or until the deadline."""
        while True:
            left_s = deadline - self._clock()
            sight = await self._exchange(b"", settings, max(0.0, min(left_s, _CHANGE_PART_S)), is_enough)
            if is_enough(sight) or self._clock() >= deadline:
                return sight
            await asyncio.sleep(_CHANGE_PAUSE_S)

    async def _exchange(
        self,
        report: bytes,
        settings: AgentSettingsVersion | None,
        timeout_s: float,
        is_enough: Callable[[AgentSight], bool],
    ) -> AgentSight:
        """Exchange, until all have replied or failed, or what is found is enough, or the timeout has passed."""
        for what, content, bytes_max in (
            ("report", report, AGENT_REPORT_BYTES_MAX),
            ("settings", settings.content if settings is not None else b"", AGENT_SETTINGS_BYTES_MAX),
        ):
            if len(content) > bytes_max:
                raise LocalProtocolError(
                    f"{len(content)} bytes are too many for the {what} of an agent: at most {bytes_max}"
                )
        async with self._exchanging:
            if settings is not None:
                self._newest = _newer(self._newest, settings)
            doubted = frozenset(i for i, peer in self._peers.items() if peer.problem or peer.conversation is not None)
            current = _Round(self._clock(), report, self._cluster, doubted)
            try:
                async with asyncio.timeout(timeout_s):
                    while not self._is_complete(current, is_enough):
                        self._changed.clear()
                        await self._changed.wait()
            except TimeoutError:
                pass  # The sight shows which of them have replied.
            finally:
                current.is_over = True
                current.is_decided.set()
            await self._take_cluster(current)
            sight = self._sight(current)
            if sight.settings() is not None:
                self._newest = _newer(self._newest, sight.settings())
            return sight

    def _is_complete(self, current: _Round, is_enough: Callable[[AgentSight], bool]) -> bool:
        """Begin what can be begun; return whether nothing is to be waited for."""
        if self._bug is not None:
            raise self._bug
        self._begin_conversations(current)
        self._decide(current)
        sight = self._sight(current)
        if is_enough(sight):
            return True
        busy = {i for i, peer in self._peers.items() if peer.conversation is not None}
        return not (busy - current.doubted if sight.has_quorum() else busy)

    def _begin_conversations(self, current: _Round) -> None:
        now = self._clock()
        for safekeeper_id, peer in self._peers.items():
            if peer.conversation is None and safekeeper_id not in current.tried and now >= peer.dial_at:
                current.tried.add(safekeeper_id)
                peer.began_at = now
                peer.conversation = asyncio.create_task(self._converse(safekeeper_id, peer, current))
                peer.conversation.add_done_callback(self._conversation_ended)

    def _conversation_ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and task.exception() is not None:
            self._bug = task.exception()  # `exchange` raises it, since the event loop would only log it.
        self._changed.set()

    def _decide(self, current: _Round) -> None:
        """Choose the cluster, if it was not known before: the latest with a quorum, else the latest of all greeted."""
        if current.cluster is None:
            still_to_greet = {i for i, peer in self._peers.items() if peer.conversation is not None}
            is_last = not still_to_greet - current.greetings.keys()
            current.cluster = latest_cluster(current.greetings, with_quorum=True)
            if current.cluster is None and is_last:
                current.cluster = latest_cluster(current.greetings, with_quorum=False)
                if current.cluster is None:
                    current.is_decided.set()
        if current.cluster is not None:
            current.is_decided.set()

    async def _take_cluster(self, current: _Round) -> None:
        """Follow a change of the members, or a rebootstrap, that the greetings show."""
        before, greetings = self._cluster, current.greetings
        own = {i: each for i, each in greetings.items() if before is None or each.cluster_id in ("", before.id)}
        found = (
            latest_cluster(own, with_quorum=True)
            or latest_cluster(greetings, with_quorum=True)
            or latest_cluster(own, with_quorum=False)
        )
        if found is None or (before is not None and before.id == found.id and not found.is_later_than(before)):
            return
        if before is not None and before.id != found.id:
            self._newest = None  # The other cluster's settings are not these agents'.
            for peer in self._peers.values():
                peer.has = None
        self._cluster = found
        for safekeeper_id, peer in list(self._peers.items()):
            if not peer.is_listed and peer.conversation is None and safekeeper_id not in found.membership.ids():
                del self._peers[safekeeper_id]
                await _disconnect(peer)

    def _sight(self, current: _Round) -> AgentSight:
        cluster = current.cluster
        if current.is_over and self._cluster is not None:
            cluster = self._cluster
        views = {i: timed for i, timed in current.views.items() if cluster and timed.view.cluster_id == cluster.id}
        problems = {}
        for safekeeper_id, peer in sorted(self._peers.items()):
            problem = self._problem_of(safekeeper_id, peer, has_replied=safekeeper_id in views)
            if problem:
                problems[safekeeper_id] = problem
        if cluster is not None:
            for safekeeper_id in sorted(cluster.membership.ids() - self._peers.keys()):
                problems[safekeeper_id] = f"the address of safekeeper {safekeeper_id} is unknown"
        return AgentSight(dict(current.greetings), problems, began_at=current.began_at, cluster=cluster, views=views)

    def _problem_of(self, safekeeper_id: int, peer: _Peer, *, has_replied: bool) -> str:
        if has_replied:
            return peer.settings_problem
        if peer.conversation is not None:
            waited_s = self._clock() - peer.began_at
            return f"safekeeper {safekeeper_id} at {peer.address} has not replied for {waited_s:.1f} s"
        return peer.problem

    async def _converse(self, safekeeper_id: int, peer: _Peer, current: _Round) -> None:
        """Exchange with one safekeeper."""
        name = f"safekeeper {safekeeper_id} at {peer.address}"
        try:
            requests = peer.requests
            if requests is None or not requests.is_open:
                peer.requests = requests = SafekeeperRequests(safekeeper_id, peer.address, self.credentials)
                peer.has = None
            async with asyncio.timeout(_REPLY_TIMEOUT_S):
                greeting = await requests.greet(self._run)
            self._greeted(safekeeper_id, greeting, current)
            await current.is_decided.wait()
            if current.cluster is None or current.is_over:
                peer.problem = ""  # The next exchange waits for it.
                return
            problem = _misfit(name, greeting, current.cluster)
            if not problem:
                sent_at = self._clock()
                view = await self._ask(requests, peer, current.report, current.cluster)
                peer.has = view.settings.key if view.settings is not None else (0, "")
                if not current.is_over:
                    current.views[safekeeper_id] = TimedView(view, sent_at)
            peer.problem, peer.pause_s = problem, _PAUSE_MIN_S
            await self._redirect(safekeeper_id, peer, greeting, current.cluster)
        except TimeoutError:
            await self._give_up(peer, f"{name} did not reply within {_REPLY_TIMEOUT_S:g} s")
        except RequestRefused as refused:
            is_other = refused.code is RefusalCode.VERSION
            problem = f"{name} has another version than this program, upgrade the older one: {refused.reason}"
            await self._give_up(peer, problem if is_other else str(refused))
        except WalproxyError as error:
            await self._give_up(peer, str(error))
        finally:
            peer.conversation = None

    def _greeted(self, safekeeper_id: int, greeting: AcceptorGreeting, current: _Round) -> None:
        if current.is_over:
            return
        current.greetings[safekeeper_id] = greeting
        for half in greeting.membership.halves() if greeting.membership is not None else ():
            for member in half:
                self._learn(member)
        self._changed.set()

    def _learn(self, member: Member) -> None:
        """Dial a member at the address that the membership has, too."""
        try:
            address = parse_address(member.address)
        except ValueError:
            return  # If that is its only address, it is reported as unknown.
        peer = self._peers.get(member.id)
        if peer is None:
            self._peers[member.id] = _Peer([address], is_listed=False)
        elif address not in peer.addresses:
            peer.addresses = [*(peer.addresses[:1] if peer.is_listed else ()), address]

    async def _ask(self, requests: SafekeeperRequests, peer: _Peer, report: bytes, cluster: Cluster) -> AgentView:
        """Exchange; with the newest settings, if the safekeeper has older ones and can write them."""
        exchange = AgentExchange(cluster.id, self._name if report else "", report)
        newest = self._newest
        async with asyncio.timeout(_REPLY_TIMEOUT_S):
            if newest is None or (peer.has is not None and peer.has >= newest.key) or self._clock() < peer.offer_at:
                return await requests.ask(exchange, AgentView)
            try:
                view = await requests.ask(msgspec.structs.replace(exchange, settings=newest), AgentView)
            except RequestRefused as refused:
                if refused.code is not RefusalCode.STORAGE_FULL:
                    raise
                # What it has of the log and of the other agents is needed nevertheless.
                peer.settings_problem = str(refused)
                peer.offer_at = self._clock() + _OFFER_AGAIN_AFTER_S
                return await requests.ask(exchange, AgentView)
            peer.settings_problem = ""
            return view

    async def _redirect(self, safekeeper_id: int, peer: _Peer, greeting: AcceptorGreeting, cluster: Cluster) -> None:
        """Disconnect, to dial the other address next, if another data folder than the member's has replied."""
        membership, now = cluster.membership, self._clock()
        is_member = membership.is_voter(safekeeper_id, greeting.incarnation) and greeting.cluster_id == cluster.id
        if len(peer.addresses) > 1 and safekeeper_id in membership.ids() and not is_member and now >= peer.redirect_at:
            peer.redirect_at = now + _REDIRECT_AFTER_S
            peer.attempts += 1
            await _disconnect(peer)

    async def _give_up(self, peer: _Peer, problem: str) -> None:
        """Close the connection, and dial again after a pause."""
        peer.problem = problem
        peer.dial_at = self._clock() + peer.pause_s
        peer.pause_s = min(2 * peer.pause_s, _PAUSE_MAX_S)
        peer.attempts += 1
        await _disconnect(peer)


async def _disconnect(peer: _Peer) -> None:
    requests, peer.requests, peer.has = peer.requests, None, None
    if requests is not None:
        await requests.close()


def _misfit(name: str, greeting: AcceptorGreeting, cluster: Cluster) -> str:
    """Return why a safekeeper is not one of this cluster, empty if it is."""
    if greeting.cluster_id == cluster.id:
        return ""
    if not greeting.cluster_id:
        return f"{name} does not belong to a cluster yet"
    return f"{name} belongs to cluster {greeting.cluster_id[:8]}, not to {cluster.id[:8]}"


def _newer(one: AgentSettingsVersion | None, other: AgentSettingsVersion | None) -> AgentSettingsVersion | None:
    if one is None or other is None:
        return one or other
    return max(one, other, key=lambda version: version.key)


def _is_settled(version: AgentSettingsVersion) -> Callable[[AgentSight], bool]:
    """Return whether a quorum has this version, or any member a newer one."""

    def is_settled(sight: AgentSight) -> bool:
        newest = sight.settings()
        return sight.keeps(version) or (newest is not None and newest.key > version.key)

    return is_settled
