"""What a planted bug puts in the place of what keeps a rule: each of these leaves one rule out, and nothing else.

Subclasses of the state machines, and functions in the place of others. planted.py has the rule that each of them drops,
and the faults under which the simulator finds it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from safekeeper.acceptor.acceptor import Acceptor
from safekeeper.acceptor.acceptor_log import Reason
from safekeeper.acceptor.effects import Effects, EffectsThen, Persist, Send, ServeRead, TrimWal, TruncateWal
from safekeeper.acceptor.trimming import Kept, TrimRequest, trim_to
from safekeeper.base.errors import LocalProtocolError, StorageFull
from safekeeper.base.lsn import LSN_MAX, Lsn, format_lsn, segment_start
from safekeeper.consensus.commitment import QuorumRule
from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.folder_state import FolderState
from safekeeper.consensus.membership import Identity, Membership, QuorumSizes
from safekeeper.consensus.messages import (
    AcceptorGreeting,
    AppendRequest,
    AppendResponse,
    Bootstrap,
    DigestRequest,
    DigestResponse,
    Elected,
    PeerRead,
    PullWal,
    RefusalCode,
    Replaced,
    VoteRequest,
    VoteResponse,
)
from safekeeper.consensus.term_history import (
    Divergence,
    TermHistory,
    bound_history,
    divergence,
    tli_at,
)
from tests.simulation.checks import quorums
from tests.simulation.model.archive import SimArchiver
from tests.simulation.model.disk import ModelDisk, page_crcs
from tests.simulation.model.primary import SYSTEM_ID
from tests.simulation.model.proxy import SimProxy
from tests.simulation.model.synthetic_wal import SEGMENT_SIZE, last_complete_end
from tests.simulation.world.world import World
from walproxy.proposer.campaign import Campaign, Outcome
from walproxy.proposer.leadership import Leadership
from walproxy.proposer.member_change import ChangeFacts, Target, next_membership
from walproxy.proposer.primary import LogPlan, PrimaryIdentity
from walproxy.proposer.progress import Progress
from walproxy.proposer.proposer import Proposer
from walproxy.proposer.refusals import Refusals
from walproxy.proposer.replication import Replication
from walproxy.proposer.roster import Cluster, Peers, Roster, greetings_of
from walproxy.proposer.standbys import Standbys
from walproxy.proxy.rebootstrap_undo import _latest
from walproxy.proxy.window import Window


class AckBeforeFlush(Acceptor):
    """Reports as flushed what it has only received."""

    def flushed(self, flush_lsn: Lsn) -> AppendResponse | None:
        answer = super().flushed(flush_lsn)
        return answer and msgspec.structs.replace(answer, flush_lsn=answer.write_lsn)


class VoteNotPersisted(Acceptor):
    """Keeps a promise in memory only, as if the control file needed no fsync."""

    def _persist(self, **changes: Any) -> Effects:
        if changes.keys() == {"promised"}:
            self.control = msgspec.structs.replace(self.control, **changes)
            return
        yield from super()._persist(**changes)


class ComparedAsPair(Acceptor):
    """Votes for (5, runB) after (5, runA), because the pair is higher, also if it has (5, runA)'s membership by now."""

    def _vote(self, connection: int, message: VoteRequest, now: float) -> Effects:
        promised, own = self.control.promised, self.control.membership
        if message.leader_id.term == promised.term and message.leader_id.proposer_id > promised.proposer_id:
            lower = LeaderId(promised.term - 1, promised.proposer_id)
            self.control = msgspec.structs.replace(self.control, promised=lower)
            if own is not None and own.author == promised.term:
                asked = msgspec.structs.replace(message.membership, author=own.author)
                message = msgspec.structs.replace(message, membership=asked)
        yield from super()._vote(connection, message, now)


def never_older(state: FolderState, known: FolderState | None) -> bool:
    """No data folder has ever gone back."""
    return False


def tail_from_commit(campaign: Campaign, vote: VoteResponse) -> None:
    """A tail term begins at the donor's commit_lsn, and cuts the rest."""
    start_lsn = max(vote.commit_lsn, vote.history[0].start_lsn) if vote.history else 0
    if not start_lsn:
        campaign._lose("the log has no WAL yet")
        return
    campaign.plan = LogPlan(start_lsn, tli_at(vote.history, start_lsn - 1) or vote.history[0].tli, cuts=True)
    campaign.outcome = Outcome.WON


