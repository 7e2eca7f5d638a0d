"""What `walproxy failover` and `walproxy switchover` print, and how a signal ends them."""

import asyncio
import json
import os
import signal
import time
from typing import Any

import pytest

from safekeeper.net.safekeeper_connection import Credentials
from tests.unit.failover.fake_world import FakeWorld
from tests.unit.failover.looks import dead, primary, standby, survey
from walproxy.cli.failover import print_report, run_to_end
from walproxy.cli.failover_progress import FailoverProgress
from walproxy.cli.failover_survey import print_survey
from walproxy.failover.candidates import HostLook
from walproxy.failover.failover import Failover, FailoverReport
from walproxy.failover.survey import Survey


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


class Printed:
    """Prints a survey, and returns what that was."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def lines(self, found: Survey, wanted: str = "", *, old_is_dead: bool = False) -> list[str]:
        print_survey(found, wanted, old_is_dead, False)
        return [" ".join(line.split()) for line in self._capsys.readouterr().out.splitlines()]

    def json(self, found: Survey, wanted: str = "") -> dict[str, object]:
        print_survey(found, wanted, False, True)
        content = json.loads(self._capsys.readouterr().out)
        assert isinstance(content, dict)
        return content


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Printed:
    return Printed(capsys)


def test_a_dry_run_shows_the_log_the_servers_and_what_would_be_done(printed: Printed) -> None:
    looks = dead("pg1"), standby("pg2", 900, receives=False), standby("pg3", 800, system_id=8)
    assert printed.lines(survey(*looks)) == [
        "the log: timeline 1 up to 0/3E8, term 4; 3 of 3 members reply; no walproxy run leads",
        "server is timeline has WAL up to lacks",
        "pg1:5432 unreachable - - -",
        "pg2:5432 standby 1 0/384 100 B",
        "pg3:5432 standby 1 0/320 200 B",
        "pg1:5432 does not reply: cannot connect to PostgreSQL: Connection refused",
        "pg3:5432 belongs to another system, 8, not 7",
        "walproxy failover would seal timeline 1 and promote pg2:5432 to timeline 2, when it has received 100 B (it is "
        "connected to no server that sends WAL) and has replayed 100 B",
        "no acknowledged commit is lost; what the old primary has above the end of the log is discarded",
        "the seal, the promotion and the start of the log on it take about a second together; a walproxy run whose "
        "--primary names pg2:5432 has to be running",
    ]


def test_while_the_primary_lives_it_shows_what_would_be_done_if_it_died(printed: Printed) -> None:
    lines = printed.lines(survey(primary("pg1"), standby("pg2"), is_led=True))
    assert "replies: use walproxy switchover" in lines[4]
    assert lines[5] == "if it died now: walproxy failover would seal timeline 1 and promote pg2:5432 to timeline 2"
    poor = standby("pg2", hindrance="cannot be promoted by the role walproxy: GRANT ...")
    assert printed.lines(survey(primary("pg1"), poor, is_led=True))[-1] == (
        "if it died now: no standby can be promoted: pg2:5432 cannot be promoted by the role walproxy: GRANT ..."
    )
    dead_already = printed.lines(survey(primary("pg1"), standby("pg2"), is_led=True), old_is_dead=True)
    assert dead_already[4].startswith("walproxy failover would seal timeline 1")


@pytest.mark.parametrize(
    ("looks", "log", "line"),
    [
        ((primary("pg2", 2),), {"floor": 1}, "pg2:5432 was promoted to timeline 2 already: walproxy failover waits"),
        (
            (primary("pg2", 2),),
            {"floor": 1, "given": 2, "log_tli": 2, "is_led": True},
            "nothing is to be done: pg2:5432 is the",
        ),
        ((dead("pg2"),), {}, "no standby can be promoted"),
    ],
)
def test_it_shows_in_what_state_an_earlier_run_has_left_it(
    printed: Printed, looks: tuple[HostLook, ...], log: dict[str, Any], line: str
) -> None:
    lines = printed.lines(survey(*looks, **log))
    assert line in lines[-1]
    assert ("sealed up to timeline" in lines[0]) == (log.get("floor", 0) >= log.get("log_tli", 1))


def test_without_a_quorum_it_says_that_nothing_can_be_sealed(printed: Printed) -> None:
    found = survey(dead("pg1"), standby("pg2"))
    few = Survey(found.log, 3, 1, False, False, found.looks, "safekeeper 2 is down; safekeeper 3 is down")
    lines = printed.lines(few)
    assert lines[1] == "safekeeper 2 is down; safekeeper 3 is down"
    assert lines[-1] == "no quorum of the members replies: nothing can be sealed before more of them are started"


def test_json_has_all_of_it(printed: Printed) -> None:
    content = printed.json(survey(dead("pg1"), standby("pg2", 900)))
    assert (content["would_promote"], content["primary"], content["problem"]) == ("pg2:5432", None, None)
    assert content["servers"] == [
        {
            "name": "pg1:5432",
            "in_recovery": None,
            "tli": None,
            "reached_lsn": "0/0",
            "missing_bytes": None,
            "obstacle": "cannot connect to PostgreSQL: Connection refused",
        },
        {
            "name": "pg2:5432",
            "in_recovery": True,
            "tli": 1,
            "reached_lsn": "0/384",
            "missing_bytes": 100,
            "obstacle": None,
        },
    ]
    assert printed.json(survey(primary("pg2", 2), floor=1))["promoted"] == "pg2:5432"
    refused = printed.json(survey(primary("pg1"), standby("pg2")))
    assert refused["would_promote"] is None and "walproxy switchover" in str(refused["problem"])


def report(fork_lsn: int = 900, tli: int = 2) -> FailoverReport:
    return FailoverReport("pg2:5432", 1, tli, fork_lsn, 4, 6, {"seal": 0.2, "promote": 0.111, "all": 0.5})


def test_the_end_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(report(), False)
    first, second = capsys.readouterr().out.splitlines()
    assert first == (
        "pg2:5432 is the primary on timeline 2 in term 6 (was 1 in 4), and commits go on, after 0.50 s: seal 0.20 s, "
        "promote 0.11 s"
    )
    assert second.startswith("what the old primary has above 0/384 was never acknowledged: walproxy discarded --pgdata")
    print_report(report(fork_lsn=0), False)  # Promoted by an earlier run, and restarted since.
    assert len(capsys.readouterr().out.splitlines()) == 1
    print_report(report(tli=1), False)
    assert capsys.readouterr().out == "nothing is to be done: pg2:5432 is the primary on timeline 1\n"
    print_report(report(), True)
    assert json.loads(capsys.readouterr().out)["fork_lsn"] == "0/384"
    print_report(report(fork_lsn=0), True)
    assert json.loads(capsys.readouterr().out)["fork_lsn"] is None


def test_without_a_terminal_a_long_wait_is_a_line_every_few_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    progress = FailoverProgress()
    with progress:
        progress.step("sealed [timeline] 1")
        for _ in range(28):  # 7 s
            progress.waiting("pg2 receives WAL", 2048)
            now += 0.25
        progress.step("promoting")
        progress.waiting("over at once")
    assert capsys.readouterr().err.splitlines() == [
        "  0.00 s  sealed [timeline] 1",
        "  1.00 s  pg2 receives WAL: 2.0 KiB left",
        "  6.00 s  pg2 receives WAL: 2.0 KiB left",
        "  7.00 s  promoting",
    ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_with_what_to_do(number: signal.Signals, capsys: pytest.CaptureFixture[str]) -> None:
    world = FakeWorld()
    progress = FailoverProgress()

    async def hang(failover: Failover) -> None:
        os.kill(os.getpid(), number)
        await asyncio.sleep(60)

    with pytest.raises(SystemExit) as end:
        run_to_end(progress, lambda: Failover((), (), Credentials(), progress, world=world), hang)
    assert end.value.code == 128 + number
    assert capsys.readouterr().err == "walproxy: interrupted: nothing was changed\n"
    assert world.is_closed
