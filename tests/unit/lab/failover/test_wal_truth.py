"""Where the old primary's path leaves the new one's, and what pg_waldump prints."""

from pathlib import Path

import pytest

from safekeeper.base.errors import WalproxyError
from walproxy.lab.failover.wal_truth import (
    CommittedTransaction,
    Stretch,
    lineage_in,
    newest_tli,
    parse_commits,
    read_commits,
    stretches_after_fork,
)


def test_the_new_timeline_forks_from_the_old_one() -> None:
    assert stretches_after_fork(1, (), 2, ((1, 0x500),)) == [Stretch(1, 0x500, None)]
    old, new = ((1, 0x500), (2, 0x900)), ((1, 0x500), (2, 0x900), (4, 0xA00))
    assert stretches_after_fork(4, old, 6, new) == [Stretch(4, 0xA00, None)]


def test_both_continue_the_same_timeline() -> None:
    assert stretches_after_fork(2, ((1, 0x500),), 2, ((1, 0x500),)) == []


def test_a_promotion_that_was_overtaken_has_left_a_branch() -> None:
    # Both from timeline 1, at the same place, or at different ones.
    assert stretches_after_fork(2, ((1, 0x500),), 3, ((1, 0x500),)) == [Stretch(2, 0x500, None)]
    assert stretches_after_fork(2, ((1, 0x500),), 3, ((1, 0x700),)) == [Stretch(2, 0x500, None)]
    assert stretches_after_fork(2, ((1, 0x700),), 3, ((1, 0x500),)) == [
        Stretch(1, 0x500, 0x700),
        Stretch(2, 0x700, None),
    ]


def test_paths_without_a_common_timeline_are_an_error() -> None:
    with pytest.raises(WalproxyError, match="timelines 2 and 3 have no common ancestor"):
        stretches_after_fork(2, (), 3, ())


def test_commits_are_found_in_what_pg_waldump_prints() -> None:
    text = (
        "rmgr: Transaction len (rec/tot):     34/    34, tx:        742, lsn: 0/0152A0E8, prev 0/0152A0B0, "
        "desc: COMMIT 2026-11-25 18:52:01.853906 UTC\n"
        "rmgr: Transaction len (rec/tot):    122/   122, tx:        743, lsn: 1/0152A110, prev 0/0152A0E8, "
        "desc: COMMIT 2026-11-25 18:52:02.000001 UTC; inval msgs: catcache 55 relcache 16384\n"
        "rmgr: Transaction len (rec/tot):     34/    34, tx:        744, lsn: 1/0152A190, prev 1/0152A110, "
        "desc: ABORT 2026-11-25 18:52:02.100000 UTC\n"
        "pg_waldump: error: error in WAL record at 1/152A190: invalid record length at 1/152A1B8: wanted 24, got 0\n"
    )
    assert parse_commits(text) == [
        CommittedTransaction(0x152A0E8, 742, "2026-11-25 18:52:01.853906"),
        CommittedTransaction(0x1_0152A110, 743, "2026-11-25 18:52:02.000001"),
    ]


def test_a_copy_without_the_fork_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(WalproxyError, match="has no segment of WAL"):
        newest_tli(tmp_path)
    (tmp_path / "00000003000000000000000A").touch()
    (tmp_path / "000000020000000000000009").touch()
    (tmp_path / "00000003.history").write_text("1\t0/500\tno recovery target specified\n\n2\t0/900\tnone\n")
    assert newest_tli(tmp_path) == 3
    assert lineage_in(tmp_path, 3) == ((1, 0x500), (2, 0x900))
    assert lineage_in(tmp_path, 1) == ()
    with pytest.raises(WalproxyError, match="lacks 000000030000000000000000, which has the fork at 0/900"):
        read_commits(Path("pg_waldump"), tmp_path, Stretch(3, 0x900, None), 1 << 20)


def test_a_pg_waldump_that_fails_is_an_error_and_the_end_of_wal_is_none(tmp_path: Path) -> None:
    (tmp_path / "000000030000000000000000").touch()
    program = tmp_path / "pg_waldump"
    for message, is_end in (("error in WAL record at 0/950: invalid record length", True), ("no such option", False)):
        program.write_text(f"#!/bin/sh\necho 'pg_waldump: error: {message}' >&2\nexit 1\n")
        program.chmod(0o755)
        if is_end:
            assert read_commits(program, tmp_path, Stretch(3, 0x900, 0xA00), 1 << 20) == []
        else:
            with pytest.raises(WalproxyError, match="pg_waldump failed: pg_waldump: error: no such option"):
                read_commits(program, tmp_path, Stretch(3, 0x900, None), 1 << 20)
