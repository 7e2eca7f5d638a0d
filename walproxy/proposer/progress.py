"""The progress of one safekeeper in a term: its state, its positions, and the transitions between the states.

    greeting ---> ADOPTING ---> STREAMING <---> FETCHING, PULLING
                                |      ^
                                v      |
                                SKIPPING              every state ---> DISCONNECTED

A safekeeper that reconnects gets a new `Progress` (`Progress.of`), which keeps the position that is durable in its
folder. Each transition is one method here; `TRANSITIONS` lists those that are allowed, and `check` what is true in each
state.

Pure.
"""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from safekeeper.base.errors import InvariantViolation
from safekeeper.base.lsn import Lsn, format_lsn
from safekeeper.consensus.membership import Identity
from safekeeper.consensus.messages import FolderStates
from walproxy.proposer.pulling import Pull


class State(Enum):
    """What the leader does for a safekeeper; each comment names the events that end the state."""

    ADOPTING = "adopting"  # `Elected` was sent; its first AppendResponse: STREAMING
    STREAMING = "streaming"  # it is sent WAL of the window; it needs WAL below: FETCHING, PULLING, or SKIPPING
    FETCHING = "fetching"  # WAL was requested from another member; the answer, a refusal, or its end: STREAMING
    PULLING = "pulling"  # it was sent `PullWal`; its `PullEnded`: STREAMING
    SKIPPING = "skipping"  # `Elected` was sent again; an AppendResponse from there or beyond: STREAMING
    DISCONNECTED = "disconnected"  # its connection is closed; a greeting replaces this Progress


TRANSITIONS: dict[State, frozenset[State]] = {
    State.ADOPTING: frozenset({State.STREAMING, State.DISCONNECTED}),
    State.STREAMING: frozenset({State.FETCHING, State.PULLING, State.SKIPPING, State.DISCONNECTED}),
    State.FETCHING: frozenset({State.STREAMING, State.DISCONNECTED}),
    State.PULLING: frozenset({State.STREAMING, State.DISCONNECTED}),
    State.SKIPPING: frozenset({State.STREAMING, State.DISCONNECTED}),
    State.DISCONNECTED: frozenset({State.DISCONNECTED}),
}


_FOLLOWING = frozenset({State.STREAMING, State.FETCHING, State.PULLING})


class Fetch(NamedTuple):
    """An outstanding request for WAL that a member lacks and that is no longer in the window.

    Attributes:
        request_id: its number, which the answer contains.
        source: the safekeeper that received the request.
        begin_lsn, end_lsn: the range.
    """

    request_id: int
    source: int
    begin_lsn: Lsn
    end_lsn: Lsn


