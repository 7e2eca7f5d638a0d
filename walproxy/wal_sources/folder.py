"""The data folder of a stopped safekeeper as a source of WAL. Reads only.

Its log is the chain of segments whose footers check (S13), less what an adopted history has cut (S5). Of that, the
part below the control file's commit_lsn is served; the file is written lazily, so the last commits may be above it.
With `uncommitted` everything that is flushed is served. Every acknowledged commit is on a quorum, but what is on one
safekeeper only may never have been acknowledged, or have been given up by an election that this one missed.
"""

from collections.abc import Callable
from pathlib import Path

from safekeeper.base.errors import ConfigurationError, StorageFailed
from safekeeper.base.lsn import Lsn, format_lsn, segment_name
from safekeeper.base.timelines import PASSED_OVER_HISTORY, is_passed_over
from safekeeper.consensus.control_state import ControlState
from safekeeper.consensus.term_history import cut_history, last_term
from safekeeper.storage.control_file import ControlFile, DataDirectoryLock
from safekeeper.storage.data_folder import WAL_FOLDER
from safekeeper.storage.filesystem import RealFileSystem
from safekeeper.storage.recovery import SegmentFacts, end_of_chain, inspect
from safekeeper.storage.segment_file import read_pieces
from walproxy.wal_sources.ranges import extents_of_files, later_of
from walproxy.wal_sources.source import Extent, LogPath, Offer, Origin, SourceCorrupt


class FolderSource:
    """A data folder.

    Attributes:
        commit_lsn: the control file's, but not above flush_lsn.
        flush_lsn: where the valid WAL ends.
        end_lsn: what is served ends there.
        last_term: the term of the last byte: of several folders the one with the highest (last_term, flush_lsn) has
            every commit that was acknowledged by any two of them.
    """

    def __init__(self, directory: Path) -> None:
        """Look at the folder.

        Raises:
            ConfigurationError: it is not there, a safekeeper has it, or it has no WAL to give.
        """
        self.name = f"the folder {directory}"
        self._fs = RealFileSystem()
        self._directory = directory / WAL_FOLDER
        self._control = control = _load(self._fs, directory)
        self.segments, _ = inspect(self._fs, self._directory, control.segment_size)
        flush_lsn = end_of_chain(self.segments, control.segment_size)
        if control.truncate_to is not None:
            flush_lsn = min(flush_lsn, control.truncate_to)
        self.flush_lsn = flush_lsn
        self.commit_lsn = min(control.commit_lsn, flush_lsn)
        self.end_lsn = self.commit_lsn
        self.last_term = last_term(cut_history(control.history, flush_lsn))

    def serve_uncommitted(self) -> None:
        """Serve everything that is flushed."""
        self.end_lsn = self.flush_lsn

    def origin(self) -> Origin:
        """See WalSource."""
        return Origin(self._control.system_id, self._control.segment_size)

    def offers(self, tli: int, begin_lsn: Lsn) -> list[Offer]:
        """See SegmentSource."""
        end_lsn = self._ends().get((tli, begin_lsn), 0)
        if end_lsn <= begin_lsn:
            return []
        return [Offer(self.name, begin_lsn, end_lsn, self.commit_lsn, self._writer(tli, begin_lsn, end_lsn))]

    def history(self, tli: int) -> bytes | None:
        """See SegmentSource."""
        files = {file.tli: file.content for file in self._control.tli_histories}
        newest = max(files, default=0)
        if tli not in files and newest > tli and is_passed_over(tli, newest, files[newest]):
            return PASSED_OVER_HISTORY
        return files.get(tli)

    def has_later(self, tli: int, begin_lsn: Lsn) -> str | None:
        """See SegmentSource."""
        return later_of(self._ends(), tli, begin_lsn, self._control.segment_size)

    def extents(self, path: LogPath, begin_lsn: Lsn = 0) -> list[Extent]:
        """See WalSource."""
        return extents_of_files(path, self._ends())

    def _ends(self) -> dict[tuple[int, Lsn], Lsn]:
        """Return all WAL that is served: (TLI, start of the segment) to the end of its bytes."""
        return {
            (segment.tli, segment.begin_lsn): min(segment.valid_end_lsn or 0, self.end_lsn)
            for segment in self._served()
        }

    def _served(self) -> list[SegmentFacts]:
        return [segment for segment in self.segments if segment.begin_lsn < self.end_lsn]

    def _writer(self, tli: int, begin_lsn: Lsn, end_lsn: Lsn) -> Callable[[Path], None]:
        path = self._directory / segment_name(tli, begin_lsn, self._control.segment_size)

        def write(target: Path) -> None:
            try:
                file = self._fs.open(path, read_only=True)
            except StorageFailed as error:  # No safekeeper runs here that could have removed it.
                raise SourceCorrupt(str(error)) from error
            try:
                with target.open("wb") as copy:
                    for piece in read_pieces(file, path, 0, end_lsn - begin_lsn):
                        copy.write(piece)
            except StorageFailed as error:
                raise SourceCorrupt(str(error)) from error
            finally:
                file.close()

        return write


def choose_uncommitted(folders: list[FolderSource]) -> FolderSource | None:
    """Let one of several folders serve what is not known to be committed; return it, None if none has more.

    The one that an election would take as its donor: the newest term at the end of its log, then the longest log. The
    uncommitted end of any other one may have been given up.
    """
    donor = max(folders, key=lambda folder: (folder.last_term, folder.flush_lsn), default=None)
    if donor is None or donor.flush_lsn <= donor.commit_lsn:
        return None
    donor.serve_uncommitted()
    return donor


def _load(fs: RealFileSystem, directory: Path) -> ControlState:
    if not fs.exists(directory):
        raise ConfigurationError(f"{directory} does not exist: correct --data-dir")
    owner = DataDirectoryLock.owner(directory)
    if owner is not None:
        raise ConfigurationError(
            f"the safekeeper of {directory} is running (pid {owner}): stop it, or ask it with --safekeepers"
        )
    try:
        control = ControlFile(fs, directory).load(ControlState)
    except StorageFailed as error:
        raise ConfigurationError(f"{directory} cannot be read: {error}") from error
    if control is None or not control.segment_size:
        raise ConfigurationError(f"{directory} has no WAL: no safekeeper has used it; correct --data-dir")
    if control.is_log_pending:
        raise ConfigurationError(
            f"{directory}: a new beginning of its log is under way, from {format_lsn(control.base_lsn or 0)}; start "
            "its safekeeper once, or leave it out"
        )
    return control
