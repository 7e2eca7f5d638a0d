"""A planned switchover: when it is begun, and how the old primary is stopped."""

import asyncio
import errno
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import walproxy.failover.rest
import walproxy.failover.switchover
from safekeeper.base.errors import WalproxyError
from safekeeper.net.safekeeper_connection import Credentials
from tests.unit.event_loop import DEADLINE_S, on_the_loop, until
from tests.unit.failover.fake_world import FakeWorld, Screen
from tests.unit.failover.looks import END_LSN, dead, primary, standby, survey
from walproxy.failover.candidates import LAG_BYTES_MAX, HostLook, NoCandidate
from walproxy.failover.failover import Failover, FailoverFailed
from walproxy.failover.rest import NothingChanged
from walproxy.failover.sealer import NotSealed
from walproxy.failover.survey import FailoverRefused
from walproxy.failover.switchover import Move, plan_switchover, run_command, switch_over
from walproxy.postgres.hosts import PrimaryHost

OLD, NEW = primary("pg1"), standby("pg2")
HOSTS = (PrimaryHost("pg1:5432", "host=pg1"), PrimaryHost("pg2:5432", "host=pg2"))


def refusal(*looks: HostLook, wanted: str = "pg2", **changes: Any) -> str:
    with pytest.raises((FailoverRefused, NoCandidate)) as refused:
        plan_switchover(survey(*looks, **{"is_led": True, **changes}), wanted)
    return str(refused.value)


def test_it_moves_the_primary_to_the_named_standby() -> None:
    assert plan_switchover(survey(OLD, NEW, standby("pg3", END_LSN + 9), is_led=True), "pg2") == Move(OLD, NEW)


def test_it_is_refused_before_anything_is_changed() -> None:
    assert "the primary of the log does not reply: use walproxy failover" in refusal(dead("pg1"), NEW)
    assert "no walproxy run serves pg1:5432, so its commits wait" in refusal(OLD, NEW, is_led=False)
    assert "no standby can be promoted: pg2:5432 is on timeline 3" in refusal(OLD, standby("pg2", tli=3))
    assert "pg9 is none of the servers" in refusal(OLD, NEW, wanted="pg9")
    # HOST alone may be that of the primary, too.
    assert "is ambiguous" in refusal(OLD, HostLook("pg1:5433"), wanted="pg1")


def test_a_standby_that_is_far_behind_would_make_commits_wait() -> None:
    far = primary("pg1", written_lsn=END_LSN + LAG_BYTES_MAX + 1)
    assert f"pg2:5432 lacks {LAG_BYTES_MAX + 1} bytes that pg1:5432 has" in refusal(far, NEW)
    near = primary("pg1", written_lsn=END_LSN + LAG_BYTES_MAX)
    assert plan_switchover(survey(near, NEW, is_led=True), "pg2") == Move(near, NEW)


def test_what_an_earlier_run_has_begun_is_finished_without_another_rest() -> None:
    assert plan_switchover(survey(OLD, NEW, floor=1), "pg2") is None
    assert plan_switchover(survey(OLD, primary("pg2", 2), floor=1), "pg2") is None
    assert plan_switchover(survey(OLD, primary("pg2", 2), log_tli=2, floor=1), "pg2") is None
    assert plan_switchover(survey(OLD, NEW), "pg1") is None


# The command that stops the old primary.


@on_the_loop
async def test_a_command_that_fails_is_one_line_with_its_output() -> None:
    await run_command("true")
    with pytest.raises(WalproxyError) as failed:
        await run_command("echo pg_ctl: no; echo such server >&2; exit 3")
    assert str(failed.value) == (
        "'echo pg_ctl: no; echo such server >&2; exit 3' failed with exit code 3: pg_ctl: no such server"
    )
    with pytest.raises(WalproxyError, match="failed with exit code 1: no output"):
        await run_command("false")
    with pytest.raises(WalproxyError) as failed:
        await run_command("seq -s ' ' 1000; echo the reason; false")
    shown = str(failed.value).partition("exit code 1: ")[2]
    assert shown.endswith(" 999 1000 the reason") and len(shown) == 300, "the end of the output has the reason"


