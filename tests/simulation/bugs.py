"""Bugs to plant: each drops one rule, in the test tree only, and the simulation must find what follows.

A simulator that finds nothing proves nothing unless it finds these. Some of them make a safekeeper lie; its words are
then believed (`Checker.believes`), so that it is the harm that must be found, and not the lie.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from safekeeper.consensus.acceptor import Acceptor
from safekeeper.consensus.actions import Action
from safekeeper.consensus.campaign import Campaign
from safekeeper.consensus.commitment import quorum_lsn
from safekeeper.consensus.control_state import NodeId
from safekeeper.consensus.effects import Effects, EffectsThen, Persist, Send, TrimWal, TruncateWal
from safekeeper.consensus.leadership import Leadership, Progress
from safekeeper.consensus.membership import Membership
from safekeeper.consensus.messages import AppendRequest, AppendResponse, Elected, ProposerMessage, VoteRequest
from safekeeper.consensus.primary_stream import PrimaryStream
from safekeeper.consensus.roster import Cluster, Peers, greetings_of
from safekeeper.consensus.standbys import Standbys
from safekeeper.consensus.term_history import tli_at
from safekeeper.consensus.trimming import Kept, TrimRequest, trim_to
from safekeeper.errors import StorageFull
from safekeeper.lsn import Lsn, segment_start
from tests.simulation.archive import SimArchiver
from tests.simulation.checkers import Checker
from tests.simulation.disk import ModelDisk
from tests.simulation.primary import SYSTEM_ID
from tests.simulation.profiles import PROFILES, Profile
from tests.simulation.proxy import SimProxy
from tests.simulation.synthetic_wal import SEGMENT_SIZE, last_complete_end
from tests.simulation.world import World


@dataclass(frozen=True)
class Bug:
    """A rule that is dropped.

    Attributes:
        rule: the rule of docs/invariants.md that it breaks.
        profile: the faults that bring it to light.
        swaps: (object, attribute, value) to put in place while it is planted.
        scenario: the file that shows the harm, where chance would take too many seeds; empty if seeds show it.
    """

    rule: str
    profile: Profile
    swaps: tuple[tuple[Any, str, Any], ...]
    scenario: str = ""


@contextmanager
def planted(bug: Bug) -> Iterator[None]:
    """Plant a bug while the block runs."""
    with ExitStack() as stack:
        for holder, name, value in bug.swaps:
            stack.callback(setattr, holder, name, getattr(holder, name))
            setattr(holder, name, value)
        yield


class _AckBeforeFlush(Acceptor):
    """Says that it has flushed what it has only received."""

    def _answer_append(self) -> Effects:
        for effect in super()._answer_append():
            if isinstance(effect, Send) and isinstance(effect.message, AppendResponse):
                message = msgspec.structs.replace(effect.message, flush_lsn=effect.message.write_lsn)
                effect = Send(effect.connection, message)
            yield effect


class _VoteNotPersisted(Acceptor):
    """Keeps a promise in memory only, as if the control file needed no fsync."""

    def _persist(self, **changes: Any) -> Effects:
        if changes.keys() == {"promised"}:
            self.control = msgspec.structs.replace(self.control, **changes)
            return
        yield from super()._persist(**changes)


class _ComparedAsPair(Acceptor):
    """Votes for (5, runB) after (5, runA), because the pair is higher."""

    def _vote(self, connection: int, message: VoteRequest, now: float) -> Effects:
        promised = self.control.promised
        if message.node_id.term == promised.term and message.node_id.run > promised.run:
            lower = NodeId(promised.term - 1, promised.run)
            self.control = msgspec.structs.replace(self.control, promised=lower)
        yield from super()._vote(connection, message, now)


class _NoTruncate(Acceptor):
    """Takes the new history over whatever WAL it has."""

    def _finish_adoption(self) -> Effects:
        if self.control.truncate_to is not None:
            yield from self._persist(truncate_to=None)
        else:
            yield from super()._finish_adoption()


class _CutBeforeHistory(Acceptor):
    """Cuts first and writes down why afterwards; a crash in between leaves a log that seems older than it is."""

    def _persist(self, **changes: Any) -> Effects:
        cut_lsn = changes.get("truncate_to")
        if cut_lsn is not None:
            yield TruncateWal(cut_lsn, tli_at(changes["history"], cut_lsn))
        yield from super()._persist(**changes)


class _CommitAboveCut(Acceptor):
    """Keeps its commit_lsn through a cut below it."""

    def _persist(self, **changes: Any) -> Effects:
        if "truncate_to" in changes:
            changes["commit_lsn"] = max(self.commit_lsn, changes.get("commit_lsn", 0))
        yield from super()._persist(**changes)


class _ArchivedAboveCut(Acceptor):
    """Believes that the archive reaches as far as before, although the log was cut below."""

    def _persist(self, **changes: Any) -> Effects:
        if changes.get("archived_lsn", self.archived_lsn) < self.archived_lsn and changes.get("base_lsn") is None:
            changes["archived_lsn"] = self.archived_lsn
        yield from super()._persist(**changes)


class _TrimBeforeControlFile(Acceptor):
    """Removes old WAL first, and writes down afterwards where its WAL begins."""

    def _persist(self, **changes: Any) -> Effects:
        if changes.keys() == {"wal_begin_lsn"}:
            yield TrimWal(changes["wal_begin_lsn"])
        yield from super()._persist(**changes)


class _GapAccepted(Acceptor):
    """Drops a frame when the disk is full, and takes the next one."""

    def receive(self, connection: int, message: ProposerMessage, now: float) -> Effects:
        if not isinstance(message, AppendRequest):
            yield from super().receive(connection, message, now)
            return
        try:
            yield from self._append(connection, message, now)
        except StorageFull:
            return

    def _append(self, connection: int, message: AppendRequest, now: float) -> Effects:
        if message.node_id == self.leader and message.begin_lsn > self.write_lsn:
            self.write_lsn = message.begin_lsn
        yield from super()._append(connection, message, now)


class _CutUnfenced(Acceptor):
    """Lets any cut pass."""

    def _refusal_of_cut(self, lsn: Lsn, tli_changes: bool, message: Elected) -> EffectsThen[Any]:
        return None
        yield Persist(self.control)  # Never reached: it makes this a generator.


class _JoinsUnwiped(Acceptor):
    """Lets a member of another cluster vote, and be fed, with the WAL and the history that it has."""

    def _vote(self, connection: int, message: VoteRequest, now: float) -> Effects:
        membership = self.control.membership
        if membership is not None and message.generation > membership.generation:
            joined = msgspec.structs.replace(membership, generation=message.generation)
            self.control = msgspec.structs.replace(self.control, membership=joined)
        yield from super()._vote(connection, message, now)

    def _elected(self, connection: int, message: Elected, now: float) -> Effects:
        self.control = msgspec.structs.replace(self.control, cluster_id=message.cluster_id)
        yield from super()._elected(connection, message, now)


class _ReadersAheadOfCommit(Acceptor):
    """Lets readers see whatever is on the disk."""

    @property
    def readable_lsn(self) -> Lsn:
        return self.flush_lsn


class _TimelineAtItsFork(Acceptor):
    """Tells readers of a timeline once it has adopted it and all before is committed: without the leader's commit."""

    @property
    def readable_lsn(self) -> Lsn:
        return min(self.commit_lsn, self.flush_lsn)

    @property
    def readable_tli(self) -> int:
        return tli_at(self.control.history, self.readable_lsn)