@dataclass(slots=True)
class Progress:
    """One safekeeper in one term. All times are the proposer's monotonic clock, in seconds.

    Attributes:
        identity: the data folder that has greeted.
        voter: whether it counts for the quorum; a learner receives WAL and does not.
        state: see `State`; changed by the `become_` methods only.
        follows: whether the state is STREAMING, FETCHING or PULLING: it has answered `Elected` on this connection. It
            is stored because the hot path reads it some twenty times a commit.
        adopted: whether it has adopted the term's history, on any connection; then its flush_lsn counts.
        sent_lsn, write_lsn, flush_lsn: the end of the WAL that was sent to it, that it has received, and that is
            durable there. Without a connection, what it had only received does not count: write_lsn is flush_lsn.
        last_begin_lsn: the start of the last append with WAL that was sent to it.
        adopted_lsn: the end of its log in its answer to `Elected` on this connection.
        wal_begin_lsn: the first byte of WAL that it retains, as it has reported in this term; 0 before.
        skipped_to_lsn: while SKIPPING, the base_lsn of the `Elected` that was sent again.
        sent_commit_lsn: the commit_lsn in the last message to it.
        acked_sequence: the highest sequence number that it has answered.
        last_sent_at, last_response_at: when the last append was sent, and the last answer received (None: never).
        waiting_since: since when an answer is awaited, None if none is.
        fetch: while FETCHING, the outstanding request.
        pull: while PULLING, what it pulls from other members.
        pull_allowed_at: when the next pull may begin.
        pull_problem: why the last pull has failed, empty if it has not.
        pulled_bytes: the WAL that it has pulled in this term.
        fetch_allowed_at: when the rate of fetches for it allows the next one.
        generation: the generation of the term's membership that it has on disk, as far as known; 0 for an older term's.
        elected_generation: that of the membership in the last `Elected` to it.
        has_readers: replication clients stream from it, so commits are sent to it at once.
        refusal: the reason for which it refused WAL, or `Elected`; empty if it has not, or if an append has succeeded
            since.
        sent_folders: what it was last told of the members' data folders on this connection, None before.
        is_doubted: a connection to it was closed with WAL in flight, and no append has succeeded since: a refusal may
            have been lost with that connection.
    """

    identity: Identity
    voter: bool
    state: State = State.ADOPTING
    follows: bool = False
    adopted: bool = False
    sent_lsn: Lsn = 0
    write_lsn: Lsn = 0
    flush_lsn: Lsn = 0
    last_begin_lsn: Lsn = 0
    adopted_lsn: Lsn = 0
    wal_begin_lsn: Lsn = 0
    skipped_to_lsn: Lsn = 0
    sent_commit_lsn: Lsn = 0
    acked_sequence: int = -1
    last_sent_at: float = 0.0
    last_response_at: float | None = None
    waiting_since: float | None = None
    fetch: Fetch | None = None
    fetch_allowed_at: float = 0.0
    pull: Pull | None = None
    pull_allowed_at: float = 0.0
    pull_problem: str = ""
    pulled_bytes: int = 0
    generation: int = 0
    elected_generation: int = 0
    has_readers: bool = False
    refusal: str = ""
    is_doubted: bool = False
    sent_folders: FolderStates | None = None

    @classmethod
    def of(cls, identity: Identity, voter: bool, known: "Progress | None") -> "Progress":
        """Return the progress of a safekeeper that has greeted; `known` is that of its connection before, if any.

        WAL that was durable in the same folder still counts. A folder with another incarnation is not a voter (S8).
        """
        progress = cls(identity, voter)
        if known is not None:
            progress.refusal, progress.is_doubted = known.refusal, known.is_doubted
            progress.pull_allowed_at, progress.pull_problem = known.pull_allowed_at, known.pull_problem
            progress.pulled_bytes = known.pulled_bytes
            if known.identity == identity:
                progress.generation = known.generation
            if known.voter and voter and known.identity == identity:
                progress.adopted = known.adopted
                progress.write_lsn = progress.flush_lsn = known.flush_lsn
        return progress

    @property
    def is_connected(self) -> bool:
        """Whether `Elected` was sent on a connection that is still open."""
        return self.state is not State.DISCONNECTED

    # The transitions.

    def become_streaming(self, log_end_lsn: Lsn) -> None:
        """Handle its answer to `Elected`: its log is a prefix of the term's, and ends at `log_end_lsn` (S5)."""
        self._enter(State.STREAMING)
        self.adopted = True
        self.adopted_lsn = log_end_lsn
        self.generation = max(self.generation, self.elected_generation)
        self.skipped_to_lsn = 0

    def become_skipping(self, to_lsn: Lsn) -> None:
        """Record that `Elected` is sent to it again: its log is to continue at `to_lsn` (S6)."""
        self._enter(State.SKIPPING)
        self.skipped_to_lsn = to_lsn

    def become_fetching(self, fetch: Fetch) -> None:
        """Record a request to another member for the WAL that it needs next."""
        self._enter(State.FETCHING)
        self.fetch = fetch

    def end_fetch(self) -> Fetch:
        """Return the request, which was answered or will not be, and change to STREAMING."""
        fetch = self.fetch
        assert fetch is not None  # by the callers, and by check
        self._enter(State.STREAMING)
        self.fetch = None
        return fetch

    def become_pulling(self, pull: Pull) -> None:
        """Record that it reads WAL from other members."""
        self._enter(State.PULLING)
        self.pull = pull

    def end_pull(self) -> Pull:
        """Return the pull, which has ended, and change to STREAMING."""
        pull = self.pull
        assert pull is not None  # by the callers, and by check
        self._enter(State.STREAMING)
        self.pull = None
        return pull

    def become_disconnected(self) -> None:
        """Handle the end of its connection."""
        if self.follows and self.write_lsn < self.sent_lsn:
            self.is_doubted = True
        self._enter(State.DISCONNECTED)
        self.write_lsn = self.flush_lsn
        self.skipped_to_lsn = 0
        self.waiting_since = self.fetch = self.pull = None

    def _enter(self, state: State) -> None:
        if state not in TRANSITIONS[self.state]:
            raise InvariantViolation(f"a member cannot change from {self.state.value} to {state.value}")
        self.state = state
        self.follows = state in _FOLLOWING

    def check(self, received_lsn: Lsn) -> None:
        """Check the invariants of each state; `received_lsn` is the end of the term's log.

        Raises:
            InvariantViolation: one is violated.
        """
        state = self.state
        has_fetch, is_fetching = self.fetch is not None, state is State.FETCHING
        has_pull, is_pulling = self.pull is not None, state is State.PULLING
        if self.follows and self.adopted and has_fetch is is_fetching and has_pull is is_pulling:
            if self.flush_lsn <= self.write_lsn <= self.sent_lsn <= received_lsn:
                return  # The usual case, in one comparison: it is checked three times an event.
        elif not self.follows and not has_fetch and not has_pull and self.flush_lsn <= self.write_lsn <= received_lsn:
            if self.adopted or not self.flush_lsn:
                return
            raise InvariantViolation("a member counts before it has adopted the term")
        raise InvariantViolation(
            f"a member cannot be {self.state.value} with flush_lsn {format_lsn(self.flush_lsn)}, write_lsn "
            f"{format_lsn(self.write_lsn)}, sent_lsn {format_lsn(self.sent_lsn)} of {format_lsn(received_lsn)}, "
            f"adopted: {self.adopted}, request: {self.fetch}, pull: {self.pull}"
        )
