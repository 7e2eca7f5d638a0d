"""The discarded report of a killed primary is what its clients did after the point, on every version."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from safekeeper.base.lsn import format_lsn, parse_segment_name
from tests.integration.conftest import EVERY, NEWEST
from tests.integration.failover.discarded_story import by_xid, found_in, make_server, verify_report, write_tail
from walproxy.failover.discarded_report import discarded_report
from walproxy.postgres.binaries import ServerBinaries

MIB = 1 << 20


@EVERY
def test_report_is_what_the_clients_did(servers: dict[int, ServerBinaries], major: int, folder: Path) -> None:
    # With logical decoding WAL names the parents of subtransactions.
    with make_server(servers[major], folder, "logical" if major == 17 else "replica") as server:
        book = write_tail(server)
        verify_report(discarded_report(server.pg_wal, book.from_lsn), book)


@NEWEST
def test_command_lists_them_with_names(servers: dict[int, ServerBinaries], major: int, folder: Path) -> None:
    with make_server(servers[major], folder, "replica") as server:
        book = write_tail(server, big_rows=100)
        # What an agent keeps: the segments from the fork on.
        kept = folder / "kept"
        kept.mkdir()
        for path in server.pg_wal.iterdir():
            parsed = parse_segment_name(path.name, MIB)
            if parsed is not None and parsed[1] + MIB > book.from_lsn:
                shutil.copy(path, kept)
        start = ["--from", format_lsn(book.from_lsn)]
        short = discarded_report(server.pg_wal, book.from_lsn, look_back_bytes=0)
        offline = discarded("--pgdata", str(server.data_directory), *start)
        content = json.loads(discarded("--wal-dir", str(kept), *start, "--json"))
        server.start()
        named = discarded("--pgdata", str(server.data_directory), *start, "--conninfo", server.conninfo())
    lines = offline.splitlines()
    assert len(lines) == len(book.transactions) + 1
    assert re.search(
        rf" commit xid {book.transactions[0].xid} at \S+ to \S+, \d+ bytes of WAL: 1663/\d+/\d+ \+2$", lines[0]
    )
    committed = sum(each.kind.startswith("commit") for each in book.transactions)
    assert lines[-1].startswith(
        f"transactions: {len(book.transactions)}, of which committed: {committed}; not lost: 3 aborted, 1 open; "
    )
    # With too little WAL before the fork, those that began earlier are there, and are known to be incomplete.
    incomplete = {each.xid for each in short.tail.transactions if not each.is_complete}
    assert incomplete >= {each.xid for each in book.transactions if each.began_before}
    assert "may have begun before" in short.notes[0]
    complete = by_xid([each for each in found_in(short, book.tables) if each.xid not in incomplete])
    assert complete.items() <= by_xid(book.transactions).items()
    assert len(complete) == len(book.transactions) - len(incomplete)
    # The same with what an agent keeps.
    assert {each["xid"] for each in content["transactions"]} == set(by_xid(book.transactions))
    assert {each["xid"] for each in content["transactions"] if not each["complete"]} == incomplete
    assert len(content["notes"]) == 1 and "may have begun before" in content["notes"][0]
    assert ": postgres.public.plain +2\n" in named
    assert " (created after --from) +3; catalogs (DDL or statistics)\n" in named
    assert "postgres.public.wide (TOAST) +" in named
    assert "postgres.public.numbers advanced (sequence)" in named


def discarded(*words: str) -> str:
    """Run the command as a user does, and return its output."""
    program = Path(sys.executable).with_name("walproxy")
    return subprocess.run([program, "discarded", *words], check=True, capture_output=True, text=True).stdout