_TRIES_TAIL_TERM = Proposer._try_tail_term


def tail_ends_at_once(proposer: Proposer, now: float, is_due: bool) -> None:
    """A tail term ends as soon as it is won, if a primary is there by then."""
    if proposer._ends_tail_term():
        proposer._end_term(now, "a primary is connected")
    _TRIES_TAIL_TERM(proposer, now, is_due)


class NoTruncate(Acceptor):
    """Takes the new history over whatever WAL it has."""

    def _finish_adoption(self) -> Effects:
        if self.control.truncate_to is not None:
            yield from self._persist(truncate_to=None)
        else:
            yield from super()._finish_adoption()


class CutBeforeHistory(Acceptor):
    """Cuts first and writes down why afterwards; a crash in between leaves a log that seems older than it is."""

    def _persist(self, **changes: Any) -> Effects:
        cut_lsn = changes.get("truncate_to")
        if cut_lsn is not None:
            yield TruncateWal(cut_lsn, tli_at(changes["history"], cut_lsn))
        yield from super()._persist(**changes)


class BeginsAnewAtOnce(Acceptor):
    """Drops its log for one that gives up all that it keeps, although no quorum has that one."""

    def _refusal_of_new_beginning(self, parted: Divergence | None, message: Elected) -> Reason | None:
        given_up = parted is not None and parted.gives_up
        return None if given_up else super()._refusal_of_new_beginning(parted, message)


class BeginsAnewForForgottenTerms(Acceptor):
    """Takes a log for another one if all that the two share is forgotten."""

    def _shares_forgotten_terms_only(self, message: Elected) -> bool:
        return False


class TrimsBeforeTheTerm(Acceptor):
    """Removes old WAL between its vote and the term that is won with it."""

    def trim(self, request: TrimRequest) -> Effects:
        self.awaits_election = False
        yield from super().trim(request)


class CommitAboveCut(Acceptor):
    """Keeps its commit_lsn through a cut below it."""

    def _persist(self, **changes: Any) -> Effects:
        if "truncate_to" in changes:
            changes["commit_lsn"] = max(self.commit_lsn, changes.get("commit_lsn", 0))
        yield from super()._persist(**changes)


class AdoptsUnflushed(Acceptor):
    """Adopts a history without a flush before it: where histories part is found without the WAL that is not on disk."""

    _is_adopting = False

    def _elected(self, connection: int, message: Elected, now: float) -> Effects:
        self._is_adopting = True
        try:
            yield from super()._elected(connection, message, now)
        finally:
            self._is_adopting = False

    def _flush_all(self) -> Effects:
        if not self._is_adopting:
            yield from super()._flush_all()


class TruncateLsnOfOlderTerms(Acceptor):
    """Believes that every member has as much of the log that it adopts as every member had of the one before."""

    def _persist(self, **changes: Any) -> Effects:
        if changes.get("truncate_lsn") == 0 and not changes.get("set_aside"):
            del changes["truncate_lsn"]
        yield from super()._persist(**changes)


class ArchivedAboveCut(Acceptor):
    """Believes that the archive reaches as far as before, although the log was cut below."""

    def _persist(self, **changes: Any) -> Effects:
        if changes.get("archived_lsn", self.archived_lsn) < self.archived_lsn and changes.get("base_lsn") is None:
            changes["archived_lsn"] = self.archived_lsn
        yield from super()._persist(**changes)


class TrimBeforeControlFile(Acceptor):
    """Removes old WAL first, and writes down afterwards where its WAL begins."""

    def _persist(self, **changes: Any) -> Effects:
        if changes.keys() == {"wal_begin_lsn"}:
            yield TrimWal(changes["wal_begin_lsn"])
        yield from super()._persist(**changes)


