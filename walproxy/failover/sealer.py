"""The process that seals a timeline: a proposer without a primary, and its connections to the safekeepers (step 13).

It campaigns until its seal is committed, and then leads on, so that safekeepers know where the log ends and send all of
it to standbys. The other terms of an attempt follow in the same run (`pursue`): the reservation of a number, or the end
of an attempt that has failed. A proxy with a promoted server deposes it by the ordinary pre-vote.
"""

import asyncio
import logging
import random
import secrets
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from safekeeper.base.errors import RemoteProtocolError, WalproxyError
from safekeeper.base.settings import Address
from safekeeper.base.settings import address as parse_address
from safekeeper.consensus.messages import AcceptorMessage, Elected
from safekeeper.net.safekeeper_connection import Credentials
from safekeeper.peers.codec import encode
from walproxy.proposer.actions import Action, Dial, Disconnect, Finish, HangUp, Level, Note, SendAppend, SendMessage
from walproxy.proposer.phase import ProposerConfig
from walproxy.proposer.proposer import Proposer
from walproxy.proposer.purpose import Purpose
from walproxy.proxy.safekeeper_link import SafekeeperLink

logger = logging.getLogger(__name__)

TICK_S = 0.05
_WAITING_INTERVAL_S = 1.0
# A proxy counts as live for a second after its last message, also one that was killed; and so does another sealer.
_RIVAL_PATIENCE_S = 1.5
_LOG_LEVELS = {Level.ERROR: logging.ERROR, Level.WARNING: logging.WARNING, Level.INFO: logging.INFO}


class NotSealed(WalproxyError):
    """The timeline is not sealed. One line says why, and what to do.

    Attributes:
        log_tli: the timeline that the log has gone on to, 0 if it has not.
        is_led: another proxy leads and has a primary. It may have lost that just now.
    """

    def __init__(self, message: str, log_tli: int = 0, *, is_led: bool = False) -> None:
        super().__init__(message)
        self.log_tli = log_tli
        self.is_led = is_led


