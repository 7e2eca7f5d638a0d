"""Which files of pg_wal are copied."""

from pathlib import Path

from walproxy.lab.failover.wal_keeper import copy_newest_wal

SEGMENT = 16 << 20


def test_the_newest_segments_and_all_histories_are_copied(tmp_path: Path) -> None:
    pg_wal, target = tmp_path / "pg_wal", tmp_path / "copy"
    (pg_wal / "archive_status").mkdir(parents=True)
    target.mkdir()
    for name in ("000000010000000000000001", "000000010000000000000002", "000000010000000000000003"):
        (pg_wal / name).write_text(name)
    for name in ("000000020000000000000003", "00000002.history", "xlogtemp.12"):
        (pg_wal / name).write_text(name)
    (pg_wal / "000000020000000000000004").write_bytes(bytes(8192))  # Allocated, and not written yet.
    copy_newest_wal(pg_wal, target, SEGMENT)
    assert sorted(path.name for path in target.iterdir()) == [
        "000000010000000000000002",
        "000000010000000000000003",
        "00000002.history",
        "000000020000000000000003",
    ]
