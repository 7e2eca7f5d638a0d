"""Mistakes of operators and peers of other releases: what the simulator does of them, and that it would see harm."""

from dataclasses import replace

import pytest

from safekeeper.acceptor.acceptor import Acceptor
from safekeeper.acceptor.effects import Effects, Send
from safekeeper.consensus.control_state import FORMAT_VERSION, LeaderId
from safekeeper.consensus.membership import Member, Membership
from safekeeper.consensus.messages import (
    PROTOCOL_VERSION,
    PROTOCOL_VERSION_MIN,
    Elected,
    FolderStates,
    ProposerGreeting,
    Refusal,
    RefusalCode,
    VoteRequest,
)
from tests.simulation.bugs import swapped
from tests.simulation.counts import Counts
from tests.simulation.other_release import TermWon, incoming, outgoing
from tests.simulation.runner import Task, plan, run_world, stage
from tests.simulation.shell_disk import ShellDisk
from tests.simulation.violation import Violation
from tests.simulation.world import SimulationFailed, World

OLDER = PROTOCOL_VERSION - 1


def run(seed: int, kind: str, *, real_shells: bool = False, upgrades: float = 0.0) -> Counts:
    """Run a seed in which this kind of fault happens besides those of `balanced`."""
    schedule = plan(Task(seed, "balanced"))
    rates = replace(schedule.rates, weights={**schedule.rates.weights, kind: 60}, upgrades=upgrades)
    return run_world(
        stage(replace(schedule, real_storage=False, real_shells=real_shells, real_proxies=False, rates=rates))
    ).counts


def test_a_proxy_of_the_release_before_requests_votes_without_a_membership_and_leads_nothing() -> None:
    membership = Membership(1, (Member(1, "a" * 32),))
    request = VoteRequest(LeaderId(3, "b" * 32), 1, "c" * 32, membership)
    assert outgoing(request, OLDER) == VoteRequest(LeaderId(3, "b" * 32), 1)
    assert outgoing(ProposerGreeting(PROTOCOL_VERSION, "b" * 32, 1), OLDER) == ProposerGreeting(OLDER, "b" * 32, 1)
    assert outgoing(FolderStates("c" * 32, ()), OLDER) is None
    elected = Elected(request.leader_id, "c" * 32, 7, 1 << 14, 150018, membership, (), (), 0, 0)
    with pytest.raises(TermWon):
        outgoing(elected, OLDER)


def test_what_a_proxy_of_the_release_before_does_not_know_is_a_violation() -> None:
    refusal = Refusal(RefusalCode.VERSION, "it has led", LeaderId(0, ""))
    assert incoming(refusal, OLDER) is refusal
    with pytest.raises(Violation, match="protocol version 4 is sent FolderStates"):
        incoming(FolderStates("c" * 32, ()), OLDER)


def test_proxies_of_the_release_before_win_terms_until_one_of_this_release_has_led() -> None:
    counts = [run(seed, "start_other_release", upgrades=1.0) for seed in range(3)]
    assert sum(each["terms won by the release before"] for each in counts) >= 2
    assert sum(each["proxies of other releases refused"] for each in counts) > 3


def test_a_message_that_the_release_before_does_not_know_is_found() -> None:
    def tell_all(acceptor: Acceptor, connection: int) -> Effects:
        yield Send(connection, FolderStates(acceptor.control.cluster_id, (acceptor.folder_state,)))

    # The reference would find it first.
    swaps = ((Acceptor, "_tell_folders", tell_all), (World, "has_reference", False))
    with swapped(swaps), pytest.raises(SimulationFailed) as failed:
        for seed in range(3):
            run(seed, "start_other_release")
    assert failed.value.invariant == "VersionIsSpoken"


def test_a_list_that_lacks_safekeepers_loses_nothing_and_members_are_dialled() -> None:
    counts = [run(seed, "shorten_list") for seed in range(6)]
    assert sum(each["fault shorten_list"] for each in counts) > 6
    assert sum(each["members dialled that are not listed"] for each in counts) > 3


def test_real_safekeepers_start_on_folders_of_older_releases_and_on_no_copy_of_another_one() -> None:
    counts = run(5, "copy_folder", real_shells=True, upgrades=1.0)
    assert counts["folders begun by older releases"] > 0
    assert counts["copied folders noticed"] > 0


def test_a_folder_of_an_older_release_is_rewritten_by_the_first_start() -> None:
    schedule = plan(Task(5, "calm"))
    shells = {"real_storage": False, "real_shells": True, "rates": replace(schedule.rates, upgrades=1.0)}
    world = stage(replace(schedule, **shells))
    world.start()
    world.run(0.01)
    assert world.counts["folders begun by older releases"] > 0
    assert world.add_proxy().version == OLDER >= PROTOCOL_VERSION_MIN
    for safekeeper in world.safekeepers.values():
        assert isinstance(safekeeper.disk, ShellDisk)
        control = safekeeper.disk.control
        assert control is not None and control.format_version == FORMAT_VERSION
        assert safekeeper.folders == 1


def test_clusters_of_real_safekeepers_are_begun_anew_and_brought_back() -> None:
    total = Counts()
    for seed in range(4):
        schedule = plan(Task(seed, "members"))
        rates = replace(schedule.rates, weights={**schedule.rates.weights, "rebootstrap": 40}, archive=0.0)
        total.update(run_world(stage(replace(schedule, real_storage=False, real_shells=True, rates=rates))).counts)
    assert total["rebootstraps"] > 3
    assert total["rebootstraps undone"] > 0
