"""The names of all operations are those that pg_waldump has, also of those that no server writes."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from safekeeper.base.lsn import format_lsn, segment_name
from tests.unit.wal_builder import MIB, WalBuilder
from walproxy.pipeline.decoder.opcodes import operation_name, rmgr_name
from walproxy.postgres.local_server import find_servers

RMIDS = (*range(22), 128, 200, 255)
SWITCH = (0, 0x40)  # pg_waldump would look for the next segment


@pytest.mark.parametrize("major", [15, 17, 18])
def test_every_operation_of_every_resource_manager_has_pg_waldump_s_name(major: int, tmp_path: Path) -> None:
    if major not in find_servers():
        pytest.skip(f"no PostgreSQL {major} on this machine")
    wal = WalBuilder(major=major)
    operations = [(rmid, info) for rmid in RMIDS for info in range(0, 256, 16) if (rmid, info) != SWITCH]
    for rmid, info in operations:
        wal.add(b"", rmid=rmid, info=info)
    end_lsn = wal.position
    wal.data += bytes(-wal.position % MIB)
    (tmp_path / segment_name(1, wal.begin_lsn, MIB)).write_bytes(wal.data)

    # The table of --stats is made of names alone; its text would describe bodies, which these records do not have.
    bounds = ["-s", format_lsn(wal.begin_lsn), "-e", format_lsn(end_lsn)]
    output = subprocess.run(
        [find_servers()[major].path("pg_waldump"), "-p", tmp_path, "-t", "1", *bounds, "--stats=record"],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "LC_ALL": "C"},
    ).stdout
    rows = re.findall(r"^(\S+)/(UNKNOWN \(\w+\)|\S+) +\d+ \(", output, re.MULTILINE)
    theirs = {(rmgr, re.sub(r"UNKNOWN \((\w+)\)", r"0x\1", name)) for rmgr, name in rows}
    assert theirs == {(rmgr_name(rmid), operation_name(major, rmid, info)) for rmid, info in operations}
