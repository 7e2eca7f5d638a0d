"""A standby whose replay stands still below what it has on its disk is noticed; one that has replayed all is not."""

from safekeeper.consensus.messages import Standby
from walproxy.proposer.standbys import StandbyRow
from walproxy.proxy.replay_watch import STALLED_S, ReplayWatch


def row(apply_lsn: int, flush_lsn: int = 1000, *, connected: bool = True) -> StandbyRow:
    return StandbyRow(Standby("a", flush_lsn, flush_lsn, apply_lsn), 1, connected, False)


def stalled_s(*rows: StandbyRow) -> float | None:
    """Return what a watch says after looks that are STALLED_S apart, the first at 100."""
    watch, now = ReplayWatch(), 100.0
    for each in rows:
        watch.observe([each], now)
        now += STALLED_S
    return watch.stalled_s("a", now - STALLED_S)


def test_replay_that_stands_still_below_the_flush_position_is_noticed() -> None:
    assert stalled_s(row(900)) is None
    assert stalled_s(row(900), row(900, 1001)) == STALLED_S
    assert stalled_s(row(900), row(900, 2000), row(900, 3000)) == 2 * STALLED_S
    assert stalled_s(row(900), row(900, 2000), row(900, 2000)) == 2 * STALLED_S


def test_an_incomplete_last_record_is_not_a_stalled_replay() -> None:
    """The primary has died: no standby replays the record, and none receives the rest of it."""
    assert stalled_s(row(900), row(900)) is None
    assert stalled_s(row(800), row(900), row(900), row(900)) is None
    assert stalled_s(row(900, 900), row(900), row(900)) is None


def test_a_standby_that_moves_has_replayed_all_is_gone_or_does_not_replay_is_not_stalled() -> None:
    assert stalled_s(row(900), row(901)) is None
    assert stalled_s(row(1000), row(1000)) is None
    assert stalled_s(row(1000), row(1000), row(1000, 2000)) is None
    assert stalled_s(row(900), row(900, connected=False)) is None
    assert stalled_s(row(0), row(0)) is None
    assert ReplayWatch().stalled_s("unknown", 100.0) is None
