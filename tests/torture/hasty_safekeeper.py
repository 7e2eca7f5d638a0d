"""A safekeeper that answers before its disk has synced: `hasty_safekeeper.py [--volatile] CONTROL_FILE run OPTIONS`.

It is walproxy.lab.testing.faulty_disk but for one thing: what it writes is synced half a second later, by a thread of
its own, and is said to be on disk at once. With --volatile a kill loses it. Only full segments are synced in time:
nobody comes back to them. Nor does it look, when it starts, whether its disk has what its control file says (S8): the
torture has to find it.
"""

import threading

from safekeeper.storage import data_folder
from safekeeper.storage.segment_file import SegmentFile
from walproxy.lab.testing.faulty_disk import run_safekeeper

_SYNCS_AFTER_S = 0.5


def main() -> None:
    sync = SegmentFile.sync
    due: set[int] = set()

    def sync_later(segment: SegmentFile) -> None:
        if segment.write_lsn == segment.end_lsn:
            due.discard(segment.begin_lsn)
            sync(segment)
        elif segment.begin_lsn not in due:
            due.add(segment.begin_lsn)
            timer = threading.Timer(_SYNCS_AFTER_S, sync_now, [segment])
            timer.daemon = True
            timer.start()

    def sync_now(segment: SegmentFile) -> None:
        if segment.begin_lsn in due:
            due.discard(segment.begin_lsn)
            sync(segment)

    SegmentFile.sync = sync_later  # type: ignore[method-assign]
    data_folder.missing_wal = lambda *_: None
    run_safekeeper()


if __name__ == "__main__":
    main()
