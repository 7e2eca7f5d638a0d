"""Clusters for tests without an initdb for each: copies of one that was never started.

initdb takes most of a second of processor time, copying what it made a tenth of that. Each process makes a template
once for each server and size of segments; all its copies have one system id. A test that needs two different ones
calls `LocalPostgres.init`.
"""

import contextlib
import subprocess
from pathlib import Path

from tests.scratch import scratch_folder
from walproxy.postgres.local_server import LocalPostgres, ServerBinaries

_made: dict[tuple[Path, int], Path] = {}
_folders = contextlib.ExitStack()


def cluster_template(binaries: ServerBinaries, segment_mib: int = 16) -> Path:
    """Return the data folder of a cluster that was never started; `remove_templates` removes it."""
    key = (binaries.bin_directory, segment_mib)
    if key not in _made:
        folder = _folders.enter_context(scratch_folder())
        LocalPostgres(binaries, folder / "data").init(wal_segment_mib=segment_mib)
        _made[key] = folder / "data"
    return _made[key]


def init_by_copying(server: LocalPostgres, template: Path) -> LocalPostgres:
    """Do for `server` what its `init` does, with a copy of `template`."""
    subprocess.run(["cp", "-a", template, server.data_directory], check=True)
    server.configure({})
    return server


def remove_templates() -> None:
    """Remove what `cluster_template` has made in this process."""
    while _made:
        _made.popitem()
    _folders.close()