class _TimelineWithItsTerm(_TimelineAtItsFork):
    """Tells readers of a timeline when its term is committed, as if nobody could fork off at the same place then."""

    @property
    def readable_tli(self) -> int:
        history, lsn = self.control.history, self.readable_lsn
        is_committed = self.leader is not None and self._leader_commit_lsn >= history[-1].start_lsn
        return tli_at(history, lsn if is_committed else lsn - 1)


class _TrimsWithinRecords(Acceptor):
    """Removes the beginning of a record, whether or not all of it can be read."""

    def _before_open_record(self, lsn: Lsn) -> EffectsThen[Lsn]:
        return lsn
        yield Persist(self.control)  # Never reached: it makes this a generator.


class _RescanningDisk(ModelDisk):
    """Finds the end of its WAL by looking for the last whole record, and drops what was acked of the next one."""

    def crash(self, power_cut: bool) -> None:
        super().crash(power_cut)
        if self.begin_lsn:
            self.durable_lsn = last_complete_end(self.wal, self.begin_lsn, self.durable_lsn)
            del self.wal[self.durable_lsn - self.begin_lsn :]


def _quorum_without_term_start(positions: Any, membership: Membership, term_start_lsn: Lsn) -> Lsn:
    return quorum_lsn(positions, membership, 0)


def _nothing_committed(*_: Any) -> Lsn:
    return 0


