"""The run job, its tasks in this process in place of Spark's: the same files, commits and state, without a JVM.

python -m tests.pipeline.run_without_spark SOURCE URL OPTIONS CATALOG: as a process; OPTIONS are the store's, as JSON,
and CATALOG is that of Iceberg tables, {} for Delta tables.
"""

import json
import sys
import threading
from typing import Any

from tests.pipeline.small_wal import Pieces
from walproxy.pipeline.jobs.run import RunConfig, _Job
from walproxy.pipeline.jobs.run_folder import RunFolder
from walproxy.pipeline.lake.location import LakeLocation

TABLES = ("records", "transactions")


def run_segments(config: RunConfig) -> int:
    """Add what the tables lack, a segment in a batch, as `run` with --once does; return the number of batches."""
    folder = RunFolder(config.tables_at)
    with folder.locked():
        job = _Job(config, folder, lambda event: None, threading.Event())
        job.open()
        lacking = [batch for batch in Pieces(config.source, None, None).one_by_one() if batch.end_lsn > job.lsn]
        for number, batch in enumerate(lacking):
            pieces: Any = batch
            job._batch(pieces, number)
        job.close()
        return len(lacking)


if __name__ == "__main__":
    source, url, options, catalog = sys.argv[1:]
    location = LakeLocation.parse(url, json.loads(options), json.loads(catalog))
    run_segments(RunConfig(source, location, None, TABLES))
