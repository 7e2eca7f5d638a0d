"""Bugs to plant: each drops one rule, in the test tree only, and the simulation must find what follows.

A simulator that finds nothing proves nothing unless it finds these. Some of them make a safekeeper lie; its messages
are then believed (`Checker.believes`), so that it is the harm that must be found, and not the lie.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from safekeeper.acceptor.acceptor import Acceptor
from safekeeper.consensus.commitment import QuorumRule
from safekeeper.consensus.membership import Membership
from safekeeper.net.safekeeper_connection import SafekeeperConnection
from safekeeper.node import node as node_module
from safekeeper.node.node import Node
from safekeeper.node.proposer_listener import Connection as ProposerConnection
from safekeeper.node.wal_writer import WalWriter
from safekeeper.storage import filesystem as filesystem_module
from safekeeper.storage import recovery as recovery_module
from safekeeper.storage.control_file import ControlFile
from safekeeper.storage.data_folder import DataFolder
from safekeeper.storage.disk_work import Flush
from tests.simulation.bugs import dropped_agent_rules as agents
from tests.simulation.bugs import dropped_proxy_rules as proxies
from tests.simulation.bugs import dropped_rules as dropped
from tests.simulation.bugs import dropped_seals
from tests.simulation.bugs import dropped_shell_rules as shells
from tests.simulation.checks import quorums
from tests.simulation.checks.checkers import Checker
from tests.simulation.model.archive import SimArchiver
from tests.simulation.model.proxy import SimProxy
from tests.simulation.world import rebootstrap
from tests.simulation.world.profiles import PROFILES, Profile
from tests.simulation.world.world import World
from walproxy.agent.decision import Decider
from walproxy.failover import attempt, candidates
from walproxy.failover import server as failover_server
from walproxy.failover.attempt import PromotionAttempt
from walproxy.failover.candidates import HostLook
from walproxy.failover.sealer import Sealer
from walproxy.postgres.walreceiver import ReplicationConnection
from walproxy.proposer import election, replication
from walproxy.proposer import leadership as leadership_module
from walproxy.proposer.campaign import Campaign
from walproxy.proposer.leadership import Leadership
from walproxy.proposer.primary_stream import PrimaryStream
from walproxy.proposer.progress import Progress
from walproxy.proposer.proposer import Proposer
from walproxy.proposer.purpose import CancelSeal, TakeBack
from walproxy.proposer.refusals import Refusals
from walproxy.proposer.replication import Replication
from walproxy.proposer.roster import Roster
from walproxy.proposer.standbys import Standbys
from walproxy.proxy import rebootstrap_undo
from walproxy.proxy.primary_feed import PrimaryFeed
from walproxy.proxy.proxy import Proxy
from walproxy.proxy.window import Window

Swaps = tuple[tuple[Any, str, Any], ...]


@dataclass(frozen=True)
class Bug:
    """A rule that is dropped.

    Attributes:
        rule: the rule of docs/design/invariants.md that it breaks.
        without: what is switched off, in plain words.
        base: the profile that brings it to light.
        swaps: (object, attribute, value) to put in place while it is planted.
        weights: of faults, where they differ from the profile's.
        rates: other values of the profile, where they differ. All WAL is kept unless it is about WAL that goes.
        scenario: the file that shows the harm, where chance would take too many seeds; empty if seeds show it.
        checked: the checks after each event are on, which are to find it; else they are off, and the harm is to be
            found.
        in_shells: it is in the shell of the safekeepers, so the real ones run.
        in_proxies: it is in the shell of the proxies, so the real ones run.
        quick: the test begins at this seed: the first one that finds the bug, or 0 if that is an early one. None if it
            takes more than 150 seeds, or seconds, from each.
    """

    rule: str
    without: str
    base: str
    swaps: Swaps
    weights: Mapping[str, int] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=lambda: {"trims": 0.0})
    scenario: str = ""
    checked: bool = False
    in_shells: bool = False
    in_proxies: bool = False
    quick: int | None = None

    @property
    def profile(self) -> Profile:
        """The faults that bring it to light."""
        return self.bent(PROFILES[self.base])

    def bent(self, base: Profile) -> Profile:
        """Return its profile, or what a seed has drawn, with its own weights and rates."""
        return replace(base, weights={**base.weights, **self.weights}, **{"pulls": 0.0, **self.rates})

    @property
    def faults(self) -> str:
        """The same in a few words: a profile, and how it is bent."""
        bent = {**self.weights, **{name: rate for name, rate in self.rates.items() if name not in ("trims", "archive")}}
        return ", ".join([self.base, *(f"{name} {value:g}" for name, value in bent.items())])


@contextmanager
def swapped(swaps: Swaps) -> Iterator[None]:
    """Put other things in the place of some while the block runs."""
    with ExitStack() as stack:
        for holder, name, value in swaps:
            own = vars(holder)
            if name in own:
                stack.callback(setattr, holder, name, own[name])
            else:
                stack.callback(delattr, holder, name)  # It is inherited.
            setattr(holder, name, value)
        yield


def planted(bug: Bug) -> AbstractContextManager[None]:
    """Plant a bug while the block runs."""
    return swapped(_UNCOMPARED + (bug.swaps if bug.checked else bug.swaps + _UNCHECKED))


def _acceptor(lying: type[Acceptor]) -> Swaps:
    return ((World, "acceptor_class", lying),)


# A bug of the safekeeper's shell, and one of the proxy's: it is hunted in the real one; the checks are on.
_in_shell = partial(Bug, checked=True, in_shells=True)
_in_proxy = partial(Bug, checked=True, in_proxies=True)


def _everywhere(name: str, value: Any) -> Swaps:
    """Return the swaps that put `value` in the place of a function of the consensus, wherever it was imported to."""
    packages = ("safekeeper.consensus.", "safekeeper.acceptor.", "walproxy.proposer.")
    modules = [module for key, module in sorted(sys.modules.items()) if key.startswith(packages)]
    return tuple((module, name, value) for module in modules if hasattr(module, name))


# A bug of the agents: the checks are on.
def _of_agents(without: str, swaps: Swaps, weights: Mapping[str, int] | None = None, quick: int | None = None) -> Bug:
    return Bug("S15", without, "agents", swaps, weights or {}, {}, checked=True, quick=quick)


# The reference would find a bug at its first decision. What is to be found is the harm.
_UNCOMPARED: Swaps = ((World, "has_reference", False),)
_UNCHECKED: Swaps = (
    *((kind, "check", dropped.nothing_required) for kind in (Acceptor, Proposer)),
    (Leadership, "check_answer", dropped.nothing_required),  # after an everyday answer
)
_BELIEVES: Swaps = ((Checker, "believes", True),)
_ARCHIVING = {"trims": 1.0, "archive": 1.0}
_STRANDING = {"trims": 0.0, "faults_s": 6.0, "record_every_s": 0.02, "clock_skew": 0.0, "late_messages": 0.0}
_FAILING = {"fail_disk": 60}
_REBOOTSTRAPPING = {"rebootstrap": 40}
_CHANGES_ONLY = {"replace_lost": 0, "rebootstrap": 0}
BUGS: dict[str, Bug] = {
    "apply_follows_flush": Bug(
        "S1",
        "apply waits for the standbys that are designated",
        "calm",
        ((Standbys, "apply_lsn", dropped.apply_as_flush),),
        quick=0,
    ),
    "ack_before_flush": Bug(
        "S2",
        "WAL counts as flushed after fdatasync only",
        "crashy",
        _acceptor(dropped.AckBeforeFlush) + _BELIEVES,
        quick=0,
    ),
    "vote_not_persisted": Bug(
        "S2",
        "a promise is on disk before it is sent",
        "elections",
        _acceptor(dropped.VoteNotPersisted) + _BELIEVES,
        weights={"crash_safekeeper": 30},
    ),
    "leader_id_compared_as_pair": Bug(
        "S3", "terms are compared, never pairs", "elections", _acceptor(dropped.ComparedAsPair) + _BELIEVES, quick=0
    ),
    "run_id_of_the_server": Bug(
        "S3",
        "each run of a proxy has an id of its own",
        "elections",
        ((World, "new_run", dropped.run_id_of_the_server),),
        quick=0,
    ),
    "commit_before_term_start": Bug(
        "S4",
        "nothing is committed below the start of the term",
        "figure8",
        ((QuorumRule, "lsn", dropped.quorum_without_term_start),),
        rates=_STRANDING,
    ),
    "no_truncate": Bug(
        "S5", "the WAL is cut where histories part", "elections", _acceptor(dropped.NoTruncate), quick=17
    ),
    "cut_before_history": Bug(
        "S5",
        "history first, cut second",
        "switches",
        _acceptor(dropped.CutBeforeHistory),
        weights={"fill_disk": 40},
        rates={"trims": 0.0, "faults_s": 6.0, "fault_every_s": 0.2, "record_every_s": 0.07},
    ),
    "commit_above_cut": Bug(
        "S5", "commit_lsn is lowered with the cut", "switches", _acceptor(dropped.CommitAboveCut), quick=0
    ),
    "adopts_unflushed": Bug(
        "S5",
        "WAL is flushed before a history is adopted",
        "elections",
        _acceptor(dropped.AdoptsUnflushed) + _BELIEVES,
        weights={"slow_disk": 25},
        rates={"trims": 0.0, "flush_delay_s": 0.2},
    ),
    "skips_too_far": Bug(
        "S6",
        "a member goes on where the oldest WAL begins that others keep",
        "archive",
        ((Leadership, "_oldest_wal", dropped.newest_wal),),
        rates=_ARCHIVING,
    ),
    "wal_begin_of_unadopted_member": Bug(
        "S6",
        "only members that have adopted the term count as having old WAL to give",
        "archive",
        (
            (Campaign, "elected", dropped.elected_by_greetings),
            (Leadership, "_oldest_wal", dropped.oldest_of_any),
        ),
        rates={**_ARCHIVING, "minority": 1.0},
        quick=0,
    ),
    "gap_accepted": Bug(
        "S6", "an append starts at the write position", "disks", _acceptor(dropped.GapAccepted) + _BELIEVES, quick=0
    ),
    "pull_from_unadopted": Bug(
        "S5",
        "a source has adopted the term",
        "figure8",
        (*_acceptor(dropped.ServesUnadopted), (Replication, "_begin_pull", dropped.begin_pull_from_any)),
        scenario="a_member_pulls_from_one_that_has_not_adopted_the_term",
    ),
    "pull_for_the_deposed": Bug(
        "S5",
        "WAL is written for the leader that it was pulled for",
        "elections",
        _acceptor(dropped.PullsForTheDeposed),
        rates={"trims": 0.0, "pulls": 1.0},
        quick=78,
    ),
    "pull_with_a_gap": Bug(
        "S6",
        "pulled WAL starts at the write position",
        "disks",
        _acceptor(dropped.PullsWithAGap),
        rates={"trims": 0.0, "pulls": 1.0},
        quick=110,
    ),
    "append_of_any_leader": Bug(
        "S6",
        "a usual append is of the adopted leader, on its connection",
        "elections",
        _acceptor(dropped.AcceptsAnyLeader) + _BELIEVES,
    ),
    "append_with_a_gap": Bug(
        "S6", "a usual append starts at the write position", "disks", _acceptor(dropped.AcceptsWithAGap) + _BELIEVES
    ),
    "append_past_a_switch": Bug(
        "S9",
        "a usual append does not cross a change of timeline",
        "switches",
        _acceptor(dropped.AcceptsPastASwitch) + _BELIEVES,
    ),
    "readers_ahead_of_commit": Bug(
        "S7", "readers see committed bytes", "elections", _acceptor(dropped.ReadersAheadOfCommit), quick=0
    ),
    "timeline_shown_at_its_fork": Bug(
        "S7",
        "readers get a timeline when its term is committed",
        "switches",
        _acceptor(dropped.TimelineAtItsFork),
        quick=0,
    ),
    "timeline_shown_with_its_term": Bug(
        "S7",
        "readers get a timeline when a complete record of it is committed",
        "switches",
        _acceptor(dropped.TimelineWithItsTerm),
    ),
    "commit_sent_with_wal_only": Bug(
        "S7",
        "a commit goes to members with readers at once",
        "calm",
        ((Leadership, "_send_commit", dropped.not_by_itself),),
        quick=0,
    ),
    "archives_uncommitted": Bug(
        "S7",
        "archivers see committed bytes",
        "archive",
        ((SimArchiver, "readable_lsn", dropped.flushed),),
        rates=_ARCHIVING,
    ),
    "trim_before_control_file": Bug(
        "S8",
        "where the WAL begins is written down before old WAL goes",
        "archive",
        _acceptor(dropped.TrimBeforeControlFile),
        weights={"crash_safekeeper": 40},
        rates=_ARCHIVING,
    ),
    "wiped_member_votes": Bug(
        "S8",
        "an empty folder is a new incarnation",
        "disks",
        ((World, "wiped_keeps_incarnation", True),),
        weights={"wipe": 15},
        quick=0,
    ),
    "tli_cut_unchecked": Bug(
        "S9",
        "a fork may cut nothing that may have been committed",
        "switches",
        _everywhere("highest_possible_commit", dropped.nothing_committed) + _acceptor(dropped.CutUnfenced),
        quick=0,
    ),
    "tli_cut_guarded_by_commit_lsn": Bug(
        "S9",
        "what may have been committed is more than the members' commit_lsn",
        "switches",
        _everywhere("highest_possible_commit", dropped.known_commit),
        quick=0,
    ),
    "giving_up_is_forgotten": Bug(
        "S9",
        "what was given up stays given up in later terms",
        "losses",
        _everywhere("divergence", dropped.divergence_that_forgets_what_was_given_up),
        quick=2,
    ),
    "begins_anew_at_once": Bug(
        "S9",
        "a log that was given up from below its beginning on stays until a quorum has the new one",
        "losses",
        _acceptor(dropped.BeginsAnewAtOnce),
        scenario="a_member_begins_anew_for_what_no_quorum_has",
    ),
    "begins_anew_for_forgotten_terms": Bug(
        "S5",
        "a log whose common terms with the next one are forgotten is not replaced",
        "elections",
        _acceptor(dropped.BeginsAnewForForgottenTerms),
        scenario="a_member_of_the_quorum_has_forgotten_more_than_others",
    ),
    "gives_up_what_no_quorum_can_cut": Bug(
        "S9",
        "WAL is given up only where a quorum can cut its log",
        "losses",
        ((Campaign, "_cannot_cut", dropped.all_can_cut),),
        scenario="wal_is_given_up_that_no_quorum_can_cut",
    ),
    "trims_before_the_term": Bug(
        "S9",
        "nothing is removed between a vote and the next term",
        "losses",
        _acceptor(dropped.TrimsBeforeTheTerm),
        scenario="nothing_is_removed_between_a_vote_and_the_election",
    ),
    "history_cut_above_commit": Bug(
        "S5",
        "a term that is forgotten is followed by one that a quorum has adopted",
        "figure8",
        _everywhere("bound_history", dropped.bound_at_any_position),
        rates=_STRANDING,
        quick=89,
    ),
    "held_term_without_its_start": Bug(
        "S9",
        "what lies below the start of a term that was held may have been committed",
        "switches",
        ((Proposer, "_lead", dropped.lead_with_nothing_held),),
        scenario="a_term_is_held_and_nothing_is_committed_in_it",
    ),
    "truncate_lsn_survives_a_cut": Bug(
        "S9",
        "an acceptor forgets truncate_lsn when it adopts a history",
        "switches",
        _acceptor(dropped.TruncateLsnOfOlderTerms),
        quick=0,
    ),
    "truncate_lsn_of_the_votes": Bug(
        "S9",
        "a leader counts truncate_lsn again in its term",
        "switches",
        ((Proposer, "_lead", dropped.lead_with_truncate_lsn_of_votes),),
        rates={"trims": 1.0, "archive": 0.0},
    ),
    "archived_lsn_survives_a_fork": Bug(
        "S9",
        "archived_lsn is lowered with the cut",
        "switches",
        _acceptor(dropped.ArchivedAboveCut),
        weights={"switch_segment": 15},
        rates=_ARCHIVING,
    ),
    "trims_unarchived": Bug(
        "step 9",
        "what is not archived stays",
        "archive",
        _everywhere("trim_to", dropped.trim_to_flush),
        rates=_ARCHIVING,
    ),
    "last_committed_byte_trimmed": Bug(
        "S10",
        "the segment of the last committed byte stays",
        "archive",
        _everywhere("trim_to", dropped.trim_to_commit) + _acceptor(dropped.TrimsWithinRecords),
        rates=_ARCHIVING,
        scenario="a_primary_is_compared_with_what_is_left",
    ),
    "refused_primary_read_on": Bug(
        "S10",
        "no byte of a refused primary is taken",
        "switches",
        (
            (SimProxy, "_put_aside", dropped.take_what_is_there),
            (PrimaryStream, "require_open", dropped.nothing_required),
        ),
        scenario="a_primary_that_is_put_aside_is_read_no_further",
    ),
    "primary_unchecked": Bug(
        "S10",
        "the primary's bytes are compared",
        "switches",
        _everywhere("first_difference", dropped.no_difference),
        quick=37,
    ),
    "copy_goes_on_over_another_term": Bug(
        "S10",
        "a COPY goes on in the next term only if no other run has written to the log",
        "elections",
        ((Campaign, "_has_written", dropped.any_log_is_ours),),
        scenario="another_run_has_written_meanwhile",
    ),
    "position_for_unlinked_primary": Bug(
        "S10",
        "a primary that cannot be compared gets no position before its first record links to the log",
        "switches",
        ((Proposer, "_lead", dropped.lead_unlinked_as_checked),),
        scenario="a_recycled_primary_gets_no_position_yet",
    ),
    "last_segment_compared": Bug(
        "S10",
        "the bytes compared hold a record that bears a time",
        "switches",
        _acceptor(dropped.ComparesTheLastSegment),
        weights={"restore_backup": 40, "switch_segment": 20},
        scenario="a_primary_that_repeats_the_last_segment",
    ),
    "last_segment_compared_in_term": Bug(
        "S10",
        "within a term, too",
        "switches",
        ((SimProxy, "_own_page_crcs", dropped.checksums_of_the_last_segment),),
        scenario="a_primary_that_repeats_the_last_segment_in_a_term",
    ),
    "slot_follows_commit": Bug(
        "S10",
        "the slot keeps the last record that bears a time",
        "switches",
        ((SimProxy, "_slot_lsn", dropped.all_that_is_committed),),
        weights={"recycle": 40},
        quick=24,
    ),
    "timed_record_trimmed": Bug(
        "S10",
        "the last record that bears a time stays",
        "archive",
        _acceptor(dropped.TrimsTimedRecords),
        rates=_ARCHIVING,
        scenario="the_last_commit_is_not_removed",
    ),
    "refusal_of_another_server": Bug(
        "step 4",
        "a server waits that was refused, not a host's name",
        "refusals",
        ((Refusals, "reason", dropped.reason_by_name),),
        scenario="a_refused_host_leads_to_another_server",
    ),
    "end_of_wal_underestimated": Bug(
        "S13",
        "the end of the WAL is what was flushed",
        "figure8",
        ((World, "model_disk_class", dropped.RescanningDisk),),
        quick=0,
    ),
    "heartbeat_behind_the_window": Bug(
        "S14",
        "a member that is behind the window gets heartbeats",
        "balanced",
        ((Window, "slices", dropped.slices_within),),
        quick=0,
    ),
    "old_member_joins_unwiped": Bug(
        "step 0",
        "a log of another cluster does not count",
        "members",
        _everywhere("voters_of", dropped.voters_of_any_cluster) + _acceptor(dropped.JoinsUnwiped),
        weights=_REBOOTSTRAPPING,
        quick=0,
    ),
    "votes_in_any_cluster": Bug(
        "step 0",
        "memberships are compared within a cluster",
        "members",
        _acceptor(dropped.VotesInAnyCluster),
        weights=_REBOOTSTRAPPING,
        quick=3,
    ),
    "greetings_of_different_times": Bug(
        "step 0",
        "a bootstrap combines only greetings of one time",
        "members",
        ((Roster, "are_greeted_together", dropped.greeted_at_any_time),),
        scenario="greetings_of_different_times",
    ),
    "undone_to_older_members": Bug(
        "S8a",
        "an undo brings back the latest members of the cluster",
        "members",
        (
            (rebootstrap_undo, "_latest", dropped.members_as_one_keeps_them),
            (rebootstrap, "_latest_members", dropped.members_as_remembered),
        ),
        scenario="an_undo_brings_back_the_latest_members",
    ),
    "undo_over_acknowledged_wal": Bug(
        "step 0",
        "a rebootstrap is not undone once WAL was written since",
        "members",
        _acceptor(dropped.UndoesOverWal),
        weights=_REBOOTSTRAPPING,
    ),
    "undone_without_its_log": Bug(
        "S8",
        "an undo makes no safekeeper a member again whose log is not there",
        "balanced",
        _acceptor(dropped.ComesBackWithoutItsLog),
        scenario="an_undo_finds_no_log",
    ),
    "quorum_of_the_list": Bug(
        "S8",
        "the members are those of the membership, whichever of them a proxy lists",
        "swarm",
        _everywhere("clusters_of", dropped.clusters_of_the_list),
        {"shorten_list": 64},
    ),
    "copied_folder_starts": _in_shell(
        "S8",
        "a safekeeper starts on no data folder of another one",
        "swarm",
        ((DataFolder, "_load", shells.load_any_folder),),
        quick=8,
    ),
    "new_members_at_once": Bug(
        "S8a",
        "a change goes through a joint membership",
        "members",
        ((leadership_module, "next_membership", dropped.next_membership_at_once),),
        weights=_CHANGES_ONLY,
    ),
    "membership_not_on_a_quorum": Bug(
        "S8a",
        "a quorum has a membership on disk before the next one",
        "members",
        ((leadership_module, "next_membership", dropped.next_membership_not_persisted),),
        quick=0,
    ),
    "change_before_term_start": Bug(
        "S8b",
        "the start of the term is committed before the members change",
        "members",
        ((leadership_module, "next_membership", dropped.next_membership_before_the_start),),
        weights={"replace_lost": 100, "wipe": 0, "exchange_folder": 0, "change_members": 5, "promote": 0},
        rates={"trims": 0.0, "faults_s": 6.0, "fault_every_s": 0.4},
        quick=82,
    ),
    "not_counted_again": Bug(
        "S8c",
        "what was committed is on a quorum of the joint members before the final ones",
        "members",
        ((leadership_module, "next_membership", dropped.next_membership_not_counted_again),),
        weights={"slow_disk": 15, "cut_power": 12, "wipe": 15},
        rates={"record_every_s": 0.03, "faults_s": 6.0, "minority": 0.0, "trims": 0.0},
        quick=37,
    ),
    "older_membership_accepted": Bug(
        "S8a",
        "an acceptor refuses a membership older than its own",
        "members",
        _acceptor(dropped.AcceptsOlderMemberships),
    ),
    "lower_half_for_the_possible": Bug(
        "S9",
        "what either half holds may have been committed",
        "members",
        ((QuorumRule, "possible_lsn", dropped.possible_on_both_halves),),
        weights={"promote": 25, "exchange_folder": 0, **_CHANGES_ONLY},
    ),
    "generation_without_its_author": Bug(
        "S8a",
        "memberships are compared by author, then generation",
        "members",
        ((Membership, "key", property(dropped.key_without_the_author)),),
    ),
    "ids_counted_for_folders": Bug(
        "S8",
        "a data folder does not count for another one of the same safekeeper",
        "members",
        (
            (Membership, "has_commit_quorum", dropped.commit_quorum_of_ids),
            (Membership, "has_elect_quorum", dropped.elect_quorum_of_ids),
            (QuorumRule, "lsn", dropped.lsn_of_ids),
        ),
        weights=_CHANGES_ONLY,
    ),
    "counted_again_over_too_few": Bug(
        "S8d",
        "a commit quorum of each half has what was committed before the final members, not a smaller one",
        "sizes",
        ((Leadership, "_change_facts", dropped.facts_over_n_minus_elect_plus_one),),
        quick=62,
    ),
    "possible_over_elect": Bug(
        "S8d",
        "what a commit quorum holds may have been committed, not only what an elect quorum holds",
        "sizes",
        ((election, "QuorumRule", dropped.rule_over_elect),),
        weights={"promote": 40, "slow_disk": 20},
        rates={"trims": 0.0, "low_fork": 0.8, "record_every_s": 0.05},
    ),
    "possible_over_a_majority": Bug(
        "S8d",
        "what a commit quorum holds may have been committed, not only what a majority holds",
        "sizes",
        ((election, "QuorumRule", dropped.rule_over_a_majority),),
        weights={"promote": 40, "slow_disk": 20},
        rates={"trims": 0.0, "low_fork": 0.8, "record_every_s": 0.05},
    ),
    "votes_over_commit": Bug(
        "S8d",
        "an elect quorum elects a leader, not a commit quorum",
        "sizes",
        ((Membership, "has_elect_quorum", dropped.commit_quorum_votes),),
        quick=25,
    ),
    "votes_over_a_majority": Bug(
        "S8d",
        "an elect quorum elects a leader, not a majority",
        "sizes",
        ((Membership, "has_elect_quorum", dropped.majority_votes),),
    ),
    "commit_over_a_majority": Bug(
        "S8d",
        "a commit quorum commits, not a majority",
        "sizes",
        tuple((module, "QuorumRule", dropped.rule_over_a_majority) for module in (leadership_module, replication)),
        quick=2,
    ),
    "new_sizes_of_both_halves": Bug(
        "S8d",
        "each half counts by its own sizes",
        "sizes",
        (
            (Membership, "commit_sizes", dropped.new_commit_sizes_of_both),
            (Membership, "elect_sizes", dropped.new_elect_sizes_of_both),
        ),
        quick=0,
    ),
    "sizes_changed_at_once": Bug(
        "S8d",
        "the sizes change through a joint membership",
        "sizes",
        ((leadership_module, "next_membership", dropped.sizes_at_once),),
    ),
    "commit_and_elect_without_overlap": Bug(
        "S8d",
        "commit + elect is more than N",
        "sizes",
        (
            *_everywhere("quorum_problem", dropped.any_sizes),
            (World, "quorum_choices", quorums.WITHOUT_OVERLAP),
        ),
        quick=0,
    ),
    "elections_without_overlap": Bug(
        "S8d",
        "elect is more than N/2",
        "sizes",
        (*_everywhere("quorum_problem", dropped.any_sizes), (World, "quorum_choices", quorums.SMALL_ELECTIONS)),
        quick=45,
    ),
    "sizes_on_too_few": Bug(
        "S8d",
        "a commit quorum has a membership on disk before the next one, not a smaller one",
        "sizes",
        ((leadership_module, "next_membership", dropped.persisted_on_n_minus_elect),),
        quick=0,
    ),
    "older_copy_counts": Bug(
        "S8e",
        "a folder of which others have a newer state does not count",
        "restored",
        _everywhere("is_older", dropped.never_older),
    ),
    "vote_of_an_older_copy": Bug(
        "S8e",
        "nor does its vote, when another voter has a newer state of it",
        "restored",
        ((Campaign, "_drop_doubted", dropped.nothing_required),),
    ),
    "tail_from_the_commit_position": Bug(
        "S9a",
        "a tail term takes the donor's log whole",
        "tails",
        ((Campaign, "_take_whole_log", dropped.tail_from_commit),),
    ),
    "tail_term_ends_at_once": Bug(
        "S9a",
        "a tail term does not end in the event that has won it",
        "tails",
        ((Proposer, "_try_tail_term", dropped.tail_ends_at_once),),
    ),
    "tail_term_over_a_live_proposer": Bug(
        "S9a",
        "no tail term while another proposer is live",
        "tails",
        _acceptor(dropped_seals.GrantsTailsOverTheLiving),
        quick=0,
    ),
    "seal_is_a_flag": Bug(
        "S15",
        "the floor is inherited from the donor's last entry, also where that goes",
        "failovers",
        _everywhere("extend_history", dropped_seals.floor_of_the_entry_before),
    ),
    "seal_in_memory": Bug(
        "S15",
        "the floor is in the log",
        "failovers",
        _everywhere("extend_history", dropped_seals.floor_of_the_sealer_alone),
    ),
    "seal_not_heeded": Bug(
        "S15",
        "a primary on a sealed timeline is refused",
        "failovers",
        _everywhere("sealed_reason", dropped_seals.never_sealed),
        quick=0,
    ),
    "seal_before_its_commit": Bug(
        "S15",
        "a seal counts when a quorum has its term",
        "failovers",
        ((Proposer, "tail_elected", property(dropped_seals.sealed_once_elected)),),
    ),
    "seal_of_the_promoted": Bug(
        "S15",
        "only the timeline that was named is sealed",
        "failovers",
        ((Campaign, "_take_whole_log", dropped_seals.seal_whatever_the_log_is_on),),
        quick=0,
    ),
    "timeline_number_taken_twice": Bug(
        "S15",
        "each promotion has a number of its own",
        "failovers",
        ((attempt, "number_for", dropped_seals.next_to_the_standby),),
        quick=4,
    ),
    "timeline_number_in_memory": Bug(
        "S15",
        "a number is reserved when a quorum has it",
        "failovers",
        ((Sealer, "pursue", dropped_seals.reserved_in_memory),),
    ),
    "timeline_numbers_not_passed_over": Bug(
        "S15",
        "a standby passes over the numbers of other failovers",
        "failovers",
        ((attempt, "tlis_to_pass_over", dropped_seals.nothing_passed_over),),
    ),
    "timeline_number_of_the_entry_before": Bug(
        "S15",
        "what was handed out is inherited from the donor's last entry, also where that goes",
        "failovers",
        _everywhere("extend_history", dropped_seals.given_of_the_entry_before),
    ),
    "timeline_numbers_given_again": Bug(
        "S15",
        "a cancellation gives no number out again",
        "failovers",
        ((CancelSeal, "numbers", dropped_seals.numbers_given_again),),
    ),
    "requested_number_taken_back": Bug(
        "S15",
        "an attempt that has requested a promotion takes nothing back",
        "failovers",
        ((PromotionAttempt, "promoting", dropped_seals.never_promoting),),
    ),
    "number_of_another_taken_back": Bug(
        "S15",
        "an attempt takes back no number that another one has handed out between two of its terms",
        "failovers",
        ((Campaign, "_take_whole_log", dropped_seals.given_before_its_first_term),),
    ),
    "seal_of_another_taken_back": Bug(
        "S15",
        "an attempt takes nothing back that another one has written",
        "failovers",
        ((TakeBack, "obstacle", dropped_seals.taken_back_over_others),),
    ),
    "promoted_at_once": Bug(
        "S15",
        "a standby is promoted when it has every record that is committed",
        "failovers",
        (
            (attempt, "has_everything", dropped_seals.has_anything),
            (failover_server, "lost_since", dropped_seals.never_lost),
        ),
        quick=20,
    ),
    "set_up_again_and_promoted": Bug(
        "S15",
        "what is promoted has every such record when it is signalled, not only when it was looked at",
        "failovers",
        ((failover_server, "lost_since", dropped_seals.never_lost),),
    ),
    "never_let_in": _of_agents(
        "an old primary that nothing but the floor keeps out lets itself in",
        ((Decider, "_let_in", agents.never_let_in),),
        {"kill_agent": 40},
    ),
    "crashed_promotion_not_promotable": _of_agents(
        "a standby whose promotion has crashed may be promoted again",
        ((candidates, "has_gone_ahead", agents.never_gone_ahead),),
        {"spoil_promotions": 60, "kill_agent": 20},
    ),
    "guards_asked_under_the_seal": _of_agents(
        "the guards are asked before the seal",
        ((PromotionAttempt, "_ask_guard", agents.asked_under_the_seal),),
        quick=0,
    ),
    "unseen_records_overlooked": Bug(
        "S15",
        "what a standby has received beyond the log counts as kept, unless it was seen that no record is complete",
        "failovers",
        ((HostLook, "kept_lsn", property(dropped_seals.kept_as_replayed)),),
        scenario="a_standby_has_received_a_record_that_nobody_sees",
    ),
    "waits_for_the_last_byte": Bug(
        "S15",
        "a standby need not have an incomplete record",
        "failovers",
        ((attempt, "has_everything", dropped_seals.has_the_last_byte),),
    ),
    "promise_goes_back": Bug(
        "checks",
        "a promise is for a higher term",
        "elections",
        _acceptor(dropped.PromisesLowerTerms),
        checked=True,
    ),
    "leader_stays_deposed": Bug(
        "checks",
        "a promise ends the following of the leader before",
        "elections",
        _acceptor(dropped.FollowsTheDeposed),
        checked=True,
    ),
    "commit_goes_back_here": Bug(
        "checks",
        "an acceptor's commit_lsn only advances in one log",
        "elections",
        _acceptor(dropped.CommitAsSent),
        checked=True,
    ),
    "truncate_above_commit_here": Bug(
        "checks",
        "an acceptor's truncate_lsn is the leader's",
        "balanced",
        _acceptor(dropped.TruncateAsFlushed),
        checked=True,
    ),
    "commit_goes_back": Bug(
        "checks",
        "commit_lsn only advances in a term",
        "balanced",
        ((Leadership, "_advance", dropped.advance_by_connected),),
        checked=True,
    ),
    "truncate_above_commit": Bug(
        "checks",
        "truncate_lsn is not above commit_lsn",
        "balanced",
        ((Leadership, "update_truncate", dropped.truncate_to_what_is_sent),),
        checked=True,
    ),
    "counts_before_adoption": Bug(
        "checks",
        "a member counts once it has adopted the term",
        "balanced",
        ((Progress, "become_streaming", dropped.become_streaming_unadopted),),
        checked=True,
    ),
    "fetch_outlives_its_connection": Bug(
        "checks",
        "a member without a connection waits for no WAL",
        "balanced",
        ((Progress, "become_disconnected", dropped.become_disconnected_with_its_fetch),),
        checked=True,
    ),
    "campaign_outlives_its_phase": Bug(
        "checks",
        "an attempt that is given up is over",
        "elections",
        ((Proposer, "_gather", dropped.gather_with_the_campaign),),
        checked=True,
    ),
    "flush_counted_twice": _in_shell(
        "S2",
        "a flush that an effect has included is not counted once more",
        "elections",
        ((WalWriter, "_flushed", shells.count_twice),),
        quick=2,
    ),
    "cut_during_a_flush": _in_shell(
        "S2",
        "a cut, and the flush before it, wait for the flush under way",
        "elections",
        ((node_module, "INCLUDES_FLUSH", ()),),
        quick=2,
    ),
    "failed_sync_swallowed": _in_shell(
        "S12",
        "a flush that failed does not count",
        "disks",
        ((Flush, "run", shells.swallow_failed_sync),),
        _FAILING,
        quick=4,
    ),
    "failed_effect_swallowed": _in_shell(
        "S12",
        "an effect that failed ends the node",
        "disks",
        ((Node, "_effect_done", shells.swallow_failed_effect),),
        _FAILING,
        quick=0,
    ),
    "closed_connection_read_on": _in_shell(
        "S3",
        "nothing is handled behind a message that closes its connection",
        "elections",
        ((ProposerConnection, "close", shells.close_and_read_on),),
        quick=3,
    ),
    "control_state_stored_later": _in_shell(
        "S2",
        "a control state counts once it is stored",
        "elections",
        ((Node, "_hand_to_disk", shells.persist_later),),
        quick=0,
    ),
    "control_file_not_rewritten": _in_shell(
        "S12",
        "a start stores the control state that it has read",
        "disks",
        ((ControlFile, "store", shells.store_if_other),),
        _FAILING,
    ),
    "segment_not_rewritten": _in_shell(
        "S12",
        "a start rewrites the segment in which the WAL ends",
        "disks",
        ((recovery_module, "_rewrite", shells.open_in_place),),
        _FAILING,
    ),
    "control_file_renamed_without_a_sync": _in_shell(
        "S2",
        "a rename counts once its folder is synced",
        "calm",
        ((filesystem_module, "sync_names", shells.sync_no_names),),
        quick=0,
    ),
    "reported_as_it_is_received": _in_proxy(
        "S1",
        "positions are those that the proposer releases",
        "calm",
        ((Proxy, "wal_received", proxies.report_what_is_received),),
        quick=0,
    ),
    "reported_when_it_stops": _in_proxy(
        "S1",
        "a proxy that stops reports what is committed",
        "elections",
        ((PrimaryFeed, "close_politely", proxies.close_with_what_is_received),),
        {"restart_proxy": 40},
        quick=0,
    ),
    "repeats_positions_of_an_ended_term": _in_proxy(
        "S1",
        "the feed forgets its positions with the term",
        "switches",
        ((PrimaryFeed, "report", proxies.report_positions_only),),
        quick=24,
    ),
    "older_status_update_wins": _in_proxy(
        "S1",
        "the newest status update replaces the one that waits",
        "figure8",
        ((ReplicationConnection, "send_status", proxies.keep_the_older_status),),
    ),
    "closed_link_read_on": _in_proxy(
        "S3",
        "nothing is handled of a connection that the proxy has closed",
        "restored",
        ((SafekeeperConnection, "_give_up", proxies.give_up_and_read_on),),
        quick=0,
    ),
    "copy_not_closed": _in_proxy(
        "S10",
        "a COPY is closed when no term is held",
        "figure8",
        ((Proxy, "_execute_rare", proxies.stream_on),),
    ),
    "window_drops_what_is_not_committed": _in_proxy(
        "S14",
        "bytes that are not committed stay in the window",
        "calm",
        ((Proxy, "_trim_window", proxies.trim_what_is_sent),),
    ),
    "window_trimmed_silently": _in_proxy(
        "S14",
        "the proposer gets the beginning of the window",
        "calm",
        ((Proxy, "_trim_window", proxies.trim_silently),),
        quick=2,
    ),
    "paused_for_good": _in_proxy(
        "S14",
        "replication resumes when commits have caught up",
        "slow",
        ((Proxy, "_trim_window", proxies.stay_paused),),
    ),
}