def _known_commit(votes: Any, donor: int, *_: Any) -> Lsn:
    return max(0, *(int(vote.commit_lsn) for vote in votes.values()))


def _voters_of_any_cluster(peers: Peers, cluster: Cluster) -> set[int]:
    greetings = greetings_of(peers)
    return {i for i, greeting in greetings.items() if cluster.membership.is_voter(i, greeting.incarnation)}


def _not_by_itself(*_: Any) -> Iterator[Action]:
    return iter(())


def _newest_wal(leadership: Leadership, safekeeper_id: int, progress: Progress) -> Lsn:
    """Let a member that lags go on where others end, instead of where the oldest WAL begins that they keep."""
    others = [p.flush_lsn for i, p in leadership.members.items() if i != safekeeper_id and p.answered]
    return segment_start(max(others, default=0), SEGMENT_SIZE)


_elected, _oldest_wal = Campaign.elected, Leadership._oldest_wal


def _elected_by_greetings(campaign: Campaign) -> Elected:
    """Believe of everybody who has greeted that it has its WAL to give, whether or not it adopts the term's log."""
    begins = [g.wal_begin_lsn for g in greetings_of(campaign._roster.peers).values() if g.wal_begin_lsn]
    elected = _elected(campaign)
    return msgspec.structs.replace(elected, base_lsn=min(begins, default=elected.base_lsn))


def _oldest_of_anybody(leadership: Leadership, safekeeper_id: int, progress: Progress) -> Lsn:
    oldest_lsn = _oldest_wal(leadership, safekeeper_id, progress)
    return min(oldest_lsn, leadership.elected.base_lsn) if oldest_lsn else 0


def _trim_to_flush(kept: Kept, request: TrimRequest) -> Lsn:
    """Remove what takes too much room, also if it is not archived, or not committed yet."""
    return trim_to(kept._replace(readable_lsn=kept.flush_lsn, archived_lsn=kept.flush_lsn), request)


def _trim_to_commit(kept: Kept, request: TrimRequest) -> Lsn:
    """Remove all that is committed, up to a segment's border, if there is enough WAL behind it."""
    next_segment_lsn = segment_start(kept.readable_lsn, kept.segment_size) + 1
    return min(trim_to(kept._replace(readable_lsn=next_segment_lsn), request), kept.readable_lsn)


def _flushed(archiver: SimArchiver, acceptor: Acceptor) -> Lsn:
    return acceptor.flush_lsn


def _apply_as_flush(standbys: Standbys, commit_lsn: Lsn) -> Lsn:
    return commit_lsn


def _run_id_of_the_server(world: World) -> str:
    return f"{SYSTEM_ID:032x}"


_put_aside = SimProxy._put_aside


def _take_what_is_there(proxy: SimProxy, reason: str) -> None:
    """Refuse a primary, but take what had come behind the bytes that were found to be other ones."""
    proxy._pump()
    _put_aside(proxy, reason)


def _nothing_required(*_: Any) -> None:
    return None


def _no_difference(*_: Any) -> None:
    return None


def _everywhere(name: str, value: Any) -> tuple[tuple[Any, str, Any], ...]:
    """Return the swaps that put `value` in the place of a function of the consensus, wherever it was imported to."""
    rooms = [module for key, module in sorted(sys.modules.items()) if key.startswith("safekeeper.consensus.")]
    return tuple((module, name, value) for module in rooms if hasattr(module, name))


def _biased(profile_name: str, **weights: int) -> Profile:
    profile = _KEEPING[profile_name]
    return replace(profile, weights={**profile.weights, **weights})


