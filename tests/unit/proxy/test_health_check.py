"""What `walproxy check` makes of a status: levels as exit codes of monitoring plugins, one line, figures."""

import re

import pytest

from tests.unit.proxy.statuses import gate, listed_safekeeper, lost, standby, status
from walproxy.proxy.health_check import CheckLevel, Threshold, Thresholds, judge
from walproxy.proxy.status_fields import ArchiveProgress


def test_all_is_well() -> None:
    verdict = judge(status(), Thresholds())
    assert verdict.level is CheckLevel.OK
    assert verdict.line() == (
        "WALPROXY OK - streaming, 3 of 3 members streaming | "
        "waiting=0s;0;10;0 members_missing=0;0;;0 lag=0B;67108864;;0"
    )


def test_a_lost_quorum_is_a_warning_at_once_and_critical_after_a_while() -> None:
    for for_s, level in ((0.0, CheckLevel.WARNING), (9.9, CheckLevel.WARNING), (10.0, CheckLevel.CRITICAL)):
        verdict = judge(status(state="waiting_for_quorum", quorum_lost=lost(for_s=for_s)), Thresholds())
        assert verdict.level is level
    line = judge(status(state="waiting_for_quorum", quorum_lost=lost()), Thresholds()).line()
    assert "no quorum for 63 s: commits wait" in line and "waiting_sessions=5" in line


def test_commits_that_do_not_wait_or_hang_are_critical_and_others_a_warning() -> None:
    open_gate = gate("not gated", "synchronous_standby_names is ''")
    verdict = judge(status(gate=open_gate), Thresholds())
    assert verdict.problems == [
        (CheckLevel.CRITICAL, "commits do not wait for the quorum: synchronous_standby_names is ''"),
    ]
    line = judge(status(gate=open_gate, state="waiting_for_quorum", quorum_lost=lost()), Thresholds()).line()
    assert "no quorum for 63 s;" in f"{line};".replace(" |", ";") and "commits wait" not in line
    for content, level, text in (
        (gate("gated", None), CheckLevel.OK, "streaming, 3 of 3 members streaming |"),
        (gate("gated with others", None), CheckLevel.OK, "streaming, 3 of 3 members streaming |"),
        (gate("gated with others", "b", hangs=True), CheckLevel.CRITICAL, "commits wait for another standby: b"),
        (gate("gated with others", "b may"), CheckLevel.WARNING, "commits may return without the quorum: b may"),
        (gate("unknown", "no right"), CheckLevel.WARNING, "whether commits wait for the quorum is unknown: no right"),
        (
            gate("gated", None, exempt="commits of role a do not wait"),
            CheckLevel.WARNING,
            "commits of role a do not wait",
        ),
    ):
        verdict = judge(status(gate=content), Thresholds())
        assert verdict.level is level and text in verdict.line()


def test_without_a_primary_the_reason_is_reported() -> None:
    shown = status(state="waiting_for_primary", state_since_s=0.1, not_ready_s=30.0)
    shown.primary.problem = "cannot connect | to it"
    verdict = judge(shown, Thresholds())
    assert verdict.level is CheckLevel.CRITICAL
    assert (
        "waiting_for_primary, 3 of 3 members streaming; not ready for 30 s: commits wait: cannot connect / to it"
        in verdict.line()
    )


def test_a_proxy_that_streams_for_a_moment_now_and_then_is_critical() -> None:
    verdict = judge(status(not_ready_s=30.0), Thresholds())
    assert verdict.level is CheckLevel.CRITICAL
    assert "not ready for 30 s: commits wait" in verdict.line()


def test_missing_members_lags_and_the_archive_have_thresholds() -> None:
    listed = [
        listed_safekeeper(1),
        listed_safekeeper(2, "disconnected", "could not connect"),
        listed_safekeeper(3, lag_bytes=1000),
    ]
    archive = ArchiveProgress(archiver=1, archived_lsn="0/0", lag_bytes=500, problem="")
    shown = status(members_streaming=2, safekeepers=listed, archive=archive)
    verdict = judge(shown, Thresholds())
    assert verdict.problems == [(CheckLevel.WARNING, "safekeeper 2: could not connect")]
    strict = Thresholds(missing=Threshold(1, 1), lag_bytes=Threshold(10, 1000), archive_lag_bytes=Threshold(500, 501))
    verdict = judge(shown, strict)
    assert [level for level, _ in verdict.problems] == [CheckLevel.CRITICAL, CheckLevel.CRITICAL, CheckLevel.WARNING]
    assert re.search(r"members_missing=1;0;0;0 lag=1000B;10;1000;0 archive_lag=500B;500;501;0$", verdict.line())
    assert verdict.content()["figures"]["lag"] == 1000


def test_what_needs_attention_by_day_is_a_warning() -> None:
    archive = ArchiveProgress(archiver=1, archived_lsn="0/0", lag_bytes=None, problem="no route")
    shown = status(apply_problem="a is not streaming", archive=archive)
    shown.primary.hosts[0].state, shown.primary.hosts[0].problem = "refused", "an old primary"
    verdict = judge(shown, Thresholds())
    assert {level for level, _ in verdict.problems} == {CheckLevel.WARNING}
    assert all(word in verdict.line() for word in ("no route", "a is not streaming", "an old primary"))


@pytest.mark.parametrize("spare", [False, True])
def test_sql_that_is_not_possible_is_a_warning_of_a_spare_too(spare: bool) -> None:
    shown = status(spare=spare)
    shown.primary.sql_problem = "no such database"
    verdict = judge(shown, Thresholds())
    assert verdict.problems == [(CheckLevel.WARNING, "SQL on the primary is not possible: no such database")]


def test_a_spare_is_fine() -> None:
    assert judge(status(spare=True, state="electing"), Thresholds()).level is CheckLevel.OK


def test_a_standby_that_has_wal_and_does_not_replay_it_is_a_warning_after_a_minute() -> None:
    for stalled_s, level in ((None, CheckLevel.OK), (59.9, CheckLevel.OK), (60.0, CheckLevel.WARNING)):
        verdict = judge(status(standbys=[standby("a", stalled_s=stalled_s)]), Thresholds())
        assert verdict.level is level
    assert "standby a has replayed nothing for 60 s although it receives WAL" in verdict.line()
