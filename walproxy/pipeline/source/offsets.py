"""The position of a stream: of which system's WAL, on which timeline, up to which record.

    {"system_id": "7380000000000000001", "tli": 1, "lsn": "0/3000000"}

All records that begin before `lsn` were handed out. `tli` is the timeline of the byte before it, so that a stream which
went on over a fork can check that the timelines that it gets later are those that it has read.
"""

from typing import Any, NamedTuple

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.lsn import Lsn, format_lsn, parse_lsn
from walproxy.pipeline.input.wal_input import WalInput
from walproxy.wal_sources.source import LogPath


class Offset(NamedTuple):
    """A position in a log: `lsn` is the end of a record, or a page's boundary."""

    system_id: int
    tli: int
    lsn: Lsn

    @classmethod
    def of(cls, system_id: int, path: LogPath, lsn: Lsn) -> "Offset":
        """Return the offset of `lsn` on `path`."""
        return cls(system_id, path.tli_of(max(lsn - 1, 0)), lsn)

    @classmethod
    def parse(cls, content: dict[str, Any]) -> "Offset":
        """Return the offset that a checkpoint holds.

        Raises:
            ConfigurationError: it holds no offset of ours.
        """
        try:
            return cls(int(content["system_id"]), int(content["tli"]), parse_lsn(content["lsn"]))
        except (KeyError, TypeError, ValueError, ConfigurationError):
            raise ConfigurationError(
                f"the checkpoint's offset {content} is not one of pgwal: begin again with another checkpoint folder"
            ) from None

    def content(self) -> dict[str, Any]:
        """Return what the checkpoint holds. Numbers of 64 bits are text: not every reader of JSON keeps them whole."""
        return {"system_id": str(self.system_id), "tli": self.tli, "lsn": format_lsn(self.lsn)}

    def check(self, wal_input: WalInput, path: LogPath, holder: str = "the checkpoint") -> None:
        """Make sure that this is a position of the log `path`.

        Args:
            holder: what has this offset, for messages.

        Raises:
            ConfigurationError: it is one of other WAL.
        """
        otherwise = "or begin again in another folder"
        system_id = wal_input.origin().system_id
        if system_id != self.system_id:
            raise ConfigurationError(
                f"{holder} is of the system {self.system_id}, and {wal_input.name} has the WAL of {system_id}: name "
                f"the input that it was made from, {otherwise}"
            )
        tli = path.tli_of(max(self.lsn - 1, 0))
        if tli != self.tli:
            ends = dict(path.lineage)
            left = f", which left it at {format_lsn(ends[self.tli])}" if self.tli in ends else ""
            raise ConfigurationError(
                f"{holder} reaches {format_lsn(self.lsn)} on timeline {self.tli}, which is not a part of timeline "
                f"{path.tli} of {wal_input.name}{left}: continue with timeline {self.tli}, {otherwise}"
            )