class GapAccepted(Acceptor):
    """Drops a frame when the disk is full, and takes the next one."""

    def no_room(self, connection: int, full: StorageFull) -> Effects:
        yield from ()

    def _append(self, connection: int, message: AppendRequest, now: float) -> Effects:
        if message.leader_id == self.leader and message.begin_lsn > self.write_lsn:
            self.write_lsn = message.begin_lsn
        yield from super()._append(connection, message, now)


class CutUnfenced(Acceptor):
    """Lets any cut pass."""

    def _refusal_of_cut(self, cut: Divergence, message: Elected) -> EffectsThen[Any]:
        return None
        yield Persist(self.control)  # Never reached: it makes this a generator.


class JoinsUnwiped(Acceptor):
    """Lets a member of another cluster vote, and be fed, with the WAL and the history that it has."""

    def _vote(self, connection: int, message: VoteRequest, now: float) -> Effects:
        own, asked = self.control.membership, message.membership
        if own is not None and asked.generation > own.generation:
            self.control = msgspec.structs.replace(self.control, cluster_id=message.cluster_id, membership=asked)
        yield from super()._vote(connection, message, now)

    def _elected(self, connection: int, message: Elected, now: float) -> Effects:
        self.control = msgspec.structs.replace(self.control, cluster_id=message.cluster_id)
        yield from super()._elected(connection, message, now)


class VotesInAnyCluster(Acceptor):
    """Votes for a candidate of another cluster, if its membership is not older than its own."""

    def _vote(self, connection: int, message: VoteRequest, now: float) -> Effects:
        named = msgspec.structs.replace(message, cluster_id=self.control.cluster_id)
        yield from super()._vote(connection, named, now)


def members_as_one_keeps_them(kept: Replaced, greetings: dict[int, AcceptorGreeting]) -> Replaced:
    """Bring the members back that the safekeeper had which has left first, under the latest author."""
    latest = _latest(kept, greetings).membership
    return msgspec.structs.replace(kept, membership=msgspec.structs.replace(kept.membership, author=latest.author))


def members_as_remembered(remembered: Membership, known: list[Membership]) -> Membership:
    return msgspec.structs.replace(remembered, author=max(membership.author for membership in known))


class UndoesOverWal(Acceptor):
    """Takes a rebootstrap back whatever was written since."""

    def _refusal_of_undo(self, message: Bootstrap) -> EffectsThen[Reason | None]:
        return (yield from super()._refusal_of_undo(msgspec.structs.replace(message, discard=True)))


class ComesBackWithoutItsLog(Acceptor):
    """Becomes a member again of a cluster whose log it no longer has."""

    def _refusal_of_undo(self, message: Bootstrap) -> EffectsThen[Reason | None]:
        refusal = yield from super()._refusal_of_undo(message)
        return None if refusal is not None and refusal[0] is RefusalCode.NOT_A_MEMBER else refusal


class ReadersAheadOfCommit(Acceptor):
    """Lets readers see whatever is on the disk."""

    @property
    def readable_lsn(self) -> Lsn:
        return self.flush_lsn


class TimelineAtItsFork(Acceptor):
    """Shows readers a timeline once it has adopted it and all before is committed: without the leader's commit."""

    @property
    def readable_lsn(self) -> Lsn:
        return min(self.commit_lsn, self.flush_lsn)

    @property
    def readable_tli(self) -> int:
        return tli_at(self.control.history, self.readable_lsn)


class TimelineWithItsTerm(TimelineAtItsFork):
    """Shows readers a timeline when its term is committed, as if no server could fork off at the same place then."""

    @property
    def readable_tli(self) -> int:
        history, lsn = self.control.history, self.readable_lsn
        is_committed = self.following is not None and self.following.commit_lsn >= history[-1].start_lsn
        return tli_at(history, lsn if is_committed else lsn - 1)


class TrimsWithinRecords(Acceptor):
    """Removes the beginning of a record, whether or not all of it can be read."""

    def _before_open_record(self, lsn: Lsn) -> EffectsThen[Lsn]:
        return lsn
        yield Persist(self.control)  # Never reached: it makes this a generator.

    def _find_timed_record(self) -> EffectsThen[Lsn]:
        return self.readable_lsn
        yield Persist(self.control)  # Never reached: it makes this a generator.


