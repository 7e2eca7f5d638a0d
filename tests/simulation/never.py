"""Points of `sometimes` that no run of the simulator reaches, each with the reason.

A seed that reaches one of them has refuted its reason: the report then fails. What is only rare is not here: the report
lists it until a seed reaches it. Whole functions are given by the beginnings of their names, conditions by the exact
name of their function and the beginning of their text.
"""

from tests.simulation.sometimes import Explained

_PROPOSER, _ACCEPTOR = "walproxy/proposer", "safekeeper/acceptor"
_STORAGE, _CONSENSUS = "safekeeper/storage", "safekeeper/consensus"

# Reasons for whole functions.
_SHELL = "called by parts of the shells that the simulator replaces also in real safekeepers: unit tests of the module"
_TESTS = "read by unit tests only"
_COMMAND = "asked for by a command that the simulator does not have: unit tests of the module"

# By the reason, the beginnings of functions of each file; "" for all of it.
_FUNCTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    _SHELL: {
        f"{_STORAGE}/control_file.py": ("DataDirectoryLock", "_read_pid"),
        f"{_STORAGE}/wal_reading.py": ("SegmentSource",),
        f"{_STORAGE}/filesystem.py": (
            "RealFile",
            "_HeldDirectories",
            "_os_errors",
            "_refuse_closed_file",
        ),
    },
    _TESTS: {f"{_STORAGE}/wal_log.py": ("WalStorage.tli",)},
    _COMMAND: {
        f"{_STORAGE}/inspection.py": (
            "as_json",
            "_readable",
            "settings_rows",
            "control_rows",
            "_described",
        ),
        f"{_CONSENSUS}/messages.py": ("AgentSettingsVersion.key",),
    },
}

# Reasons for conditions. First what nothing can reach, by the code itself.
_CHECKED = "what `check` refuses with InvariantViolation: a run that gets there has failed"
_LOCAL = "an error of the caller, refused with LocalProtocolError: a run that gets there has failed"
_BEFORE = "decided by a condition before it, in this function or in each of its callers"
_FOLLOWED = "a leader that is followed has a connection, and the folder a membership, from the adoption on"
_BEGUN = "a cluster's id, its membership and its segment size are written at once, before any promise, history or WAL"
# What refuses others' faults.
_PEER = "refuses a message that no peer of the simulator sends: unit tests of the module"
_WRITTEN = "refuses what no operator of the simulator writes: unit tests of the module"
_SIZES = "takes more than a run has: all 64-bit terms, a MiB of history files, 32 members"
_DAMAGE = "files that were damaged, added or taken away behind the safekeeper's back: unit tests of the module"
_LOST = "durable WAL is lost, which the virtual disks never do: in a real shell the run then fails (NoHole)"
_SECTOR = "a slot is in one sector, which the virtual disks write as a whole: unit tests of the module"
_REAL_FILES = "the virtual file system has no such error: unit tests of the module, with injected ones"
# What the simulator does not have.
_ONE_SIZE = "all servers of the simulator have one segment size"
_ONE_ADDRESS = "a safekeeper of the simulator has one address, the same in the membership and in each list"
# Real safekeepers have synthetic records, too.
_RECORDS = "decodes WAL, and the records of the simulator are synthetic: unit tests of the module"

