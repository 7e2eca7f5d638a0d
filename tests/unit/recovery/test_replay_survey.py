"""What a recovery will replay is found up to its target, and not beyond; what is before its backup does not count."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import pytest

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.lsn import format_lsn
from safekeeper.waldecode.format import RM_XACT
from tests.unit.recovery.test_notable_records import CREATE, PATH, fill_segment, with_main
from tests.unit.recovery.test_record_times import body
from tests.unit.wal_builder import MIB, WalBuilder
from walproxy.recovery.base_backup import BackupFacts
from walproxy.recovery.fetcher import Delivered, Fetcher
from walproxy.recovery.plan import Plan, RecoveryTarget
from walproxy.recovery.replay_survey import ReplaySurvey, refuse_live_tablespaces, survey_replay
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


def survey(wal: WalBuilder, of: BackupFacts, target: RecoveryTarget) -> ReplaySurvey:
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
    found = survey(wal, backup(start.start_lsn), RecoveryTarget(time=NOON))
    assert [each.record_lsn for each in found.tablespaces] == [created.start_lsn]


def test_a_commit_after_the_target_ends_the_survey() -> None:
    wal = WalBuilder()
    wal.add(body(NOON - timedelta(hours=1)), RM_XACT)
    start = wal.add(b"the backup starts")
    before = wal.add(with_main(CREATE), rmid=5)
    wal.add(body(LATER), RM_XACT)
    wal.add(b"not replayed")
    wal.add(with_main(CREATE), rmid=5)
    found = survey(wal, backup(start.start_lsn), RecoveryTarget(time=NOON))
    assert [each.record_lsn for each in found.tablespaces] == [before.start_lsn]


def test_a_lower_target_is_advised_only_where_it_can_be_recovered_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("walproxy.recovery.replay_survey.occupant_of", lambda path, major: "where it exists")
    wal = WalBuilder()
    before = wal.add(b"before")
    wal.add(with_main(CREATE), rmid=5)
    after = wal.add(b"after")

    def advice(of: BackupFacts) -> str:
        found = survey(wal, of, RecoveryTarget())
        with pytest.raises(ConfigurationError, match=PATH) as refusal:
            refuse_live_tablespaces(found.tablespaces, of)
        assert str(refusal.value).endswith("where that folder is empty; nothing was written") != (
            "--target-lsn" in str(refusal.value)
        )
        return str(refusal.value)

    assert f"--target-lsn {format_lsn(before.start_lsn)}; nothing was" in advice(backup(before.start_lsn))
    # The tablespace was created while the backup was taken.
    assert "--target-lsn" not in advice(backup(before.start_lsn, after.end_lsn))
    # It is the first record of the recovery.
    assert "--target-lsn" not in advice(backup(before.end_lsn))


def test_a_lower_target_is_advised_for_wal_that_cannot_be_decoded_only_where_it_can_be_recovered_to() -> None:
    wal = WalBuilder()
    before = wal.add(b"before")
    created = wal.add(with_main(CREATE), rmid=5)
    wal.data[created.start_lsn - wal.begin_lsn + 40] ^= 1
    with pytest.raises(ConfigurationError, match=f"--target-lsn {format_lsn(before.start_lsn)}; nothing was written"):
        survey(wal, backup(before.start_lsn), RecoveryTarget())
    for of in backup(before.start_lsn, before.end_lsn), backup(created.start_lsn):
        with pytest.raises(ConfigurationError, match="use another source; nothing was written"):
            survey(wal, of, RecoveryTarget())


def test_no_target_is_advised_if_the_first_record_cannot_be_decoded() -> None:
    wal = WalBuilder()
    created = wal.add(with_main(CREATE), rmid=5)
    wal.data[created.start_lsn - wal.begin_lsn + 40] ^= 1
    with pytest.raises(ConfigurationError, match="use another source; nothing was written"):
        survey(wal, backup(wal.begin_lsn), RecoveryTarget())
