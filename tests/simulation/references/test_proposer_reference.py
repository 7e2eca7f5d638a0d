"""The reference agrees with the proposer, and finds wrong decisions in the event in which they are made."""

import importlib
import inspect
import pkgutil
import random
import typing
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from safekeeper.consensus.membership import Identity
from safekeeper.consensus.messages import ArchiveReport, ProposerMessage
from tests.simulation.checks.violation import Violation
from tests.simulation.lone import acceptor as lone_acceptor
from tests.simulation.lone import drawn_apply_rules
from tests.simulation.lone import proposer as lone_proposer
from tests.simulation.lone.proposer import LoneProposer
from tests.simulation.model.bends import Bends
from tests.simulation.references import proposer as proposer_reference
from tests.simulation.references.proposer.checker import EVENTS
from tests.simulation.references.proposer.proposer import NOT_MODELLED, ReferenceProposer
from tests.simulation.seeds import runner
from tests.simulation.seeds.counts import Counts
from tests.simulation.seeds.runner import Failure, Task, attempt, has_real_proxies, run_seed
from tests.simulation.world.world import SimulationFailed, small_frames
from walproxy.proposer import actions as actions_module
from walproxy.proposer import campaign as campaign_module
from walproxy.proposer import refusals as refusals_module
from walproxy.proposer.apply_rule import ApplyRule, parse_apply_rule
from walproxy.proposer.archiving import Archiving
from walproxy.proposer.campaign import Campaign
from walproxy.proposer.leadership import Leadership
from walproxy.proposer.phase import Phase
from walproxy.proposer.primary import PrimaryIdentity
from walproxy.proposer.primary_refusals import PrimaryRefusals
from walproxy.proposer.primary_stream import PrimaryStream
from walproxy.proposer.progress import Progress
from walproxy.proposer.proposer import Proposer
from walproxy.proposer.refusals import Refusals
from walproxy.proposer.replication import Replication
from walproxy.proposer.roster import Roster
from walproxy.proposer.standbys import Standbys

_OF = Progress.of

SEEDS = 12
RANDOM_SEEDS = 100
# The seed to begin at, where the first one that finds a wrong decision is late: from there on others are tried.
FIRST_SEEDS = {"has_sent": 200, "of": 1250}
# What a command, an agent or a member sends, and no proposer.
SENT_BY_OTHERS = {"AgentExchange", "EventExchange", "PeerRead", "ChangeMembers"}


def _most_wal(votes: Any) -> Any:
    return max(votes, key=lambda voter: votes[voter].flush_lsn)


def _reports_what_it_has(standbys: Standbys, commit_lsn: int) -> int:
    return commit_lsn


def _nothing(*arguments: Any) -> None:
    """Leave out what is due."""


def _refuses_each_host(proposer: Proposer, primary: PrimaryIdentity, now: float) -> bool:
    if proposer.config.several_primaries:
        proposer._refuse_primary("it is refused", now)
    return proposer.config.several_primaries


def _forgets_no_archive(archiving: Archiving, report: ArchiveReport) -> None:
    archiving.archive_id = report.archive_id or archiving.archive_id
    archiving.archived_lsn = report.archived_lsn or archiving.archived_lsn


def _with_its_own_number(term: Replication, safekeeper_id: int, progress: Progress, problem: str, now: float) -> None:
    assert progress.pull is not None
    progress.pull = progress.pull._replace(moved_at=now, is_ending=True, problem=problem)
    term._send_pull(safekeeper_id, progress, ())


def _always(*arguments: Any) -> bool:
    return True


def _reports_again(leadership: Leadership, *arguments: Any) -> None:
    if leadership.streaming:
        leadership._out.append(leadership.status())


def _is_sent_whatever_folder_it_has(leadership: Leadership, identity: Identity) -> bool:
    progress = leadership.members.get(identity[0])
    return progress is not None and progress.is_connected


def _of_any_folder(identity: Identity, voter: bool, known: Progress | None) -> Progress:
    return _OF(identity, voter, replace(known, identity=identity) if known is not None else None)


@pytest.mark.parametrize(
    ("holder", "name", "wrong"),
    [
        (Leadership, "_oldest_wal", lambda *arguments: 0),
        (Leadership, "answers", lambda term, now: True),
    ],
)
def test_a_wrong_decision_is_found_in_a_cluster(
    holder: Any, name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lone_acceptor, "drive", lambda seed: Counts())
    monkeypatch.setattr(lone_proposer, "drive", lambda seed: Counts())
    monkeypatch.setattr(runner, "WATCHED_PROPOSERS", 1.0)
    monkeypatch.setattr(holder, name, wrong)
    found = (outcome for seed in range(SEEDS) if isinstance(outcome := attempt(Task(seed)), Failure))
    assert any(failure.invariant == "Reference" for failure in found)