class Sealer:
    """A proposer that seals, and its connections.

    Attributes:
        proposer: the consensus.
    """

    def __init__(
        self,
        safekeepers: Sequence[tuple[int, Address]],
        *,
        takeover: bool,
        credentials: Credentials,
        timeout_s: float,
        waiting: Callable[[str], None],
    ) -> None:
        self.proposer = Proposer(
            ProposerConfig(
                proposer_id=secrets.token_hex(16),
                safekeeper_ids=tuple(safekeeper_id for safekeeper_id, _ in safekeepers),
                addresses={safekeeper_id: str(address) for safekeeper_id, address in safekeepers},
                takeover=takeover,
                bootstrap=False,
            )
        )
        self._timeout_s = timeout_s
        self._waiting = waiting
        self._purpose: Purpose | None = None
        self._elected: Elected | None = None
        self._is_served = False  # Its purpose is.
        self._credentials = credentials
        self._links = {i: SafekeeperLink(i, address, self, credentials) for i, address in safekeepers}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._last_note = ""
        self._rival_since: float | None = None
        self._error: BaseException | None = None
        self._events: deque[list[Action]] = deque()
        self._executing = False

    @property
    def elected(self) -> Elected:
        """What has begun its last term that was committed. Only after `pursue`."""
        assert self._elected is not None
        return self._elected

    @property
    def given_before(self) -> int | None:
        """What was handed out before its terms, None if it has won none: see `Candidacy`."""
        return self.proposer.candidacy.given_before

    def check(self) -> None:
        """Make sure that the last term is still led.

        Raises:
            NotSealed: it is not.
        """
        if self._error is not None:
            raise self._error
        if self._is_served and self.proposer.leadership is None:
            raise NotSealed(f"the term that {self._purpose} is not led on: {self._last_note}")

    async def pursue(self, purpose: Purpose) -> None:
        """Win a term for a purpose, and wait until its start is committed. The first one is to seal, or to cancel.

        Raises:
            NotSealed: another proxy serves, the log does not admit that purpose, or no quorum has answered in time.
            ConfigurationError: the safekeepers do not belong together.
        """
        shown_at, self._rival_since = _now(), None
        self._purpose, self._is_served = purpose, False
        self._handle(lambda: self.proposer.pursue(purpose, _now()))
        try:
            async with asyncio.timeout(self._timeout_s):
                while not self._is_served:
                    self._check()
                    if _now() - shown_at >= _WAITING_INTERVAL_S:
                        shown_at = _now()
                        self._waiting(self._missing())
                    self._changed.clear()
                    await self._changed.wait()  # Each tick sets it.
        except TimeoutError:
            raise NotSealed(f"no term that {purpose} after {self._timeout_s:g} s: {self._missing()}") from None

    def _check(self) -> None:
        """Raise what keeps it from its purpose for good."""
        self.check()
        obstacle = self.proposer.candidacy.obstacle
        if obstacle is not None:
            raise NotSealed(obstacle.reason, log_tli=obstacle.log_tli)
        if not self.proposer.is_spare:
            self._rival_since = None
            return
        if self._rival_since is None:
            self._rival_since = _now()
        if _now() - self._rival_since >= _RIVAL_PATIENCE_S:
            raise NotSealed(
                "another proxy leads and has a primary: nothing is sealed (walproxy failover --old-is-dead seals it "
                "off nevertheless)",
                is_led=True,
            )

    def _missing(self) -> str:
        problems = [f"safekeeper {i}: {link.problem}" for i, link in sorted(self._links.items()) if not link.is_up]
        return "; ".join(problems) or "no quorum of the safekeepers has voted"

    async def run(self) -> None:
        """Keep connecting, and let the proposer work, until cancelled."""
        try:
            for link in list(self._links.values()):
                self._run_link(link)
            while self._error is None:
                self._handle(lambda: self.proposer.tick(_now(), random.random()))
                await asyncio.sleep(TICK_S)
        except RemoteProtocolError as error:  # Only that of a link closes a connection.
            self._fail(error)
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _run_link(self, link: SafekeeperLink) -> None:
        task = self._tasks[link.safekeeper_id] = asyncio.create_task(link.run())
        task.add_done_callback(self._link_ended)

    def _link_ended(self, task: "asyncio.Task[None]") -> None:
        error = task.exception() if not task.cancelled() else None
        if error is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error
        self._changed.set()

    def link_up(self, safekeeper_id: int) -> None:
        """Handle a connection to a safekeeper that is open now."""
        self._handle(lambda: self.proposer.connected(safekeeper_id, _now()))

    def link_down(self, safekeeper_id: int) -> None:
        """Handle a connection to a safekeeper that is closed now."""
        self._handle(lambda: self.proposer.disconnected(safekeeper_id, _now()))

    def link_message(self, safekeeper_id: int, message: AcceptorMessage) -> None:
        """Handle a message from a safekeeper."""
        self._handle(lambda: self.proposer.message(safekeeper_id, message, _now()))

    def _handle(self, event: Callable[[], list[Action]]) -> None:
        """Let the proposer handle an event, then execute what it wants, and what that raises.

        Raises:
            RemoteProtocolError: a message is invalid: its connection is closed.
        """
        try:
            self._events.append(event())
            if self._executing:
                return
            self._executing = True
            try:
                while self._events:
                    for action in self._events.popleft():
                        self._execute(action)
            finally:
                self._executing = False
        except RemoteProtocolError:
            raise
        except Exception as error:  # A bug: `pursue` raises it, since the event loop would only log it.
            self._fail(error)
        elected = self.proposer.tail_elected
        if elected is not None:
            self._elected, self._is_served = elected, True
        self._changed.set()

    def _execute(self, action: Action) -> None:
        if isinstance(action, SendAppend):
            # A heartbeat: without a primary no WAL is received, and what a member lacks comes from another one.
            for safekeeper_id in action.safekeeper_ids:
                self._links[safekeeper_id].send(encode(action.header))
        elif isinstance(action, SendMessage):
            self._links[action.safekeeper_id].send(encode(action.message))
        elif isinstance(action, Disconnect):
            self._links[action.safekeeper_id].disconnect(action.reason)
        elif isinstance(action, Dial):
            self._dial(action.safekeeper_id, action.address)
        elif isinstance(action, HangUp):
            self._hang_up(action.safekeeper_id, action.reason)
        elif isinstance(action, Note):
            self._last_note = action.text
            logger.log(_LOG_LEVELS[action.level], "%s", action.text)
        elif isinstance(action, Finish):
            self._fail(action.error)

    def _dial(self, safekeeper_id: int, text: str) -> None:
        """Connect to a member at an address that the membership has."""
        try:
            address = parse_address(text)
        except ValueError as error:
            logger.warning("safekeeper %d cannot be dialled: %s", safekeeper_id, error)
            return
        link = self._links.get(safekeeper_id)
        if link is not None:
            link.addresses.append(address)
            return
        link = self._links[safekeeper_id] = SafekeeperLink(safekeeper_id, address, self, self._credentials)
        self._run_link(link)

    def _hang_up(self, safekeeper_id: int, reason: str) -> None:
        """Close the connection to a safekeeper that is no member."""
        link = self._links.pop(safekeeper_id, None)
        if link is not None:
            link.hang_up(reason)
            self._tasks.pop(safekeeper_id).cancel()


def _now() -> float:
    return asyncio.get_running_loop().time()


@asynccontextmanager
async def sealing_run(
    safekeepers: Sequence[tuple[int, Address]],
    *,
    takeover: bool = False,
    credentials: Credentials | None = None,
    timeout_s: float = 30.0,
    waiting: Callable[[str], None] = lambda problem: None,
) -> AsyncIterator[Sealer]:
    """Connect to the safekeepers for the terms of one attempt, and lead the last one on while the block runs.

    Args:
        safekeepers: ids and addresses.
        takeover: the first term also if another proxy leads and has a primary.
        timeout_s: for each term, in seconds.
        waiting: is called with the reason each second while a term is not won.
    """
    sealer = Sealer(
        safekeepers, takeover=takeover, credentials=credentials or Credentials(), timeout_s=timeout_s, waiting=waiting
    )
    task = asyncio.create_task(sealer.run())
    try:
        yield sealer
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
