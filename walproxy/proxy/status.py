"""The state of the proxy: the content of /status, and whether it is ready."""

from safekeeper.base.lsn import Lsn, format_lsn
from safekeeper.consensus.membership import MAJORITY
from safekeeper.consensus.quorum_expression import size_of
from safekeeper.consensus.term_history import listed_terms
from walproxy.proposer.roster import newest_membership
from walproxy.proposer.standbys import StandbyRow
from walproxy.proposer.view import ProposerView, TermView
from walproxy.proxy.proxy import Proxy
from walproxy.proxy.readiness import SERVING_STATES
from walproxy.proxy.replay_watch import ReplayWatch
from walproxy.proxy.status_fields import (
    ArchiveProgress,
    GateStatus,
    LimboTotals,
    ListedHost,
    ListedSafekeeper,
    ListedStandby,
    MembersChange,
    MissingMember,
    PrimaryStatus,
    ProxyStatus,
    QuorumLoss,
    ReconnectCounts,
    VoteCounts,
)

# Each word that `safekeeper_state` returns.
SAFEKEEPER_STATES = (
    "disconnected",
    "refused",
    "storage_full",
    "greeting",
    "waiting",
    "learner",
    "catching_up",
    "streaming",
)
# The number of terms in /status: a log can have thousands.
HISTORY_SHOWN_MAX = 20


def proxy_status(proxy: Proxy, now: float) -> ProxyStatus:
    """Return the content of GET /status.

    Args:
        now: the event loop's time.
    """
    view = proxy.view(now)
    led, primary, measured = view.led, view.primary, proxy.measured
    received_lsn = led.received_lsn if led is not None else proxy.window.end_lsn
    membership = led.membership if led is not None else None
    known = membership or newest_membership(view.peers)
    members = known.ids() if known is not None else None
    safekeepers = [_safekeeper_status(proxy, view, i, received_lsn, members, now) for i in sorted(proxy.links)]
    needed_lsn = promotable_lsn(led)
    majority = size_of(MAJORITY, len(proxy.links))
    not_ready_s = proxy.readiness.not_ready_s(now)
    return ProxyStatus(
        state=proxy.public_state(view),
        term=view.term,
        system_id=str(primary.system_id) if primary is not None else None,
        tli=led.tli if led is not None else primary.tli if primary is not None else None,
        received_lsn=format_lsn(received_lsn),
        write_lsn=format_lsn(proxy.status.write_lsn),
        flush_lsn=format_lsn(proxy.status.flush_lsn),
        apply_lsn=format_lsn(proxy.status.apply_lsn),
        commit_lsn=format_lsn(led.commit_lsn if led is not None else 0),
        quorum=max(known.commit_sizes()) if known is not None else majority,
        elect_quorum=max(known.elect_sizes()) if known is not None else majority,
        safekeepers=safekeepers,
        run=proxy.proposer.config.proposer_id,
        spare=view.is_spare,
        state_since_s=round(now - proxy.state_since, 3),
        not_ready_s=round(not_ready_s, 3) if not_ready_s is not None else None,
        members=sorted(members) if members is not None else None,
        members_streaming=sum(each.state == "streaming" and each.id in (members or ()) for each in safekeepers),
        learners=sum(each.state == "learner" for each in safekeepers),
        members_change=_members_change(led),
        generation=membership.generation if membership is not None else None,
        cluster_id=led.cluster_id if led is not None else None,
        term_start_lsn=format_lsn(led.term_start_lsn) if led is not None else None,
        truncate_lsn=format_lsn(led.truncate_lsn if led is not None else 0),
        history=listed_terms(led.history[-HISTORY_SHOWN_MAX:]) if led is not None else [],
        window_bytes=proxy.window.end_lsn - proxy.window.begin_lsn,
        backpressure=proxy.feed.is_paused,
        gate=_gate_status(proxy),
        quorum_lost=_quorum_loss(proxy, now),
        limbo=_limbo_totals(proxy),
        apply_rule=view.apply_rule,
        apply_problem=view.lacking or None,
        archive=_archive_progress(led),
        standbys=[_standby_status(row, needed_lsn, proxy.replay_watch, now) for row in view.standbys],
        primary=PrimaryStatus(
            connected=primary is not None,
            streams=proxy.feed.streams,
            problem=proxy.feed.problem,
            sql_problem=(proxy.sql_watch.problem or None) if proxy.sql_watch is not None else None,
            hosts=[
                ListedHost(host=each.host.name, state=each.state.value, problem=each.problem or None)
                for each in proxy.feed.rota.candidates
            ],
        ),
        times=measured.commits.describe(now),
        elections=measured.elections.describe(now),
        votes=VoteCounts(granted=measured.answers.granted, refused=measured.answers.refused),
        refusals={code.value: count for code, count in measured.answers.refusals.items() if count},
        reconnects=ReconnectCounts(
            primary=measured.primary_reconnects,
            safekeepers={str(i): count for i, count in sorted(measured.reconnects.items())},
        ),
    )


