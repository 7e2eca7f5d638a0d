"""The watch over the standbys sees one that is ahead."""

from typing import Any

from walproxy.lab.torture.standby_watch import StandbyWatch, standbys_ahead


def status(commit_lsn: str, **standbys: str) -> dict[str, Any]:
    rows = [{"name": name, "write_lsn": lsn, "flush_lsn": lsn, "apply_lsn": "0/0"} for name, lsn in standbys.items()]
    return {"commit_lsn": commit_lsn, "run": "2824b180", "standbys": rows}


def test_standbys_up_to_what_is_committed_are_fine() -> None:
    assert list(standbys_ahead(status("0/200", standby1="0/200", standby2="0/100"))) == []


def test_a_standby_beyond_what_is_committed_is_ahead() -> None:
    [(name, message)] = standbys_ahead(status("0/200", standby1="0/201", standby2="0/100"))
    assert name == "standby1"
    assert (
        message
        == "the standby standby1 is at 0/201 and the quorum only at 0/200, in /status of the proxy of run 2824b180"
    )


def test_a_proxy_that_does_not_know_yet_what_is_committed_proves_nothing() -> None:
    assert list(standbys_ahead(status("0/0", standby1="0/200"))) == []


def test_the_watch_reports_each_standby_once() -> None:
    watch = StandbyWatch(lambda name: None, [])
    for commit_lsn in ("0/200", "0/210"):
        watch.look(status(commit_lsn, standby1="0/300", standby2="0/100", standby3="0/300"))
    assert [violation.message.split()[2] for violation in watch.violations] == ["standby1", "standby3"]
    assert watch.looked == 6


def test_the_watch_looks_at_every_proxy_that_answers() -> None:
    asked: list[str] = []
    answers: dict[str, dict[str, Any] | None] = {"walproxy": None, "walproxy2": status("0/200", standby1="0/201")}

    def ask(name: str) -> dict[str, Any] | None:
        asked.append(name)
        return answers[name]

    with StandbyWatch(ask, answers) as watch:
        pass  # It looks at least once.
    assert len(watch.violations) == 1
    assert set(asked) == {"walproxy", "walproxy2"}
