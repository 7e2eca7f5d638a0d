"""What a recovery will replay is found up to its target, and not beyond; what is before its backup does not count."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import pytest

from safekeeper.waldecode.format import RM_XACT
from tests.unit.recovery.test_notable_records import CREATE, fill_segment, with_main
from tests.unit.recovery.test_record_times import body
from tests.unit.wal_builder import MIB, WalBuilder
from walproxy.recovery.base_backup import BackupFacts
from walproxy.recovery.fetcher import Delivered, Fetcher
from walproxy.recovery.plan import Plan, Target
from walproxy.recovery.replay_survey import ReplaySurvey, survey_replay
from walproxy.wal_sources.source import LogPath

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
LATER = NOON + timedelta(hours=1)
MAJOR = 18


class OneLog:
    """Stands for a fetcher whose sources have one log."""

    def __init__(self, wal: WalBuilder) -> None:
        self._wal = wal

    def fetch_segment(self, tli: int, begin_lsn: int, target: Path, *, find_holes: bool = True) -> Delivered | None:
        end_lsn = min(begin_lsn + MIB, self._wal.position)
        target.write_bytes(self._wal.read(begin_lsn, end_lsn))
        return Delivered("it", end_lsn, end_lsn == begin_lsn + MIB)


def backup(start_lsn: int, end_lsn: int = 0) -> BackupFacts:
    return BackupFacts(1, MAJOR, start_lsn, 1, start_lsn, end_lsn, "", "", {})


def survey(wal: WalBuilder, of: BackupFacts, target: Target) -> ReplaySurvey:
    plan = Plan(LogPath(1, (), MIB), wal.position, None, 0, None, False)
    return survey_replay(cast(Fetcher, OneLog(wal)), plan, of, target, None, lambda size: None)


@pytest.mark.parametrize("in_next_segment", [False, True])
def test_a_commit_before_the_backup_does_not_end_the_survey(in_next_segment: bool) -> None:
    """Its clock was ahead, e.g. because it was stepped back later: recovery never replays it."""
    wal = WalBuilder()
    wal.add(body(LATER), RM_XACT)
    start = wal.add(b"the backup starts")
    if in_next_segment:
        fill_segment(wal, 64)
        wal.add(b"x" * 200)
    created = wal.add(with_main(CREATE), rmid=5)
    found = survey(wal, backup(start.start_lsn), Target(time=NOON))
    assert [each.record_lsn for each in found.tablespaces] == [created.start_lsn]


def test_a_commit_after_the_target_ends_the_survey() -> None:
    wal = WalBuilder()
    wal.add(body(NOON - timedelta(hours=1)), RM_XACT)
    start = wal.add(b"the backup starts")
    before = wal.add(with_main(CREATE), rmid=5)
    wal.add(body(LATER), RM_XACT)
    wal.add(b"not replayed")
    wal.add(with_main(CREATE), rmid=5)
    found = survey(wal, backup(start.start_lsn), Target(time=NOON))
    assert [each.record_lsn for each in found.tablespaces] == [before.start_lsn]