# By the reason, the conditions of each function: how their texts begin.
_CONDITIONS: dict[str, dict[str, dict[str, tuple[str, ...]]]] = {
    _CHECKED: {
        f"{_PROPOSER}/proposer.py": {
            "Proposer.wal_received": ("end_lsn < self.leadership.write_lsn is true",),
        },
    },
    _LOCAL: {
        f"{_STORAGE}/data_folder.py": {"DataFolder.perform": ("case _",)},
    },
    _BEFORE: {
        f"{_ACCEPTOR}/acceptor.py": {
            "Acceptor._end_pull": ("pull is not None is false",),
        },
        f"{_ACCEPTOR}/acceptor_log.py": {
            "AcceptorLog._adopt": ("cut is not None (3) is false", "cut is not None (4) is false"),
            # A timed record that is complete and readable begins at or above the position: the first record that ends
            # above it is that one, or ends before.
            "AcceptorLog._before_open_record": ("0 < record_end_lsn <= self.readable_lsn is false",),
        },
        f"{_CONSENSUS}/term_history.py": {
            # The term of an elected leader is above all that were forgotten, here and there.
            "divergence_at_forgotten_term": ("leaves_with is not None is false",),
        },
        f"{_STORAGE}/data_folder.py": {
            # The WAL was set aside before, or was not opened at the start.
            "DataFolder._restore_wal": ("self.storage is not None is true",),
        },
        f"{_PROPOSER}/campaign.py": {"Campaign.message": ("isinstance(message, TailResponse) is false",)},
        f"{_PROPOSER}/election.py": {
            # With a donor without a history nothing is compared: its term is led before it sends a tail.
            "highest_possible_commit": ("donor_term is false", "vote.history is false"),
        },
        f"{_PROPOSER}/member_change.py": {
            "next_membership": ("is_settled(membership, wanted) is true",),
            # A learner with the data folder of a member is its voter.
            "replacement_of_lost": ("lost.incarnation != incarnation is false",),
        },
        f"{_PROPOSER}/proposer.py": {
            # A safekeeper that is refused has no greeting, and one with a later membership has ended the attempt.
            # Each way to win a term with a primary opens the COPY, or requires an open one.
            "Proposer._lead": (
                "peer.refused is true",
                "self.leadership is leadership is false",
                "stream.is_open is false",
            ),
            "Proposer._check_start_is_there": ("self.leadership is not None is false",),
            # An attempt to win a tail term is decided in the event in which it has its votes.
            "Proposer._refuse_primary": ("campaign.primary is not None is false",),
            "Proposer._find_steady": ("peers[i].connected is false",),
        },
        f"{_PROPOSER}/roster.py": {
            # A bootstrap is planned by the greetings of all, so all are connected.
            "Roster.awaits_greetings": ("peer.connected is false",),
            "greetings_of": ("peer.refused is true",),
            "voters_of": ("peer.refused is true",),
            "has_unknown_tail": ("(greeting := peers[i].greeting) is not None is false",),
        },
        f"{_PROPOSER}/verification.py": {
            # A COPY with bytes to compare begins with the donor's checksums.
            "Verification._judge": (
                "self._our_page_crcs is not None is false",
                "self._their_page_crcs is not None is false",
            ),
            # Where nothing is compared the term is led at once; a segment that is removed later concerns the leader.
            "Verification.on_segment_removed": ("begin_lsn < start_lsn is false", "self._segment_is_gone is true"),
        },
        f"{_PROPOSER}/refusals.py": {"Refusals.reason": ("past is None is true", "cluster is None is true")},
        f"{_PROPOSER}/replication.py": {"Replication.__init__": ("addresses is not None is false",)},
    },
    _FOLLOWED: {
        f"{_ACCEPTOR}/acceptor.py": {
            "Acceptor._append": ("membership is None is true",),
            "Acceptor._reconfigure": ("own is not None is false",),
            "Acceptor._learn_folders": ("membership is not None is false",),
            "Acceptor.accepts": ("membership is not None is false",),
            "Acceptor._refuse_generation": ("membership is not None is false",),
            "Acceptor._send_answer": ("self.leader_connection is not None is false",),
            "Acceptor._end_pull": ("self.leader_connection is not None is false",),
            "Acceptor._elected": ("self.control.wal_begin_lsn is false",),
        },
    },
    _BEGUN: {
        f"{_ACCEPTOR}/acceptor.py": {
            "Acceptor._bootstrap": (
                "control.promised.term is true",
                "control.history is true",
                "control.cluster_id[:8] is false",
            ),
            "_told_of": ("replaced.membership is None is true",),
        },
        f"{_ACCEPTOR}/acceptor_log.py": {"AcceptorLog._divergence_from": ("own is false",)},
        f"{_CONSENSUS}/membership.py": {"Membership.is_same": ("other is not None is false",)},
        f"{_CONSENSUS}/messages.py": {
            "AcceptorGreeting.is_empty": ("self.last_term == 0 is false", "self.flush_lsn == 0 is false"),
        },
        f"{_STORAGE}/data_folder.py": {
            "DataFolder._inspect_set_aside": ("control.segment_size is false",),
            "DataFolder._restore_wal": ("self.control.segment_size is false",),
        },
        f"{_PROPOSER}/roster.py": {"later_cluster_reason": ("membership is None is true",)},
    },
    _PEER: {
        f"{_CONSENSUS}/membership.py": {"check_quorum_sizes": ("problem is true",)},
        f"{_CONSENSUS}/term_history.py": {
            "check_history": (
                "entry.floor < 0 is true",
                "entry.start_lsn < previous.start_lsn is true",
            ),
            "divergence": (
                "own[:own_index + 1][-(other_index + 1):] != other[:other_index + 1][-(own_index + 1):] is true",
            ),
        },
    },
    _WRITTEN: {
        f"{_STORAGE}/data_folder.py": {
            "DataFolder.open": (
                "fs.exists(directory.parent) is false",
                "fs.exists(directory / POSTGRESQL_MARK) is true",
            ),
        },
        f"{_PROPOSER}/apply_rule.py": {
            "parse_apply_rule": ("isinstance(written, str) is false",),
            "_is_number": ("token[1].isascii() is false",),
        },
    },
    _SIZES: {
        f"{_STORAGE}/event_file.py": {"EventFile.append": ("size > EVENT_FILE_BYTES_MAX is true",)},
        f"{_CONSENSUS}/membership.py": {
            "quorum_problem": ("count > MEMBERS_MAX is true", "sizes != QuorumSizes() is"),
        },
        f"{_PROPOSER}/campaign.py": {"Campaign._ask_for_votes": ("highest_term >= TERM_MAX is true",)},
        f"{_PROPOSER}/election.py": {
            "check_vote": ("size > VOTE_BYTES_MAX is true",),
            "collect_tli_histories": ("room < 0 is true", "kept is"),
        },
    },
    _DAMAGE: {
        f"{_STORAGE}/data_folder.py": {
            "DataFolder._load": ("except RemoteProtocolError",),
        },
        f"{_STORAGE}/control_file.py": {
            "StateFile.load": ("except msgspec.DecodeError",),
            "StateFile._checked_payload": ("length != len(content) - _HEADER.size - _CRC.size is true",),
        },
        f"{_STORAGE}/segment_file.py": {
            "open_segment": ("slots is false",),
        },
    },
    _LOST: {
        f"{_ACCEPTOR}/acceptor_log.py": {"AcceptorLog._refusal_of_undo": ("lost is true",)},
    },
    _SECTOR: {
        f"{_STORAGE}/segment_file.py": {
            "Slot.decode": ("len(data) < _SLOT.size + _CRC.size is true",),
            "open_segment": ("slot is not None is false",),
        },
    },
    _REAL_FILES: {
        f"{_STORAGE}/filesystem.py": {"storage_error": ("changes_nothing is true", "error.strerror is false")},
    },
    _ONE_SIZE: {
        f"{_STORAGE}/data_folder.py": {
            "DataFolder._storage_for_reset": (
                "self._segment_size == self.control.segment_size is false",
                "self.storage is not None (2) is true",
            ),
        },
    },
    _ONE_ADDRESS: {
        f"{_PROPOSER}/roster.py": {
            "Roster.dial": ("member.address in peer.addresses is false", "peer is None is false"),
            "Roster.redirect": (
                "len(peer.addresses) < 2 is false",
                "now - peer.redirected_at < ",
                "greeting ",
                "greeting.",
            ),
        },
        f"{_PROPOSER}/proposer.py": {
            "Proposer.tick": ("any((len(peer.addresses) > 1 for peer in self.peers.values())) is true",),
            "Proposer._on_greeting": ("self.peers[safekeeper_id].greeting is None is true",),
        },
    },
    _RECORDS: {
        f"{_STORAGE}/data_folder.py": {
            "DataFolder.perform": (
                "case FindRecord",
                "case FindTimedRecord",
                "search is None",
                "search.lsn != lsn",
            ),
        },
    },
}

EXPLAINED = (
    *(
        Explained(path, function, "", why)
        for why, files in _FUNCTIONS.items()
        for path, functions in files.items()
        for function in functions
    ),
    *(
        Explained(path, function, what, why)
        for why, files in _CONDITIONS.items()
        for path, functions in files.items()
        for function, texts in functions.items()
        for what in texts
    ),
)