def is_running(pid_file: Path) -> bool:
    """Return whether it runs. Killed, it may remain as a zombie: its parent was killed, too."""
    try:
        state = Path(f"/proc/{pid_file.read_text().strip()}/stat").read_text().rpartition(") ")[2][0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


@on_the_loop
async def test_a_command_that_hangs_is_ended_with_what_it_has_started(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    command = f"sleep 60 & echo $! > {pid_file}; wait"
    began_at = time.monotonic()
    with pytest.raises(WalproxyError, match=r"has not ended within 0\.2 s"):
        await run_command(command, 0.2)
    assert time.monotonic() - began_at < 30
    await until(lambda: not is_running(pid_file))


@on_the_loop
async def test_an_interruption_ends_it_too(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    task = asyncio.create_task(run_command(f"sleep 60 & echo $! > {pid_file}; wait"))
    await until(lambda: pid_file.exists() and pid_file.read_text().strip() != "")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: not is_running(pid_file))


@on_the_loop
async def test_a_command_that_may_not_be_killed_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with sudo: its processes are those of another user."""
    killpg, groups = os.killpg, []

    def refuse(group: int, _: int) -> None:
        groups.append(group)
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "killpg", refuse)
    pid_file = tmp_path / "pid"
    command = f"echo $$ > {pid_file}; exec sleep 60"
    try:
        with pytest.raises(WalproxyError, match=r"has not ended within 0\.5 s, and runs still: .* process \d+$"):
            await run_command(command, 0.5)
        assert is_running(pid_file)
        pid_file.unlink()
        task = asyncio.create_task(run_command(command))
        await until(lambda: pid_file.exists() and pid_file.read_text().strip() != "")
        task.cancel()
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(asyncio.CancelledError):
                await task
        assert is_running(pid_file)
    finally:
        for group in groups:
            killpg(group, signal.SIGKILL)
        # The loop waits for its children, and must have done that before it is closed.
        await until(lambda: not any(Path("/proc", str(group)).exists() for group in groups))


# The old primary is brought to rest over SQL.


class Rest:
    """In place of SQL at the old primary: what was done."""

    def __init__(self, world: FakeWorld) -> None:
        self.world = world
        self.done: list[str] = []
        self.problem: WalproxyError | None = None

    def rest(self, old: object) -> int:
        self.done.append("rest")
        if self.problem is not None:
            raise self.problem
        return END_LSN

    def go_on(self, old: object) -> None:
        self.done.append("go on")

    async def drained(self, chosen: object, written_lsn: int, show: object) -> None:
        self.done.append("drained")


class Stand:
    """A switchover of a world without SQL."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = FakeWorld(OLD, NEW)
        self.world.is_led = True
        self.screen = Screen()
        self.rest = Rest(self.world)
        monkeypatch.setattr(walproxy.failover.rest, "bring_to_rest", self.rest.rest)
        monkeypatch.setattr(walproxy.failover.rest, "let_go_on", self.rest.go_on)
        monkeypatch.setattr(walproxy.failover.switchover, "_drained", self.rest.drained)

    async def __call__(self, **options: Any) -> Any:
        failover = Failover((), (), Credentials(), self.screen, resume_timeout_s=0.05, world=self.world)
        return await switch_over(failover, HOSTS, "pg2", self.screen, **options)


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch) -> Stand:
    return Stand(monkeypatch)


@on_the_loop
async def test_the_old_primary_is_drained_before_the_seal(stand: Stand) -> None:
    report = await stand()
    assert (report.primary, report.tli, stand.rest.done) == ("pg2:5432", 2, ["rest", "drained"])
    assert report.seconds["all"] >= 0
    # Again: nothing is brought to rest.
    again = await stand()
    assert (again.old_tli, again.tli, stand.rest.done) == (2, 2, ["rest", "drained"])


@pytest.mark.parametrize("failing", ["rest", "seal"])
def test_it_takes_writes_again_if_it_fails_before_the_seal(stand: Stand, failing: str) -> None:
    @on_the_loop
    async def fails() -> None:
        if failing == "rest":
            stand.rest.problem = WalproxyError("sessions have not ended")
        else:
            stand.world.not_sealed = [NotSealed("not sealed after 30 s")]
        with pytest.raises(WalproxyError, match=r"not ended|not sealed"):
            await stand()

    fails()
    assert stand.rest.done[-1] == "go on"
    assert stand.screen.steps[-1] == "pg1:5432 takes writes again"


@on_the_loop
async def test_what_was_not_changed_is_not_undone(stand: Stand) -> None:
    stand.rest.problem = NothingChanged("the role may not end sessions")
    with pytest.raises(NothingChanged):
        await stand()
    assert stand.rest.done == ["rest"] and len(stand.screen.steps) == 1


@on_the_loop
async def test_an_interruption_lets_it_go_on_when_it_has_come_to_rest(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def slow(old: object) -> int:
        begun.set()
        may_end.wait(20)
        return stand.rest.rest(old)

    monkeypatch.setattr(walproxy.failover.rest, "bring_to_rest", slow)
    task = asyncio.create_task(stand())
    await until(begun.is_set)
    task.cancel()
    await asyncio.sleep(0.02)
    assert stand.rest.done == []
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stand.rest.done == ["rest", "go on"]


@on_the_loop
async def test_once_it_is_sealed_off_it_does_not(stand: Stand) -> None:
    stand.world.serves = False
    with pytest.raises(FailoverFailed, match="no proxy has taken it over"):
        await stand()
    assert stand.rest.done == ["rest", "drained"]


@on_the_loop
async def test_a_stopped_primary_is_to_be_started_if_nothing_is_sealed(stand: Stand) -> None:
    stand.world.not_sealed = [NotSealed("not sealed after 30 s")]
    with pytest.raises(FailoverFailed) as failed:
        await switch_over_stopped(stand, "true")
    assert str(failed.value) == ("not sealed after 30 s; pg1:5432 is stopped: start it again, or use walproxy failover")
    with pytest.raises(WalproxyError, match="'false' failed with exit code 1"):
        await switch_over_stopped(stand, "false")
    assert stand.rest.done == []


async def switch_over_stopped(stand: Stand, command: str) -> None:
    # Its host does not exist, so it does not reply once it was "stopped".
    hosts = tuple(PrimaryHost(host.name, "host=127.0.0.1 port=1") for host in HOSTS)
    failover = Failover((), (), Credentials(), stand.screen, world=stand.world)
    await switch_over(failover, hosts, "pg2", stand.screen, stop_command=command)
