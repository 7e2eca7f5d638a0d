"""The content of pg_control, as pg_controldata prints it: the state of a server that is stopped, or that hangs.

The format of the file changes with the major version, the lines of pg_controldata (with LC_ALL=C) do so rarely. Pure.
"""

import re
from dataclasses import dataclass

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.lsn import Lsn, parse_lsn
from walproxy.postgres.problems import ServerProblem

_LINE = re.compile(r"^([^:]+):\s*(.*)$")
# Source: dbState() in src/bin/pg_controldata/pg_controldata.c
_CLEAN = frozenset({"shut down", "shut down in recovery"})
_OF_A_STANDBY = frozenset({"shut down in recovery", "in archive recovery"})


@dataclass(frozen=True)
class ControlData:
    """The used part of pg_control.

    Attributes:
        state: as printed, e.g. "in production".
        checkpoint_lsn: the latest checkpoint record; of a clean shutdown, the last record.
        tli: that of this checkpoint.
        min_recovery_lsn: a standby is consistent from there on; 0 for a primary.
        min_recovery_tli: the TLI of that; 0 for a primary.
        segment_size: of WAL, in bytes.
        can_be_rewound: data checksums or wal_log_hints are on, as pg_rewind requires.
    """

    system_id: int
    state: str
    checkpoint_lsn: Lsn
    tli: int
    min_recovery_lsn: Lsn
    min_recovery_tli: int
    segment_size: int
    can_be_rewound: bool

    @property
    def is_clean(self) -> bool:
        """Whether the server was shut down: no WAL follows the checkpoint."""
        return self.state in _CLEAN

    @property
    def was_standby(self) -> bool:
        """Whether the server last ran in recovery from an archive or a primary: it has written no WAL of its own."""
        return self.state in _OF_A_STANDBY

    @property
    def last_tli(self) -> int:
        """The highest TLI of which the data folder has content."""
        return max(self.tli, self.min_recovery_tli)


def parse_control_data(text: str) -> ControlData:
    """Return what pg_controldata has printed.

    Raises:
        ServerProblem: a line is missing, or has an unknown format.
    """
    found = {match[1].strip(): match[2].strip() for line in text.splitlines() if (match := _LINE.match(line))}
    try:
        return ControlData(
            system_id=int(found["Database system identifier"]),
            state=found["Database cluster state"],
            checkpoint_lsn=parse_lsn(found["Latest checkpoint location"]),
            tli=int(found["Latest checkpoint's TimeLineID"]),
            min_recovery_lsn=parse_lsn(found["Minimum recovery ending location"]),
            min_recovery_tli=int(found["Min recovery ending loc's timeline"]),
            segment_size=int(found["Bytes per WAL segment"]),
            can_be_rewound=found["wal_log_hints setting"] == "on" or int(found["Data page checksum version"]) > 0,
        )
    except KeyError as error:
        raise ServerProblem(f"pg_controldata does not print {error.args[0]!r}") from None
    except (ValueError, ConfigurationError) as error:
        raise ServerProblem(f"pg_controldata prints an unknown value: {error}") from None