# Where all WAL is kept, as long as it is not about WAL that goes.
_KEEPING = {name: replace(profile, trims=0.0) for name, profile in PROFILES.items()}
_ARCHIVING = replace(PROFILES["archive"], archive=1.0)
_BELIEVES = (Checker, "believes", True)
BUGS: dict[str, Bug] = {
    "apply_follows_flush": Bug("S1", _KEEPING["calm"], ((Standbys, "apply_lsn", _apply_as_flush),)),
    "ack_before_flush": Bug("S2", _KEEPING["crashy"], ((World, "acceptor_class", _AckBeforeFlush), _BELIEVES)),
    "vote_not_persisted": Bug(
        "S2", _biased("elections", crash_safekeeper=30), ((World, "acceptor_class", _VoteNotPersisted), _BELIEVES)
    ),
    "node_id_compared_as_pair": Bug(
        "S3", _KEEPING["elections"], ((World, "acceptor_class", _ComparedAsPair), _BELIEVES)
    ),
    "run_id_of_the_server": Bug("S3", _KEEPING["elections"], ((World, "new_run", _run_id_of_the_server),)),
    "commit_before_term_start": Bug(
        "S4",
        _KEEPING["elections"],
        _everywhere("quorum_lsn", _quorum_without_term_start),
        scenario="e_own_term_first",
    ),
    "no_truncate": Bug("S5", _KEEPING["elections"], ((World, "acceptor_class", _NoTruncate),)),
    "cut_before_history": Bug(
        "S5", _biased("switches", crash_safekeeper=25), ((World, "acceptor_class", _CutBeforeHistory),)
    ),
    "commit_above_cut": Bug("S5", _KEEPING["switches"], ((World, "acceptor_class", _CommitAboveCut),)),
    "set_forward_too_far": Bug("S6", _ARCHIVING, ((Leadership, "_oldest_wal", _newest_wal),)),
    "wal_begin_of_unadopted_member": Bug(
        "S6",
        _ARCHIVING,
        ((Campaign, "elected", _elected_by_greetings), (Leadership, "_oldest_wal", _oldest_of_anybody)),
        scenario="a_quorum_needs_a_member_that_is_set_forward",
    ),
    "gap_accepted": Bug("S6", _KEEPING["disks"], ((World, "acceptor_class", _GapAccepted), _BELIEVES)),
    "readers_ahead_of_commit": Bug("S7", _KEEPING["elections"], ((World, "acceptor_class", _ReadersAheadOfCommit),)),
    "timeline_shown_at_its_fork": Bug("S7", _KEEPING["switches"], ((World, "acceptor_class", _TimelineAtItsFork),)),
    "timeline_shown_with_its_term": Bug("S7", _KEEPING["switches"], ((World, "acceptor_class", _TimelineWithItsTerm),)),
    "commit_told_with_wal_only": Bug("S7", _KEEPING["calm"], ((Leadership, "_tell_commit", _not_by_itself),)),
    "archives_uncommitted": Bug("S7", _ARCHIVING, ((SimArchiver, "readable_lsn", _flushed),)),
    "trim_before_control_file": Bug(
        "S8",
        replace(_ARCHIVING, weights={**_ARCHIVING.weights, "crash_safekeeper": 40}),
        ((World, "acceptor_class", _TrimBeforeControlFile),),
    ),
    "wiped_member_votes": Bug("S8", _biased("disks", wipe=15), ((World, "wiped_keeps_incarnation", True),)),
    "tli_cut_unchecked": Bug(
        "S9",
        _KEEPING["switches"],
        (*_everywhere("highest_possible_commit", _nothing_committed), (World, "acceptor_class", _CutUnfenced)),
    ),
    "tli_cut_guarded_by_commit_lsn": Bug(
        "S9", _KEEPING["switches"], _everywhere("highest_possible_commit", _known_commit)
    ),
    "archived_lsn_survives_a_fork": Bug(
        "S9",
        replace(PROFILES["switches"], trims=1.0, archive=1.0),
        ((World, "acceptor_class", _ArchivedAboveCut),),
    ),
    "trims_unarchived": Bug("step 9", _ARCHIVING, _everywhere("trim_to", _trim_to_flush)),
    "last_committed_byte_trimmed": Bug(
        "S10",
        _ARCHIVING,
        (*_everywhere("trim_to", _trim_to_commit), (World, "acceptor_class", _TrimsWithinRecords)),
        scenario="a_primary_is_compared_with_what_is_left",
    ),
    "refused_primary_read_on": Bug(
        "S10",
        _KEEPING["switches"],
        ((SimProxy, "_put_aside", _take_what_is_there), (PrimaryStream, "require_open", _nothing_required)),
        scenario="a_primary_that_is_put_aside_is_read_no_further",
    ),
    "primary_unchecked": Bug("S10", _KEEPING["switches"], _everywhere("first_difference", _no_difference)),
    "end_of_wal_underestimated": Bug(
        "S13", _biased("crashy", promote=10, block=10), ((World, "model_disk_class", _RescanningDisk),)
    ),
    "old_member_joins_unwiped": Bug(
        "step 0",
        _KEEPING["balanced"],
        (*_everywhere("voters_of", _voters_of_any_cluster), (World, "acceptor_class", _JoinsUnwiped)),
        scenario="q_an_old_member_after_a_rebootstrap",
    ),
}
