"""Choices of the product that are safe either way, and which way a run takes them.

The product decides when to flush, how many bytes a message has, when to report, when to request votes. Whatever it
decides, every rule must hold. A bend is one such choice: the defaults are those of all profiles but `swarm`, whose
seeds draw them. Nothing of this is in the product: bends are arguments that it has (`Timing`), constants of its
modules, which `settings` replaces while a simulation runs, and decisions of the shells, which the simulator's take
instead.
"""

from dataclasses import dataclass, fields, replace
from types import ModuleType

from safekeeper.acceptor import acceptor as acceptor_module
from safekeeper.acceptor import trimming as trimming_module
from safekeeper.node import wal_writer as wal_writer_module
from tests.simulation.references.acceptor import log as reference_log
from tests.simulation.references.acceptor import reads as reference_reads
from tests.simulation.references.proposer import primary as reference_primary
from tests.simulation.references.proposer import term as reference_term
from walproxy.proposer import campaign as campaign_module
from walproxy.proposer import primary_events as primary_events_module
from walproxy.proposer import proposer_state as proposer_state_module
from walproxy.proposer import pulling as pulling_module
from walproxy.proposer import replication as replication_module
from walproxy.proposer.liveness import Timing


@dataclass(frozen=True)
class Bends:
    """Which way a run takes the choices; numbers of bytes and of segments are whole.

    Attributes:
        append_bytes: the longest append; short ones are not sent together.
        in_flight_bytes: so much is sent to a member before it answers.
        fetch_bytes: so much a proxy requests at once for a member that lags.
        read_bytes: so much a safekeeper returns at once of what is requested.
        read_ahead_s: fetches are so far ahead of their rate.
        catchup_bytes_per_s: the rate of fetches and pulls.
        pull_bytes: a member that lacks so much pulls it.
        pull_stall_s, pull_again_s: a pull without progress ends, and is tried again.
        window_bytes: a proxy keeps so much WAL.
        heartbeat_s: the interval of heartbeats.
        response_s: a member that does not answer for so long is disconnected.
        vote_s, vote_grace_s: how long votes are awaited: all of them, and the others after a quorum's.
        retry_s: the pause before another campaign.
        backoff_doublings: how often that pause is doubled at most.
        greeting_fresh_s: a greeting that is older is not used for an election.
        verify_bytes_per_s: the rate at which a comparison with a primary is expected.
        tick_s: a proxy's timers.
        status_withheld: probability that the primary receives a status only with the next tick.
        flush_later: probability that a safekeeper's flush begins later, with what is written meanwhile.
        answer_late: probability that an answer of a safekeeper leaves later, with all behind it.
        late_s: the longest delay of these.
        quick_flush_s: a node's flushes that are quicker run on its loop's thread.
        report_write_s: a flush that takes longer is reported as under way.
        checkpoint_s: the interval at which safekeepers write down lazily written positions.
        trim_s: the interval at which they remove old WAL.
        trim_segments: so many segments at once.
        digest_bytes: a safekeeper returns checksums of so much WAL at once, a multiple of a page.
        refused_wait_s: a primary that was refused is not elected for again for so long at first.
    """

    append_bytes: float = 2000.0
    in_flight_bytes: float = 12000.0
    fetch_bytes: float = 3000.0
    read_bytes: float = float(1 << 20)
    read_ahead_s: float = 0.1
    catchup_bytes_per_s: float = float(1 << 20)
    pull_bytes: float = 4000.0
    pull_stall_s: float = 3.0
    pull_again_s: float = 1.0
    window_bytes: float = float(24 << 10)
    heartbeat_s: float = 0.25
    response_s: float = 1.5
    vote_s: float = 0.8
    vote_grace_s: float = 0.05
    retry_s: float = 0.1
    backoff_doublings: float = 5.0
    greeting_fresh_s: float = 1.0
    verify_bytes_per_s: float = float(8 << 20)
    tick_s: float = 0.1
    status_withheld: float = 0.0
    flush_later: float = 0.0
    answer_late: float = 0.0
    late_s: float = 0.1
    quick_flush_s: float = 0.004
    report_write_s: float = 0.02
    checkpoint_s: float = 1.0
    trim_s: float = 0.3
    trim_segments: float = 16.0
    digest_bytes: float = float(1 << 30)
    refused_wait_s: float = 1.5

    def timing(self, timing: Timing) -> Timing:
        """Return the timing of a proposer, bent."""
        return replace(
            timing,
            heartbeat_interval_s=self.heartbeat_s,
            response_timeout_s=self.response_s,
            vote_timeout_s=self.vote_s,
            vote_grace_s=self.vote_grace_s,
            retry_interval_s=self.retry_s,
            refused_wait_min_s=self.refused_wait_s,
            catchup_bytes_per_s=int(self.catchup_bytes_per_s),
        )

    def settings(self) -> tuple[tuple[ModuleType, str, int | float], ...]:
        """Return the constants to replace: module, name, value."""
        return (
            (replication_module, "APPEND_BYTES_MAX", int(self.append_bytes)),
            (replication_module, "IN_FLIGHT_BYTES_MAX", int(self.in_flight_bytes)),
            (replication_module, "READ_BYTES", int(self.fetch_bytes)),
            (replication_module, "READ_AHEAD_S", self.read_ahead_s),
            (replication_module, "PULL_STALL_S", self.pull_stall_s),
            (replication_module, "PULL_AGAIN_S", self.pull_again_s),
            (pulling_module, "PULL_BYTES_MIN", int(self.pull_bytes)),
            (primary_events_module, "GREETING_FRESH_S", self.greeting_fresh_s),
            (proposer_state_module, "BACKOFF_DOUBLINGS_MAX", int(self.backoff_doublings)),
            (campaign_module, "VERIFIED_BYTES_PER_S", int(self.verify_bytes_per_s)),
            (acceptor_module, "READ_BYTES_MAX", int(self.read_bytes)),
            (acceptor_module, "DIGEST_RANGE_BYTES_MAX", int(self.digest_bytes)),
            (trimming_module, "SEGMENTS_PER_TRIM_MAX", int(self.trim_segments)),
            (reference_reads, "READ_BYTES_MAX", int(self.read_bytes)),
            (reference_reads, "DIGEST_BYTES_MAX", int(self.digest_bytes)),
            (reference_log, "TRIMMED_SEGMENTS_MAX", int(self.trim_segments)),
            (reference_term, "APPEND_BYTES_MAX", int(self.append_bytes)),
            (reference_term, "IN_FLIGHT_BYTES_MAX", int(self.in_flight_bytes)),
            (reference_primary, "GREETING_FRESH_S", self.greeting_fresh_s),
            (wal_writer_module, "QUICK_FLUSH_S", self.quick_flush_s),
            (wal_writer_module, "REPORT_WRITE_AFTER_S", self.report_write_s),
        )

    def bent(self) -> dict[str, float]:
        """Return the choices that are not the default."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default}


BEND_NAMES = frozenset(f.name for f in fields(Bends))