def _safekeeper_status(
    proxy: Proxy, view: ProposerView, safekeeper_id: int, received_lsn: Lsn, members: frozenset[int] | None, now: float
) -> ListedSafekeeper:
    member = view.led.members.get(safekeeper_id) if view.led is not None else None
    greeting = view.peers[safekeeper_id].greeting
    write_lsn = member.write_lsn if member is not None else greeting.flush_lsn if greeting is not None else 0
    flush_lsn = member.flush_lsn if member is not None else greeting.flush_lsn if greeting is not None else 0
    answered_at = member.last_response_at if member is not None else None
    return ListedSafekeeper(
        id=safekeeper_id,
        state=safekeeper_state(proxy, view, safekeeper_id),
        write_lsn=format_lsn(write_lsn),
        flush_lsn=format_lsn(flush_lsn),
        lag_bytes=max(0, received_lsn - flush_lsn) if flush_lsn else None,
        last_response_s=round(now - answered_at, 3) if answered_at is not None else None,
        address=str(proxy.links[safekeeper_id].address),
        problem=proxy.member_problem(view, safekeeper_id) or None,
        member=safekeeper_id in members if members is not None else None,
        pull_end_lsn=format_lsn(member.pull_end_lsn) if member is not None and member.pull_end_lsn else None,
        pulled_bytes=member.pulled_bytes if member is not None else None,
    )


def _quorum_loss(proxy: Proxy, now: float) -> QuorumLoss | None:
    watch = proxy.quorum_watch
    if watch is None or watch.lost_at is None:
        return None
    attendance = proxy.attendance(now)
    waiting_sessions, waiting_problem = proxy.waiting_sessions()
    return QuorumLoss(
        for_s=round(now - watch.lost_at, 3),
        present=attendance.present,
        needed=attendance.needed,
        waiting_sessions=waiting_sessions,
        waiting_problem=waiting_problem or None,
        missing=[MissingMember(id=i, problem=problem) for i, problem in sorted(attendance.missing.items())],
    )


def _gate_status(proxy: Proxy) -> GateStatus | None:
    """Return whether commits wait for this proxy; None for a spare, without a primary, and before the first result."""
    gate, watch = proxy.gate(), proxy.primary_watch
    if gate is None or watch is None:
        return None
    return GateStatus(
        state=gate.state.value,
        reason=gate.reason or None,
        hangs=gate.hangs,
        exempt=gate.exempt or None,
        is_by_level=gate.is_by_level,
        checked_s=round(watch.age_s(), 3),
    )


def _limbo_totals(proxy: Proxy) -> LimboTotals:
    limbo = proxy.limbo
    oldest_s = limbo.oldest_wait_s()
    flush_lsn, end_lsn = proxy.status.flush_lsn, proxy.window.end_lsn
    return LimboTotals(
        bytes=end_lsn - flush_lsn if 0 < flush_lsn < end_lsn else 0,
        oldest_s=round(oldest_s, 3) if oldest_s is not None else None,
        timeouts=dict(limbo.policy.counts),
        read_only=bool(limbo.policy.is_fenced),
        discarded=limbo.queue.discarded_total,
    )