@pytest.mark.parametrize(
    ("holder", "name", "wrong"),
    [
        (campaign_module, "choose_donor", _most_wal),
        (campaign_module, "highest_possible_commit", lambda votes, donor, *others: votes[donor].flush_lsn),
        (Standbys, "apply_lsn", _reports_what_it_has),
        (campaign_module, "check_vote", _nothing),
        (Leadership, "replace_lost", _nothing),
        (Campaign, "_note_won", _nothing),
        (Leadership, "has_sent", _is_sent_whatever_folder_it_has),
        (Progress, "of", _of_any_folder),
        (Archiving, "_take", _forgets_no_archive),
        (Replication, "_stop_pull", _with_its_own_number),
        (refusals_module, "_may_be_same", _always),
    ],
)
def test_a_wrong_decision_is_found_by_random_answers(
    holder: Any, name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holder, name, wrong)
    with pytest.raises(SimulationFailed, match="Reference"):
        for seed in range(first := FIRST_SEEDS.get(name, 0), first + 600):
            lone_proposer.drive(seed)


@pytest.mark.parametrize("first", [0, 100_000, 200_000])
@pytest.mark.parametrize(
    ("holder", "name", "wrong", "found"),
    [
        (Roster, "are_greeted_together", _always, "0.2: a bootstrap by greetings of several times"),
        (PrimaryRefusals, "_is_refused_again", _refuses_each_host, "4.10: the host .* is refused without a vote"),
        (Refusals, "reason", _nothing, "4.10: an attempt begins with the host .*, which waits"),
        (Leadership, "_send_archive_assignments", _nothing, "9.2: safekeeper . was not sent ArchiveAssignment"),
        (Leadership, "report_apply", _reports_again, "7.6: reports .* again"),
        (PrimaryStream, "require_open", _nothing, "WAL of a COPY that is not open is not sound, and is not found"),
    ],
)
def test_an_error_is_found_by_the_check_that_is_meant_for_it_wherever_the_seeds_begin(
    first: int, holder: Any, name: str, wrong: Any, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holder, name, wrong)
    with pytest.raises(SimulationFailed, match=found):
        for seed in range(first, first + 100):
            lone_proposer.drive(seed)


@pytest.mark.parametrize("real", [False, True])
def test_a_seed_does_the_same_whether_the_reference_looks_on_or_not(
    real: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = next(seed for seed in range(100) if has_real_proxies(Task(seed)) == real)
    monkeypatch.setattr(lone_acceptor, "drive", lambda seed: Counts())
    monkeypatch.setattr(lone_proposer, "drive", lambda seed: Counts())
    outcomes = []
    for share in (0.0, 1.0):
        monkeypatch.setattr(runner, "WATCHED_PROPOSERS", share)
        outcomes.append(run_seed(seed, digested=True))
    assert [outcome.counts["proposers' events compared"] > 0 for outcome in outcomes] == [False, True]
    assert outcomes[0].digest == outcomes[1].digest


def test_a_parser_of_rules_that_forgets_names_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(text: str) -> ApplyRule:
        return ApplyRule(text, 1, parse_apply_rule(text).names[:1])

    for seed in range(200):
        drawn_apply_rules.drawn(random.Random(seed))
    monkeypatch.setattr(drawn_apply_rules, "parse_apply_rule", parse)
    with pytest.raises(Violation, match="means"):
        for seed in range(200):
            drawn_apply_rules.drawn(random.Random(seed))


def test_random_answers_reach_each_action_and_each_phase() -> None:
    done: set[str] = set()
    with small_frames(10_000, Bends()):
        for seed in range(RANDOM_SEEDS):
            lone = LoneProposer(seed)
            lone.run(200)
            done |= lone.done
    actions = {each.__name__ for each in typing.get_args(actions_module.Action)} - {"Note"}
    messages = {each.__name__ for each in typing.get_args(ProposerMessage)} - SENT_BY_OTHERS
    assert actions | messages | {phase.value for phase in Phase} == done


def _public(kind: type) -> Iterable[str]:
    return (name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_"))


def test_each_event_is_modelled() -> None:
    no_events = {"check", "committed_lsns", "hot_standby_feedback"}
    assert set(EVENTS) == set(_public(Proposer)) - no_events
    assert set(EVENTS) <= set(_public(ReferenceProposer))
    assert set(NOT_MODELLED) >= {"waits", "archiver"}


def test_the_reference_shares_no_code_with_the_proposer() -> None:
    shared = ("walproxy.proposer", "safekeeper.consensus")
    names = [each.name for each in pkgutil.iter_modules(proposer_reference.__path__) if each.name != "checker"]
    modules = [importlib.import_module(f"{proposer_reference.__name__}.{name}") for name in names]
    assert inspect.getmodule(ReferenceProposer) in modules
    for module in modules:
        for name, value in vars(module).items():
            is_shared = inspect.isfunction(value) and value.__module__.startswith(shared)
            assert not is_shared, f"{name} of {value.__module__}"
