"""Points of `sometimes` that no run of the simulator reaches, each with the reason.

Only what no run calls at all is here yet. Conditions that no seed has decided both ways are listed by the report until
somebody has explained each of them, or changed a profile so that it is reached. What is only rare is not explained.
"""

from tests.simulation.sometimes import Explained

_SHELL = "called by parts of the shells that the simulator replaces also in real safekeepers: unit tests of the module"
_STATUS = "shown in the status, and decides nothing: unit tests of the module"
_COMMAND = "asked for by a command that the simulator does not have: unit tests of the module"

_PROPOSER, _ACCEPTOR = "walproxy/proposer", "safekeeper/acceptor"
_STORAGE, _CONSENSUS = "safekeeper/storage", "safekeeper/consensus"

# By the reason, the beginnings of functions of each file; "" for all of it.
_FUNCTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    _SHELL: {
        f"{_STORAGE}/control_file.py": ("DataDirectoryLock", "_read_pid"),
        f"{_STORAGE}/data_folder.py": ("DataFolder.wal_bytes", "DataFolder.space"),
        f"{_STORAGE}/disk_space.py": ("DiskSpace.is_low", "DiskSpace.measured"),
        f"{_STORAGE}/event_file.py": ("EventFile.append", "_events"),
        f"{_STORAGE}/wal_reading.py": ("SegmentSource", "WalReader.at_hand"),
        f"{_STORAGE}/filesystem.py": (
            "RealFile",
            "_HeldDirectories",
            "_os_errors",
            "_refuse_closed_file",
            "storage_error",
        ),
        f"{_ACCEPTOR}/readable.py": ("",),
        f"{_ACCEPTOR}/pull_sources.py": ("",),
        f"{_PROPOSER}/proposer.py": ("Proposer.is_steady", "Proposer.hot_standby_feedback", "Proposer.knows_a_cluster"),
        f"{_PROPOSER}/standbys.py": ("Standbys.oldest_xmins",),
    },
    _STATUS: {
        f"{_PROPOSER}/view.py": ("",),
        f"{_PROPOSER}/standbys.py": ("Standbys.rows", "Standbys._rows", "Standbys.lacking"),
        f"{_PROPOSER}/archiving.py": ("Archiving.is_configured", "Archiving.problem"),
        f"{_PROPOSER}/liveness.py": ("Liveness.is_served", "Liveness._answering", "Liveness.taking_part"),
        f"{_CONSENSUS}/membership.py": ("Membership.members_needed",),
    },
    _COMMAND: {
        f"{_STORAGE}/inspection.py": ("",),
        f"{_PROPOSER}/leadership.py": ("Leadership.replace_lost",),
        f"{_PROPOSER}/member_change.py": ("replacement_of_lost",),
    },
}

# Real safekeepers have synthetic records, too.
_RECORDS = "decodes WAL, and the records of the simulator are synthetic: unit tests of the module"
_OF_RECORDS = ("case FindRecord", "case FindTimedRecord", "search is None", "search.lsn != lsn")

EXPLAINED = (
    *(
        Explained(path, function, "", why)
        for why, files in _FUNCTIONS.items()
        for path, functions in files.items()
        for function in functions
    ),
    *(Explained(f"{_STORAGE}/data_folder.py", "DataFolder.perform", what, _RECORDS) for what in _OF_RECORDS),
)
