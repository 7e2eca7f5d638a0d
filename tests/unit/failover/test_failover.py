"""The steps of a failover, and what becomes of it when one of them fails or another command is at work."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

import walproxy.failover.attempt
import walproxy.failover.failover
from safekeeper.base.errors import WalproxyError
from safekeeper.net.safekeeper_connection import Credentials
from tests.unit.event_loop import on_the_loop
from tests.unit.failover.fake_world import FakeWorld, Screen
from tests.unit.failover.looks import END_LSN, dead, primary, standby
from walproxy.failover.attempt import AttemptOptions, FailoverFailed
from walproxy.failover.candidates import HostLook
from walproxy.failover.failover import Failover
from walproxy.failover.log_end import LogEnd
from walproxy.failover.sealer import NotSealed
from walproxy.failover.server import NotRequested
from walproxy.failover.survey import FailoverRefused, Survey
from walproxy.proposer.purpose import CancelSeal, Purpose, Reserve, Seal, TakeBack

OLD = dead("pg1")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walproxy.failover.failover, "POLL_S", 0.0)
    monkeypatch.setattr(walproxy.failover.attempt, "POLL_S", 0.0)
    monkeypatch.setattr(walproxy.failover.attempt, "_SEAL_AGAIN_PAUSE_S", 0.0)
    monkeypatch.setattr(walproxy.failover.attempt, "_LOST_AFTER_S", 0.05)


class Stand:
    """A failover in a world of its own."""

    def __init__(self, *looks: HostLook, **log: Any) -> None:
        self.world = FakeWorld(*looks, **log)
        self.screen = Screen()
        self.run = self.another()

    def another(
        self, guard: Callable[[], Awaitable[None]] | None = None, has_ended: Callable[[], bool] | None = None
    ) -> Failover:
        return Failover(
            (),
            (),
            Credentials(),
            self.screen,
            resume_timeout_s=0.05,
            attempt=AttemptOptions(guard, promote_timeout_s=0.05, has_ended=has_ended),
            world=self.world,
        )

    @property
    def purposes(self) -> list[Purpose]:
        return [purpose for purpose, _ in self.world.purposes]

    async def fails(self, *arguments: Any, kind: type[WalproxyError] = FailoverFailed, **options: Any) -> str:
        with pytest.raises(kind) as failed:
            await self.run.run(*arguments, **options)
        assert "\n" not in str(failed.value)
        return str(failed.value)


@on_the_loop
async def test_it_seals_promotes_the_best_standby_and_waits_for_its_proxy() -> None:
    stand = Stand(OLD, standby("pg2", 900), standby("pg3"))
    assert stand.run.remedy() == "nothing was changed"
    report = await stand.run.run()
    assert stand.world.purposes == [(Seal(1), False), (Reserve(1, 2), False)]
    assert (report.primary, report.old_tli, report.tli, report.fork_lsn) == ("pg3:5432", 1, 2, END_LSN)
    assert (report.term_before, report.term) == (4, 7)
    assert list(report.seconds) == ["seal", "catch up", "promote", "resume", "all"]
    assert [step.split(":")[0] for step in stand.screen.steps] == [
        "sealed timeline 1",
        "promoting pg3",
        "pg3",
    ]


@on_the_loop
async def test_it_is_repeated_at_will() -> None:
    stand = Stand(OLD, standby("pg2"))
    first = await stand.run.run()
    stand.world.is_led = True
    again = await stand.another().run()
    assert (again.primary, again.old_tli, again.tli, again.fork_lsn) == (first.primary, 2, 2, 0)
    assert len(stand.purposes) == 2


@on_the_loop
async def test_a_refusal_changes_nothing() -> None:
    stand = Stand(primary("pg1"), standby("pg2"))
    await stand.fails(kind=FailoverRefused)
    assert stand.purposes == [] and stand.run.remedy() == "nothing was changed"


@on_the_loop
async def test_the_living_primary_is_deposed_once_and_only_if_it_is_said_to_be_dead() -> None:
    stand = Stand(primary("pg1"), standby("pg2"))
    stand.world.promotes = lambda look: replace(look, in_recovery=False, tli=4)  # Another number.
    await stand.run.run(old_is_dead=True)
    assert [takeover for _, takeover in stand.world.purposes] == [True, False, False]
    # Nor when the term is lost: a proxy that leads now has another server.
    stand = Stand(primary("pg1"), standby("pg2", 900))
    stand.world.steps = [lambda: loses(stand), lambda: stand.world.change("pg2:5432", received_lsn=END_LSN)]
    await stand.run.run(old_is_dead=True)
    assert [takeover for _, takeover in stand.world.purposes] == [True, False, False]


# Waiting for a standby.


@on_the_loop
async def test_the_first_standby_that_has_everything_is_promoted_if_all_are_behind() -> None:
    stand = Stand(OLD, standby("pg2", 900), standby("pg3", 800))
    stand.world.steps = [
        lambda: None,
        lambda: stand.world.change("pg3:5432", received_lsn=950),
        lambda: stand.world.change("pg2:5432", receives=False),
        lambda: stand.world.change("pg3:5432", received_lsn=END_LSN),
    ]
    report = await stand.run.run()
    assert report.primary == "pg3:5432"
    assert stand.screen.waits[:3] == [
        ("pg2:5432 receives WAL", 100),
        ("pg3:5432 receives WAL", 50),
        ("pg3:5432 receives WAL", 50),
    ]


@on_the_loop
async def test_a_standby_that_is_connected_to_nothing_and_none_at_all_are_shown() -> None:
    stand = Stand(OLD, standby("pg2", 900, receives=False))
    stand.world.steps = [
        lambda: None,
        lambda: stand.world.looks_of.update({"pg2:5432": dead("pg2")}),
        lambda: stand.world.looks_of.update({"pg2:5432": standby("pg2")}),
    ]
    await stand.run.run()
    assert stand.screen.waits[:2] == [
        ("pg2:5432 lacks WAL, and is connected to no server that sends it", 100),
        (
            "waiting for a standby that can be promoted: pg1:5432 cannot connect to PostgreSQL: Connection refused; "
            "pg2:5432 cannot connect to PostgreSQL: Connection refused",
            0,
        ),
    ]


@on_the_loop
async def test_only_the_named_one_is_waited_for() -> None:
    stand = Stand(OLD, standby("pg2", 900), standby("pg3"))
    stand.world.steps = [lambda: None, lambda: stand.world.change("pg2:5432", received_lsn=END_LSN)]
    assert (await stand.run.run("pg2")).primary == "pg2:5432"


@on_the_loop
async def test_a_log_without_a_complete_record_is_let_in_again() -> None:
    stand = Stand(OLD, standby("pg2"))

    async def log_end(sealed: object) -> LogEnd:
        return LogEnd(7, 1, (), 100, 0, 1)

    stand.world.log_end = log_end  # type: ignore[method-assign]
    assert "no commit was acknowledged" in await stand.fails()
    assert stand.world.log["floor"] == 0


@on_the_loop
async def test_the_end_of_the_log_that_no_member_delivers_is_one_line_with_what_to_do() -> None:
    stand = Stand(OLD, standby("pg2"))

    async def log_end(sealed: object) -> LogEnd:
        raise WalproxyError("no member delivers the end of the log: down")

    stand.world.log_end = log_end  # type: ignore[method-assign]
    assert await stand.fails() == "no member delivers the end of the log: down"
    assert stand.purposes == [Seal(1), TakeBack(1, 1)] and not stand.run.is_sealed


# The term is lost.


def loses(stand: Stand, **log: Any) -> None:
    """Let the sealing term be lost now."""
    assert stand.world.run is not None
    stand.world.run.lost = "term 5 ends: safekeeper 1 has promised another"
    stand.world.log.update(log)


@on_the_loop
async def test_a_term_that_a_proxy_of_the_old_primary_takes_is_sealed_again() -> None:
    stand = Stand(OLD, standby("pg2", 900))
    stand.world.steps = [lambda: loses(stand), lambda: stand.world.change("pg2:5432", received_lsn=END_LSN)]
    report = await stand.run.run()
    assert stand.purposes == [Seal(1), Seal(1), Reserve(1, 2)] and report.tli == 2
    assert "sealing timeline 1 again: term 5 ends: safekeeper 1 has promised another" in stand.screen.steps


@on_the_loop
async def test_another_failover_that_has_sealed_since_goes_on_alone() -> None:
    stand = Stand(OLD, standby("pg2", 900))
    stand.world.steps = [lambda: loses(stand, last_term=9)]
    assert "another failover has sealed the timeline: it goes on" in await stand.fails()
    assert stand.purposes == [Seal(1), TakeBack(1, 1)] and stand.world.log["floor"] == 1
    assert "timeline 1 may stay sealed: another proposer has written to the log" in stand.screen.steps[-1]


@on_the_loop
async def test_a_failover_that_is_cancelled_by_another_command_ends() -> None:
    stand = Stand(OLD, standby("pg2", 900))
    stand.world.steps = [lambda: loses(stand, floor=0, last_term=9)]
    assert await stand.fails() == "the failover was cancelled by another command"
    assert stand.world.log["floor"] == 0


@on_the_loop
async def test_a_quorum_that_is_lost_before_the_promotion_is_one_line_and_the_command_is_repeated() -> None:
    stand = Stand(OLD, standby("pg2", 900))

    def quorum_is_lost() -> None:
        loses(stand)
        stand.world.not_sealed = [NotSealed(f"no term after {each} s: safekeeper 2: refused") for each in (30, 31)]

    stand.world.steps = [quorum_is_lost]
    assert await stand.fails(kind=NotSealed) == "no term after 30 s: safekeeper 2: refused"
    assert stand.screen.steps[-1] == "timeline 1 may stay sealed: no term after 31 s: safekeeper 2: refused"
    assert stand.run.remedy().startswith("timeline 1 is sealed: repeat the command, and it goes on; or let the old")
    stand.world.change("pg2:5432", received_lsn=END_LSN)
    assert (await stand.another().run()).tli == 2


@on_the_loop
async def test_all_safekeepers_that_are_lost_are_one_line() -> None:
    stand = Stand(OLD, standby("pg2", 900))

    def are_lost() -> None:
        loses(stand)
        stand.world.replying = False

    stand.world.steps = [are_lost]
    assert (await stand.fails()) == "no safekeeper replies: safekeeper 1 is down"


@on_the_loop
async def test_what_was_not_sealed_at_all_is_not_repeated() -> None:
    stand = Stand(OLD, standby("pg2"))
    stand.world.not_sealed = [NotSealed("another proxy leads")]
    assert await stand.fails(kind=NotSealed) == "another proxy leads"
    assert stand.purposes == [Seal(1)] and stand.screen.steps == [], "there is nothing to take back"


@on_the_loop
async def test_it_does_not_promote_in_a_term_that_is_lost_in_the_last_moment() -> None:
    stand = Stand(OLD, standby("pg2"))
    place_histories = stand.world.place_histories

    async def slow(name: str, tlis: range) -> None:
        await place_histories(name, tlis)
        if len(stand.purposes) == 2:
            loses(stand)

    stand.world.place_histories = slow  # type: ignore[method-assign]
    assert (await stand.run.run()).tli == 3
    # The number of the term that was lost counts as handed out.
    assert stand.purposes == [Seal(1), Reserve(1, 2), Seal(1), Reserve(1, 3)] and stand.world.files == [2]


# The guards.


@on_the_loop
async def test_a_guard_that_fails_before_the_seal_changes_nothing() -> None:
    async def guard() -> None:
        raise WalproxyError("fence_command failed")

    stand = Stand(OLD, standby("pg2"))
    stand.run = stand.another(guard)
    assert await stand.fails(kind=WalproxyError) == "fence_command failed"
    assert stand.purposes == [] and stand.run.remedy() == "nothing was changed"


@on_the_loop
async def test_a_guard_that_fails_under_the_seal_leaves_the_log_as_it_was() -> None:
    calls = []

    async def guard() -> None:
        calls.append(list(stand.purposes))
        if len(calls) == 2:
            raise WalproxyError("another agent holds the lease")

    stand = Stand(OLD, standby("pg2"), floor=0, given=3)
    stand.run = stand.another(guard)
    assert await stand.fails(kind=WalproxyError) == "another agent holds the lease"
    assert calls == [[], [Seal(1)]] and stand.purposes == [Seal(1), TakeBack(1, 3)]
    assert (stand.world.log["floor"], stand.world.log["given"]) == (0, 3) and not stand.run.is_sealed


# The promotion.


@on_the_loop
async def test_a_number_that_postgresql_has_taken_instead_is_recorded() -> None:
    stand = Stand(OLD, standby("pg2"))
    stand.world.promotes = lambda look: replace(look, in_recovery=False, tli=5)
    report = await stand.run.run()
    assert (report.tli, stand.world.log["floor"], stand.world.log["given"]) == (5, 1, 5)
    assert "pg2:5432 took timeline 5, not 2" in stand.screen.steps
    assert stand.purposes[-1] == Reserve(1, 5, is_taken=True)


@on_the_loop
async def test_a_proxy_that_was_quicker_than_that_is_fine() -> None:
    stand = Stand(OLD, standby("pg2"))

    def promote(look: HostLook) -> HostLook:
        stand.world.log.update(log_tli=5, commit_lsn=END_LSN + 8)
        return replace(look, in_recovery=False, tli=5)

    stand.world.promotes = promote
    assert (await stand.run.run()).tli == 5


@on_the_loop
async def test_a_number_that_is_in_use_is_not_given_out() -> None:
    stand = Stand(OLD, standby("pg2"), primary("pg3", 3))
    assert (await stand.run.run("pg2")).tli == 4
    assert stand.purposes == [Seal(1), Reserve(1, 4)] and stand.world.files == [2, 3]


@on_the_loop
async def test_a_number_of_which_the_standby_has_a_history_file_is_not_given_out() -> None:
    stand = Stand(OLD, standby("pg2"))
    stand.world.histories = 2
    assert (await stand.run.run()).tli == 3
    assert stand.purposes == [Seal(1), Reserve(1, 3)]


@on_the_loop
async def test_a_full_disk_at_the_standby_is_one_line() -> None:
    stand = Stand(OLD, standby("pg2"))
    stand.world.problem_of_files = WalproxyError("cannot place history files: No space left on device")
    assert (await stand.fails(kind=WalproxyError)) == "cannot place history files: No space left on device"
    assert stand.purposes == [Seal(1), Reserve(1, 2), TakeBack(1, 1)], "nobody was told of the number"
    stand.world.problem_of_files = None
    assert (await stand.another().run()).tli == 2


@on_the_loop
@pytest.mark.parametrize("is_requested", [False, True])
async def test_what_was_requested_or_may_be_is_not_taken_back(is_requested: bool) -> None:
    stand = Stand(OLD, standby("pg2"))
    stand.world.problem = (WalproxyError if is_requested else NotRequested)("the connection was lost")
    line = await stand.fails(kind=WalproxyError)
    assert line.startswith("the connection was lost; pg2:5432 may be promoted already" if is_requested else "the conn")
    assert (stand.purposes[-1] == TakeBack(1, 1)) is not is_requested and stand.run.is_sealed is is_requested
    stand.world.problem = None
    assert (await stand.another().run()).tli == (3 if is_requested else 2)


@on_the_loop
async def test_a_server_that_ends_while_it_is_promoted_is_one_line_and_another_one_can_be_promoted() -> None:
    stand = Stand(OLD, standby("pg2"), standby("pg3", 990))
    stand.world.promotes = lambda look: dead("pg2")
    line = await stand.fails()
    assert line.startswith("pg2:5432 was lost while it was promoted (cannot connect to PostgreSQL: Connection refused)")
    assert stand.run.remedy() == "pg2:5432 may be promoted already: repeat the command, and it goes on"
    stand.world.promotes = stand.world._primary
    stand.world.change("pg3:5432", received_lsn=END_LSN)
    report = await stand.another().run()
    assert (report.primary, report.tli) == ("pg3:5432", 3)


@on_the_loop
async def test_a_server_that_is_known_to_have_ended_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walproxy.failover.attempt, "_LOST_AFTER_S", 3600.0)
    stand = Stand(OLD, standby("pg2"))
    stand.world.promotes = lambda look: dead("pg2")
    known = iter([False, False, True])
    with pytest.raises(FailoverFailed, match="was lost while it was promoted"):
        await stand.another(has_ended=lambda: next(known)).run()
    assert not list(known), "it was waited for until then"


@on_the_loop
async def test_a_standby_that_replays_for_long_is_waited_for_and_one_that_stands_still_is_not() -> None:
    stand = Stand(OLD, standby("pg2", replayed_lsn=0))
    stand.world.promotes = lambda look: look

    def replays(up_to_lsn: int) -> Callable[[], None]:
        def step() -> None:
            time.sleep(0.01)  # All of them take longer than a standby may stand still.
            stand.world.change("pg2:5432", replayed_lsn=up_to_lsn)

        return step

    stand.world.steps = [replays(lsn) for lsn in range(1, END_LSN, 100)]
    line = await stand.fails()
    assert "has replayed nothing for 0.05 s, with 99 bytes left" in line
    assert stand.screen.waits[0] == ("pg2:5432 replays WAL before it is promoted", 899)


@on_the_loop
async def test_a_standby_that_somebody_else_promotes_meanwhile_is_not_promoted_a_second_time() -> None:
    stand = Stand(OLD, standby("pg2", 900), standby("pg3", 900))
    stand.world.steps = [lambda: stand.world.looks_of.update({"pg3:5432": primary("pg3", 2)})]
    report = await stand.run.run(old_is_dead=True)
    assert "pg3:5432 was promoted to timeline 2 by another command meanwhile" in stand.screen.steps
    assert (report.primary, report.tli) == ("pg3:5432", 2)


@on_the_loop
async def test_it_is_not_repeated_without_end_where_others_promote_all_the_time() -> None:
    stand = Stand(OLD, standby("pg2"), standby("pg3"))
    stand.world.promotes = lambda look: replace(look, in_recovery=False, tli=2)
    stand.world.log.update(floor=1, given=2)

    async def survey() -> Survey:
        # Each time another standby is there.
        stand.world.looks_of = {look.name: look for look in (OLD, standby("pg2"), standby("pg3"))}
        return await FakeWorld.survey(stand.world)

    stand.world.survey = survey  # type: ignore[method-assign]
    assert "other commands promote standbys all the time" in await stand.fails()


@on_the_loop
async def test_a_promotion_that_was_pending_has_taken_another_number_and_is_finished() -> None:
    stand = Stand(OLD, standby("pg2"), floor=1, given=2)
    stand.world.promotes = lambda look: replace(look, in_recovery=False, tli=2)
    report = await stand.run.run()
    assert "pg2:5432 was promoted to timeline 2 by another command, and the attempt has reserved 3" in (
        stand.screen.steps
    )
    assert (report.primary, report.tli) == ("pg2:5432", 2)


# The proxy.


@on_the_loop
async def test_a_promoted_server_without_a_proxy_is_one_line_and_the_repeated_command_waits_again() -> None:
    stand = Stand(OLD, standby("pg2"))
    stand.world.serves = False
    line = await stand.fails()
    assert line.startswith(
        "pg2:5432 was promoted to timeline 2, and no proxy has taken it over within 0.05 s: start walproxy run with a "
        "--primary that names it"
    )
    assert ("waiting for a walproxy run that takes pg2:5432 over", 0) in stand.screen.waits
    stand.world.serves = True
    report = await stand.another().run()
    assert (report.tli, len(stand.purposes)) == (2, 2)


@on_the_loop
async def test_safekeepers_that_are_lost_meanwhile_are_named() -> None:
    stand = Stand(OLD, primary("pg2", 2), floor=1)
    stand.world.replying = False
    assert "within 0.05 s (safekeeper 1 is down): start walproxy run" in await stand.fails()


@on_the_loop
async def test_a_failover_that_is_overtaken_after_its_promotion_ends_at_once() -> None:
    stand = Stand(OLD, standby("pg2"))

    def promote(look: HostLook) -> HostLook:
        stand.world.log["floor"] = 2
        return replace(look, in_recovery=False, tli=2)

    stand.world.promotes = promote
    assert "another failover has sealed the timelines up to 2 since: if that one fails, repeat" in await stand.fails()


# Cancelling.


@on_the_loop
async def test_a_seal_is_cancelled_and_a_second_time_nothing_is_to_be_done() -> None:
    stand = Stand(OLD, standby("pg2"), floor=1)
    assert await stand.run.cancel() == (1, True)
    assert stand.purposes == [CancelSeal(1)] and stand.world.log["floor"] == 0
    assert await stand.another().cancel() == (1, False)
    assert len(stand.purposes) == 1


@on_the_loop
async def test_a_failover_that_has_promoted_is_not_cancelled() -> None:
    stand = Stand(OLD, primary("pg2", 2), floor=1)
    with pytest.raises(FailoverRefused, match="or stop that server and repeat the command"):
        await stand.run.cancel()
    assert stand.purposes == []


@on_the_loop
async def test_connections_are_closed() -> None:
    stand = Stand(OLD, standby("pg2"))
    await stand.run.run()
    await stand.run.close()
    assert stand.world.is_closed