class TrimsTimedRecords(Acceptor):
    """Removes the last record that bears a time as soon as no reader needs it."""

    def _find_timed_record(self) -> EffectsThen[Lsn]:
        return self.readable_lsn
        yield Persist(self.control)  # Never reached: it makes this a generator.


class ComparesTheLastSegment(Acceptor):
    """Has a primary compared over the segment of the last byte only, whatever records lie in it."""

    def _digest(self, connection: int, message: DigestRequest, now: float) -> Effects:
        effects = super()._digest(connection, msgspec.structs.replace(message, back_to_timed=False), now)
        result: Any = None
        while True:
            try:
                effect = effects.send(result)
            except StopIteration:
                return
            if isinstance(effect, Send) and isinstance(effect.message, DigestResponse):
                answer = msgspec.structs.replace(effect.message, timed_lsn=message.begin_lsn)
                effect = Send(effect.connection, answer)
            result = yield effect


class RescanningDisk(ModelDisk):
    """Finds the end of its WAL by looking for the last whole record, and drops what was acked of the next one."""

    def crash(self, power_cut: bool) -> None:
        super().crash(power_cut)
        if self.begin_lsn:
            self.durable_lsn = last_complete_end(self.wal, self.begin_lsn, self.durable_lsn)
            del self.wal[self.durable_lsn - self.begin_lsn :]


_quorum_lsn = QuorumRule.lsn


def quorum_without_term_start(rule: QuorumRule, positions: Mapping[Identity, Lsn]) -> Lsn:
    rule._term_start_lsn = 0
    return _quorum_lsn(rule, positions)


def divergence_that_forgets_what_was_given_up(
    own: TermHistory, own_end_lsn: Lsn, other: TermHistory, forgotten_term: int = 0
) -> Divergence | None:
    found = divergence(own, own_end_lsn, other, forgotten_term)
    # As if the permission were a field of the message, which the next term does not send.
    return found._replace(gives_up=found.gives_up and other[-1].gives_up) if found is not None else None


def bound_at_any_position(history: TermHistory, forgotten_term: int, _: Lsn) -> tuple[TermHistory, int]:
    return bound_history(history, forgotten_term, LSN_MAX)


def all_can_cut(*_: Any) -> None:
    return None


def nothing_committed(*_: Any) -> Lsn:
    return 0


class PromisesLowerTerms(Acceptor):
    """Votes for a candidate although it has promised a higher term."""

    def _vote(self, connection: int, message: VoteRequest, now: float) -> Effects:
        if message.leader_id.term < self.control.promised.term:
            yield from self._persist(promised=message.leader_id)
        yield from super()._vote(connection, message, now)


class FollowsTheDeposed(Acceptor):
    """Goes on to follow a leader after a vote for another candidate."""

    def _vote(self, connection: int, message: VoteRequest, now: float) -> Effects:
        following = self.following
        yield from super()._vote(connection, message, now)
        self.following = following


class CommitAsSent(Acceptor):
    """Takes a leader's commit_lsn for its own, also if it is lower."""

    def _advance_commit(self) -> None:
        if self.following is not None:
            self.commit_lsn = min(self.following.commit_lsn, self.flush_lsn)


class TruncateAsFlushed(Acceptor):
    """Takes it for granted that every member has what is on its own disk."""

    def wrote(self, message: AppendRequest, now: float) -> AppendResponse | None:
        answer = super().wrote(message, now)
        self.truncate_lsn = max(self.truncate_lsn, self.flush_lsn)
        return answer


class AcceptsAnyLeader(Acceptor):
    """Writes a usual append of any proposer that continues at its write position, while it follows one."""

    def accepts(self, connection: int, message: AppendRequest) -> bool:
        following = self.following
        if following is None:
            return False
        self.following = replace(following, leader_id=message.leader_id, connection=connection)
        accepted = super().accepts(connection, message)
        self.following = following
        return accepted


class AcceptsWithAGap(Acceptor):
    """Writes a usual append of its leader that begins above its write position."""

    def accepts(self, connection: int, message: AppendRequest) -> bool:
        if message.leader_id == self.leader and message.begin_lsn > self.write_lsn:
            self.write_lsn = message.begin_lsn
        return super().accepts(connection, message)

    def no_room(self, connection: int, full: StorageFull) -> Effects:
        yield from ()


