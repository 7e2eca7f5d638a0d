"""What a run leaves: dumps of primary and standby, and the WAL as two decoders count it."""

import re
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path

from safekeeper.base.lsn import Lsn, format_lsn
from tests.conformance.outcomes import Outcome
from tests.pipeline.pg_waldump import lines
from walproxy.postgres.binaries import ServerBinaries
from walproxy.postgres.local_server import LocalPostgres

# pg_dump writes a key that is random in each dump, against injection into psql.
_RANDOM_KEY = re.compile(r"^\\(?:un)?restrict \S+$", re.MULTILINE)
_HEADING = "WAL statistics between "


def compare_dumps(primary: LocalPostgres, standby: LocalPostgres, folder: Path) -> Outcome:
    """Compare pg_dumpall of both servers, without the data of unlogged tables, which no standby has."""
    dumps = {}
    for name, server in (("primary", primary), ("standby", standby)):
        command = [server.binaries.path("pg_dumpall"), "--no-unlogged-table-data", "-d", server.conninfo()]
        answer = subprocess.run(command, capture_output=True, check=False)
        if answer.returncode != 0:
            reason = answer.stderr.decode(errors="replace").strip().splitlines()
            return Outcome("pg_dumpall", f"of the {name}: {reason[-1] if reason else answer.returncode}")
        (folder / f"{name}.sql").write_bytes(answer.stdout)
        dumps[name] = _RANDOM_KEY.sub("", answer.stdout.decode("latin-1"))
    return Outcome("pg_dumpall", first_difference(dumps["primary"].split("\n"), dumps["standby"].split("\n")))


def compare_records(binaries: ServerBinaries, pg_wal: Path, safekeepers: str, begin_lsn: Lsn, end_lsn: Lsn) -> Outcome:
    """Compare --stats=record of `walproxy pipeline waldump` over the safekeepers' WAL, and of pg_waldump over pg_wal.

    Args:
        safekeepers: their URL, safekeeper://...
    """
    test = "waldump --stats=record"
    words = ["--timeline", "1", "-s", format_lsn(begin_lsn), "-e", format_lsn(end_lsn), "--stats=record"]
    command = [sys.executable, "-m", "walproxy", "pipeline", "waldump", safekeepers, *words]
    ours = subprocess.run(command, capture_output=True, text=True, check=False)
    if ours.returncode != 0:
        return Outcome(test, f"walproxy failed with exit code {ours.returncode}: {ours.stderr.strip()[-500:]}")
    found = lines(binaries, pg_wal, 1, begin_lsn, end_lsn, "--stats=record")
    theirs = [line.decode().rstrip("\n") for line in found if not line.startswith(b"first record is after ")]
    if len(theirs) < 10:
        return Outcome(test, f"pg_waldump prints {len(theirs)} lines only")
    printed = ours.stdout.splitlines()
    if not theirs[0].startswith(_HEADING) and printed[:1] and printed[0].startswith(_HEADING):
        del printed[0]  # pg_waldump has it from PostgreSQL 14 on.
    return Outcome(test, first_difference(theirs, printed))


def first_difference(expected: list[str], found: list[str]) -> str | None:
    """Return a description of the first line that differs, None if all are equal."""
    for number, (one, other) in enumerate(zip_longest(expected, found), 1):
        if one != other:
            return f"line {number}: {one!r} is expected, {other!r} found"
    return None