def _members_change(led: TermView | None) -> MembersChange | None:
    if led is None or not led.is_changing:
        return None
    present, wanted = ([member.id for member in half] for half in (led.membership.members, led.wanted.members))
    return MembersChange(present=present, wanted=wanted, joint=bool(led.membership.new_members))


def _archive_progress(led: TermView | None) -> ArchiveProgress | None:
    if led is None or led.archive is None:
        return None
    archive, commit_lsn = led.archive, led.commit_lsn
    is_known = archive.archived_lsn and commit_lsn
    return ArchiveProgress(
        archiver=archive.archiver or None,
        archived_lsn=format_lsn(archive.archived_lsn),
        lag_bytes=max(0, commit_lsn - archive.archived_lsn) if is_known else None,
        problem=archive.problem,
    )


def promotable_lsn(led: TermView | None) -> Lsn | None:
    """Return the position that a standby must have for a promotion without loss, None if unknown.

    While the primary streams, that is the end of the WAL that may have been acknowledged: commit_lsn. Without a
    primary, nothing more is acknowledged, but the WAL that was received last may still be committed, and then be sent
    to other readers; a timeline that lacks it is refused then (S9).

    A proxy has it only while it leads, a quorum has the term's start (S4), and a quorum replies: otherwise another
    proxy may have taken over, and have acknowledged more.
    """
    if led is None or not led.commit_lsn or not led.answers:
        return None
    return led.commit_lsn if led.streaming else led.received_lsn


def _standby_status(row: StandbyRow, needed_lsn: Lsn | None, watch: ReplayWatch, now: float) -> ListedStandby:
    stalled_s = watch.stalled_s(row.standby.name, now)
    standby = row.standby
    wanted_lsn = needed_lsn if standby.flush_lsn else None  # Unknown, too, for a standby that has not reported yet.
    lag_bytes = max(0, wanted_lsn - standby.flush_lsn) if wanted_lsn is not None else None
    return ListedStandby(
        name=standby.name,
        safekeeper=row.safekeeper_id,
        write_lsn=format_lsn(standby.write_lsn),
        flush_lsn=format_lsn(standby.flush_lsn),
        apply_lsn=format_lsn(standby.apply_lsn),
        lag_bytes=lag_bytes,
        apply_lag_bytes=max(0, wanted_lsn - standby.apply_lsn) if wanted_lsn and standby.apply_lsn else None,
        designated=row.designated,
        has_everything=lag_bytes == 0 if lag_bytes is not None else None,
        connected=row.connected,
        stalled_s=round(stalled_s, 1) if stalled_s is not None else None,
    )


def safekeeper_state(proxy: Proxy, view: ProposerView, safekeeper_id: int) -> str:
    """Return one of SAFEKEEPER_STATES."""
    peer = view.peers[safekeeper_id]
    member = view.led.members.get(safekeeper_id) if view.led is not None else None
    if peer.refused:
        return "refused"
    if proxy.has_no_room(view, safekeeper_id):
        return "storage_full"
    if not proxy.links[safekeeper_id].is_up:
        return "disconnected"
    if peer.greeting is None:
        return "greeting"
    if member is None or not member.follows:
        return "waiting"
    if not member.voter:
        return "learner"
    if member.is_catching_up:
        return "catching_up"
    return "streaming"


def not_ready_reason(proxy: Proxy, now: float) -> str:
    """Return why commits do not succeed now, empty if they do: for /readyz."""
    view = proxy.view(now)
    state = proxy.public_state(view)
    if state in SERVING_STATES:
        wait_s = proxy.readiness.waits_s(now)
        return f"{state} again, ready in {wait_s:.1f} s if that continues" if wait_s else ""
    if view.is_spare:
        return "another proxy serves; this one is a spare"
    if state == "waiting_for_primary":
        return f"{state}: {proxy.feed.problem}" if proxy.feed.problem else state
    if view.stuck:
        return f"{state}: {view.stuck}"
    all_problems = {i: proxy.member_problem(view, i) for i in sorted(proxy.links)}
    problems = [f"safekeeper {i}: {problem}" for i, problem in all_problems.items() if problem]
    return f"{state}: {'; '.join(problems)}" if problems else state