class AcceptsPastASwitch(Acceptor):
    """Writes a usual append over a change of timeline, in the segment of the old one."""

    def accepts(self, connection: int, message: AppendRequest) -> bool:
        self._next_tli_switch_lsn, switch_lsn = LSN_MAX, self._next_tli_switch_lsn
        self._open_fork_lsn, fork_lsn = LSN_MAX, self._open_fork_lsn
        accepted = super().accepts(connection, message)
        self._open_fork_lsn = fork_lsn
        if not accepted:
            self._next_tli_switch_lsn = switch_lsn
        return accepted


def known_commit(votes: Any, *_: Any) -> Lsn:
    return max(0, *(int(vote.commit_lsn) for vote in votes.values()))


_lead = Proposer._lead


def lead_with_nothing_held(proposer: Proposer, campaign: Campaign, now: float) -> None:
    """Lead a term as if nothing below its start could have been committed."""
    _lead(proposer, campaign, now)
    proposer.candidacy.held_commit_lsn = 0


def lead_with_truncate_lsn_of_votes(proposer: Proposer, campaign: Campaign, now: float) -> None:
    """Lead a term as if every member still had what the votes contain, each of the log that it had."""
    _lead(proposer, campaign, now)
    leadership = proposer.leadership
    assert leadership is not None  # it has just begun
    voted_lsn = max(vote.truncate_lsn for vote in campaign.votes.values())
    leadership.truncate_lsn = min(voted_lsn, leadership.term_start_lsn)


def lead_unlinked_as_checked(proposer: Proposer, campaign: Campaign, now: float) -> None:
    """Lead a term as if a primary that cannot be compared had been: positions are reported to PostgreSQL at once."""
    _lead(proposer, campaign, now)
    assert proposer.leadership is not None  # it has just begun
    proposer.leadership.streaming = proposer._stream.is_checked = proposer._stream.is_open


def any_log_is_ours(campaign: Campaign, vote: VoteResponse) -> bool:
    return bool(vote.history)


def voters_of_any_cluster(peers: Peers, cluster: Cluster) -> dict[int, Identity]:
    greetings = greetings_of(peers)
    identities = ((i, greeting.incarnation) for i, greeting in greetings.items())
    return {identity[0]: identity for identity in identities if cluster.membership.is_voter(*identity)}


def clusters_of_the_list(peers: Peers) -> list[Cluster]:
    """Count those members only that the proxy lists."""
    greetings = [each for each in greetings_of(peers).values() if each.membership is not None]
    return [Cluster(each.cluster_id, _listed(each.membership, peers)) for each in greetings]


def _listed(membership: Membership, peers: Peers) -> Membership:
    members = tuple(member for member in membership.members if member.id in peers)
    return msgspec.structs.replace(membership, members=members or membership.members)


def not_by_itself(*_: Any) -> None:
    return None


def newest_wal(leadership: Leadership, safekeeper_id: int, progress: Progress) -> Lsn:
    """Let a member that lags go on where others end, instead of where the oldest WAL begins that they keep."""
    others = [p.flush_lsn for i, p in leadership.members.items() if i != safekeeper_id and p.follows]
    return segment_start(max(others, default=0), SEGMENT_SIZE)


_advance = Leadership._advance


def advance_by_connected(leadership: Leadership) -> bool:
    """Count what the members hold that are connected, whatever was committed before."""
    has_advanced = _advance(leadership)
    flush_lsns = {p.identity: p.flush_lsn for p in leadership.members.values() if p.voter and p.follows}
    leadership.commit_lsn = leadership.rule.lsn(flush_lsns)
    return has_advanced


def truncate_to_what_is_sent(leadership: Leadership) -> None:
    leadership.truncate_lsn = max(leadership.truncate_lsn, *(p.sent_lsn for p in leadership.members.values()))


_become_streaming, _become_disconnected = Progress.become_streaming, Progress.become_disconnected


def become_streaming_unadopted(progress: Progress, log_end_lsn: Lsn) -> None:
    _become_streaming(progress, log_end_lsn)
    progress.adopted = False


