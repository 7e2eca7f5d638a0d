"""What a rewound server must not replay is gone from its pg_wal; all else is as it was."""

from pathlib import Path

from safekeeper.base.lsn import segment_name
from walproxy.agent.foreign_wal import remove_foreign_wal
from walproxy.agent.rejoin_plan import TimelineLineage

SIZE = 1 << 20


def test_only_wal_of_the_history_is_left(tmp_path: Path) -> None:
    full = b"w" * SIZE

    def add(tli: int, number: int) -> Path:
        path = tmp_path / segment_name(tli, number * SIZE, SIZE)
        path.write_bytes(full)
        return path

    # Timeline 1 ends in the middle of its segment 4, timeline 3 at the end of its segment 5.
    history = TimelineLineage(4, ((1, 4 * SIZE + 1000), (3, 6 * SIZE)))
    whole = [add(1, 3), add(3, 4), add(3, 5), add(4, 6), add(4, 9)]
    fork = add(1, 4)
    foreign = [add(1, 5), add(2, 4), add(3, 6), add(5, 4)]
    others = [tmp_path / name for name in ("00000002.history", "archive_status")]
    for path in others:
        path.write_bytes(full)
    for _ in range(2):  # It can be repeated.
        remove_foreign_wal(tmp_path, history, SIZE)
        assert all(path.read_bytes() == full for path in [*whole, *others])
        assert fork.read_bytes() == full[:1000] + bytes(SIZE - 1000)
        assert not any(path.exists() for path in foreign)
