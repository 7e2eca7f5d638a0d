"""The archive's benchmark: what becomes of its figures, and an archive that can die."""

from pathlib import Path

import pytest

from walproxy.lab.bench import archive_commits, uploads
from walproxy.lab.bench.archive_commits import ALIVE, NONE, compare_commits
from walproxy.lab.bench.archive_outage import AFTER, BEFORE, DEAD, REVIVED, Minute, minutes_of, sum_up
from walproxy.lab.bench.commit_cases import CommitTurn, cells_of
from walproxy.lab.bench.local_archive import LocalArchive
from walproxy.lab.bench.uploads import DISK, PLAIN, ZSTD, UploadTurn, compare_uploads

P50_MS = {NONE: 4.0, ALIVE: 5.0, archive_commits.DEAD: 4.5}


def test_a_dead_archive_is_compared_with_one_that_lives_and_with_none_in_the_same_round() -> None:
    turns = [
        # The machine is twice as slow in each round as in the one before.
        CommitTurn(number, *cell, 100.0, P50_MS[cell.case] * 2**number, 10.0)
        for number in range(3)
        for cell in cells_of(archive_commits.CASES, [1, 4])
    ]
    results = {(each.case, each.clients): each for each in compare_commits(turns)}
    assert len(results) == 6
    dead = results[archive_commits.DEAD, 4]
    assert dead.p50_ms == 9.0
    assert dead.to_none == pytest.approx(1.125)
    assert (dead.to_alive, dead.alive_low, dead.alive_high) == pytest.approx((0.9, 0.9, 0.9))
    assert results[ALIVE, 1].to_none == pytest.approx(1.25)
    assert results[ALIVE, 1].to_alive is None
    assert results[NONE, 1].to_none == 1.0


def test_an_outage_is_compared_with_the_minutes_before_and_after_it() -> None:
    times_ms = [(BEFORE, 4.0), (DEAD, 4.4), (DEAD, 6.0), (DEAD, 4.2), (REVIVED, 50.0), (AFTER, 4.8)]
    minutes = [Minute(4, phase, 1, 100.0, p50_ms, 20.0, 1000) for phase, p50_ms in times_ms]
    result = sum_up(minutes, 3.0, 7000, 12.5)
    assert (result.clients, result.dead_minutes, result.piled_up_bytes, result.caught_up_s) == (4, 3.0, 7000, 12.5)
    assert (result.alive_ms, result.dead_ms) == pytest.approx((4.4, 4.4))
    assert (result.ratio, result.worst_ratio) == pytest.approx((1.0, 6.0 / 4.4))


def test_an_outage_is_measured_minute_by_minute_and_what_is_left_of_the_last_one() -> None:
    assert minutes_of(3) == [60.0, 60.0, 60.0]
    assert minutes_of(1.5) == [60.0, 30.0]
    assert minutes_of(0.1) == [pytest.approx(6.0)]


def test_uploads_are_compared_with_what_the_disk_took_in_the_same_round() -> None:
    seconds = {DISK: 1.0, PLAIN: 2.0, ZSTD: 4.0}
    turns = [
        UploadTurn(number, case, seconds[case] * (number + 1), 400_000_000, 400_000_000 if case != ZSTD else 10**8, 1.0)
        for number in range(3)
        for case in uploads.CASES
    ]
    results = {each.case: each for each in compare_uploads(turns)}
    plain = results[PLAIN]
    assert (plain.mb_s, plain.low, plain.high) == pytest.approx((100.0, 200 / 3, 200.0))
    assert (plain.to_disk, plain.cpu_ms_mb, plain.cores) == pytest.approx((0.5, 2.5, 0.25))
    assert results[ZSTD].stored == 0.25
    assert results[DISK].to_disk == 1.0


def test_nothing_can_be_archived_while_the_archive_is_dead_and_all_is_there_afterwards(tmp_path: Path) -> None:
    archive = LocalArchive(tmp_path / "archive")
    archive.directory.mkdir()
    (archive.directory / "object").write_bytes(b"content")
    archive.die()
    with pytest.raises(NotADirectoryError):
        (archive.directory / "other").write_bytes(b"content")
    with pytest.raises(FileExistsError):
        archive.directory.mkdir(exist_ok=True)
    archive.revive()
    assert [path.name for path in tmp_path.iterdir()] == ["archive"]
    assert (archive.directory / "object").read_bytes() == b"content"