def become_disconnected_with_its_fetch(progress: Progress) -> None:
    fetch = progress.fetch
    _become_disconnected(progress)
    progress.fetch = fetch


_gather = Proposer._gather


def gather_with_the_campaign(proposer: Proposer, now: float) -> None:
    campaign = proposer.campaign
    _gather(proposer, now)
    proposer.campaign = campaign


_slices = Window.slices


def slices_within(window: Window, begin_lsn: Lsn, end_lsn: Lsn) -> list[bytes | memoryview]:
    """Look for an empty range in the window, too: a heartbeat for a member behind it is at none of its bytes."""
    if not window.begin_lsn <= begin_lsn <= end_lsn <= window.end_lsn:
        raise LocalProtocolError(f"WAL [{format_lsn(begin_lsn)}, {format_lsn(end_lsn)}) is not in the window")
    return _slices(window, begin_lsn, end_lsn)


_elected, _oldest_wal = Campaign.elected, Leadership._oldest_wal


def elected_by_greetings(campaign: Campaign) -> Elected:
    """Take each member that has greeted for one with WAL to give, whether or not it adopts the term's log."""
    begins = [g.wal_begin_lsn for g in greetings_of(campaign._roster.peers).values() if g.wal_begin_lsn]
    elected = _elected(campaign)
    return msgspec.structs.replace(elected, base_lsn=min(begins, default=elected.base_lsn))


def oldest_of_any(leadership: Leadership, safekeeper_id: int, progress: Progress) -> Lsn:
    oldest_lsn = _oldest_wal(leadership, safekeeper_id, progress)
    return min(oldest_lsn, leadership.elected.base_lsn) if oldest_lsn else 0


def trim_to_flush(kept: Kept, request: TrimRequest) -> Lsn:
    """Remove what takes too much room, also if it is not archived, or not committed yet."""
    return trim_to(kept._replace(readable_lsn=kept.flush_lsn, archived_lsn=kept.flush_lsn), request)


def trim_to_commit(kept: Kept, request: TrimRequest) -> Lsn:
    """Remove all that is committed, up to a segment's border, if there is enough WAL behind it."""
    next_segment_lsn = segment_start(kept.readable_lsn, kept.segment_size) + 1
    return min(trim_to(kept._replace(readable_lsn=next_segment_lsn), request), kept.readable_lsn)


def checksums_of_the_last_segment(proxy: SimProxy) -> tuple[tuple[int, ...], Lsn]:
    """Keep what a primary is compared with that comes back in a term, but not back to a record that bears a time."""
    end_lsn = proxy._tail_begin_lsn + len(proxy._tail)
    begin_lsn = max(segment_start(end_lsn - 1, SEGMENT_SIZE), proxy._tail_begin_lsn)
    return page_crcs(proxy._tail[begin_lsn - proxy._tail_begin_lsn :], begin_lsn), begin_lsn


def all_that_is_committed(proxy: SimProxy, commit_lsn: Lsn) -> Lsn:
    return commit_lsn


def flushed(archiver: SimArchiver, acceptor: Acceptor) -> Lsn:
    return acceptor.flush_lsn


def apply_as_flush(standbys: Standbys, commit_lsn: Lsn) -> Lsn:
    return commit_lsn


def run_id_of_the_server(world: World) -> str:
    return f"{SYSTEM_ID:032x}"


_put_aside = SimProxy._put_aside


def take_what_is_there(proxy: SimProxy, reason: str) -> None:
    """Refuse a primary, but take what had come behind the bytes that were found to be other ones."""
    proxy._pump()
    _put_aside(proxy, reason)


_reason_to_wait = Refusals.reason


def reason_by_name(refusals: Refusals, primary: PrimaryIdentity, now: float) -> str:
    """Judge the server that was refused under this name, whichever it leads to."""
    past = refusals._by_host.get(primary.host)
    return _reason_to_wait(refusals, primary if past is None else past.identity, now)


def nothing_required(*_: Any) -> None:
    return None


def greeted_at_any_time(roster: Roster) -> bool:
    """Combine greetings of before and after a loss into one bootstrap."""
    return True


def no_difference(*_: Any) -> None:
    return None


def next_membership_at_once(membership: Membership, wanted: Target, facts: ChangeFacts) -> Membership | None:
    joint = next_membership(membership, wanted, facts)
    if joint is None or not joint.new_members:
        return joint
    return msgspec.structs.replace(
        joint, members=wanted.members, quorum_sizes=wanted.sizes, new_members=(), new_quorum_sizes=QuorumSizes()
    )


def next_membership_not_persisted(membership: Membership, wanted: Target, facts: ChangeFacts) -> Membership | None:
    return next_membership(membership, wanted, replace(facts, persisted=membership.identities()))


def next_membership_before_the_start(membership: Membership, wanted: Target, facts: ChangeFacts) -> Membership | None:
    known = replace(facts, commit_lsn=1, counted_lsn=max(1, facts.counted_lsn)) if not facts.commit_lsn else facts
    return next_membership(membership, wanted, known)


def next_membership_not_counted_again(membership: Membership, wanted: Target, facts: ChangeFacts) -> Membership | None:
    return next_membership(membership, wanted, replace(facts, counted_lsn=facts.commit_lsn))


class AcceptsOlderMemberships(Acceptor):
    """Votes for a candidate that counts under older members, and follows a leader that does."""

    def _vote(self, connection: int, message: VoteRequest, now: float) -> Effects:
        own, asked = self.control.membership, message.membership
        if own is not None and asked.key < own.key:
            asked = msgspec.structs.replace(asked, author=own.author, generation=own.generation)
            message = msgspec.structs.replace(message, membership=asked)
        yield from super()._vote(connection, message, now)

    def _elected(self, connection: int, message: Elected, now: float) -> Effects:
        own = self.control.membership
        if own is not None and message.membership.key < own.key:
            self.control = msgspec.structs.replace(self.control, membership=message.membership)
        yield from super()._elected(connection, message, now)


def possible_on_both_halves(rule: QuorumRule, positions: Mapping[Identity, Lsn]) -> Lsn:
    return _quorum_lsn(rule, positions)


def key_without_the_author(membership: Membership) -> tuple[int, int]:
    return 0, membership.generation


def _of_ids(membership: Membership, identities: Iterable[Identity]) -> list[Identity]:
    present = {safekeeper_id for safekeeper_id, _ in identities}
    return [identity for identity in membership.identities() if identity[0] in present]


def commit_quorum_of_ids(membership: Membership, identities: Iterable[Identity]) -> bool:
    return quorums.can_commit(membership, _of_ids(membership, identities))


def elect_quorum_of_ids(membership: Membership, identities: Iterable[Identity]) -> bool:
    return quorums.can_elect(membership, _of_ids(membership, identities))


def lsn_of_ids(rule: QuorumRule, positions: Mapping[Identity, Lsn]) -> Lsn:
    by_id = {safekeeper_id: lsn for (safekeeper_id, _), lsn in positions.items()}
    members = [identity for half, _ in [(rule._members, 0), *rule._second] for identity in half]
    return _quorum_lsn(rule, {identity: by_id.get(identity[0], 0) for identity in members})


def ranked(size: Callable[[int, int, int], int], membership: Membership, term_start_lsn: Lsn) -> QuorumRule:
    """Return a rule that counts over other sizes: `size` of N, commit and elect."""
    rule = QuorumRule(membership, term_start_lsn)
    ranks = [
        len(half) - size(len(half), quorums.commit_size(half, sizes), quorums.elect_size(half, sizes))
        for half, sizes in quorums.halves(membership)
    ]
    rule._rank = ranks[0]
    rule._second = [(members, rank) for (members, _), rank in zip(rule._second, ranks[1:], strict=True)]
    rule.members_needed = min(len(half) - rank for half, rank in zip(membership.halves(), ranks, strict=True))
    return rule


def rule_over_a_majority(membership: Membership, term_start_lsn: Lsn) -> QuorumRule:
    return ranked(lambda n, commit, elect: n // 2 + 1, membership, term_start_lsn)


def rule_over_elect(membership: Membership, term_start_lsn: Lsn) -> QuorumRule:
    return ranked(lambda n, commit, elect: elect, membership, term_start_lsn)


def facts_over_n_minus_elect_plus_one(leadership: Leadership) -> ChangeFacts:
    """Count again over as many as each later leader has a vote of, one at least."""
    rule = ranked(lambda n, commit, elect: n - elect + 1, leadership.membership, leadership.term_start_lsn)
    counted_lsn = rule.lsn({p.identity: p.flush_lsn for p in leadership._counted})
    return replace(_change_facts(leadership), counted_lsn=counted_lsn)


_change_facts = Leadership._change_facts


def persisted_on_n_minus_elect(membership: Membership, wanted: Target, facts: ChangeFacts) -> Membership | None:
    enough = all(
        sum(m.identity in facts.persisted for m in half) >= len(half) - quorums.elect_size(half, sizes)
        for half, sizes in quorums.halves(membership)
    )
    known = replace(facts, persisted=membership.identities()) if enough else facts
    return next_membership(membership, wanted, known)


def commit_quorum_votes(membership: Membership, identities: Iterable[Identity]) -> bool:
    return quorums.can_commit(membership, identities)


def majority_votes(membership: Membership, identities: Iterable[Identity]) -> bool:
    sizes = {"quorum_sizes": QuorumSizes(), "new_quorum_sizes": QuorumSizes()}
    return quorums.can_elect(msgspec.structs.replace(membership, **sizes), identities)


def new_commit_sizes_of_both(membership: Membership) -> tuple[int, ...]:
    """Let both halves have the sizes of the new one."""
    halves = quorums.halves(membership)
    return tuple(quorums.commit_size(half, halves[-1][1]) for half, _ in halves)


def new_elect_sizes_of_both(membership: Membership) -> tuple[int, ...]:
    halves = quorums.halves(membership)
    return tuple(quorums.elect_size(half, halves[-1][1]) for half, _ in halves)


def sizes_at_once(membership: Membership, wanted: Target, facts: ChangeFacts) -> Membership | None:
    """Change the sizes without a joint membership, as if they were no part of it."""
    following = next_membership(membership, wanted, facts)
    if following is None or not following.new_members or wanted.members != membership.members:
        return following
    return msgspec.structs.replace(following, quorum_sizes=wanted.sizes, new_members=(), new_quorum_sizes=QuorumSizes())


def any_sizes(*_: Any) -> str:
    return ""


class ServesUnadopted(Acceptor):
    """Lets a member read its log in the name of a leader whose log it may not have adopted."""

    def _peer_read(self, connection: int, message: PeerRead, now: float) -> Effects:
        if self.serves(message):
            yield ServeRead(connection, message)

    def _has_adopted(self, leader_id: LeaderId) -> bool:
        return True


class PullsForTheDeposed(Acceptor):
    """Writes what was pulled for a leader although it follows another one by now."""

    def _continues(self, pull: PullWal, leader_id: LeaderId, begin_lsn: Lsn) -> bool:
        return begin_lsn == self.write_lsn

    def pulled(self, leader_id: LeaderId, begin_lsn: Lsn, payload: bytes | memoryview) -> Effects:
        if self.pull is None and begin_lsn == self.write_lsn > 0:
            yield from self._write(begin_lsn, payload)
        else:
            yield from super().pulled(leader_id, begin_lsn, payload)


class PullsWithAGap(Acceptor):
    """Writes what was pulled wherever its log ends."""

    def pulled(self, leader_id: LeaderId, begin_lsn: Lsn, payload: bytes | memoryview) -> Effects:
        yield from super().pulled(leader_id, self.write_lsn, payload)


_begin_pull = Replication._begin_pull


def begin_pull_from_any(replication: Replication, safekeeper_id: int, progress: Progress, now: float) -> bool:
    """Name members that have not adopted the term as the first sources, as if they had all WAL of it."""
    members = replication.members
    others = {
        i: replace(p, follows=True, flush_lsn=replication.commit_lsn) for i, p in members.items() if not p.follows
    }
    replication.members = others | {i: p for i, p in members.items() if p.follows}
    began = _begin_pull(replication, safekeeper_id, progress, now)
    replication.members = members
    return began
