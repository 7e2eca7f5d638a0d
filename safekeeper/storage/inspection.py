"""The inspection of a stopped safekeeper's data folder, for `safekeeper inspect`. Reads only."""

from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from safekeeper.base.errors import ConfigurationError, StorageFailed
from safekeeper.base.logs import one_line
from safekeeper.base.lsn import Lsn, format_lsn
from safekeeper.consensus.control_state import ControlState
from safekeeper.consensus.membership import Membership
from safekeeper.consensus.messages import AgentSettingsVersion
from safekeeper.storage.control_file import ControlFile
from safekeeper.storage.data_folder import WAL_FOLDER, KeptSettings, agents_file, missing_wal
from safekeeper.storage.filesystem import FileSystem
from safekeeper.storage.recovery import SegmentFacts, end_of_chain, inspect, recovery_error


class Inspection(NamedTuple):
    """The state of a data folder.

    Attributes:
        control: the control file, None if it does not exist or cannot be read.
        segments: every segment file, ascending.
        flush_lsn: the end of the valid WAL, 0 if there is none.
        lost: why this folder can no longer be a member (S8), or why the next start will refuse its WAL; empty if
            neither.
        notes: further findings, which the next start of the safekeeper corrects, unless it refuses the folder.
        settings: what the agents share, None if the folder has none of its cluster.
    """

    control: ControlState | None
    segments: list[SegmentFacts]
    flush_lsn: Lsn
    lost: str
    notes: list[str]
    settings: AgentSettingsVersion | None = None


def inspect_folder(fs: FileSystem, directory: Path) -> Inspection:
    """Inspect the data folder of a stopped safekeeper.

    Raises:
        ConfigurationError: the folder does not exist.
    """
    if not fs.exists(directory):
        raise ConfigurationError(f"{directory} does not exist: correct --data-dir")
    wal_directory = directory / WAL_FOLDER
    try:
        control = ControlFile(fs, directory).load(ControlState)
    except StorageFailed as error:
        return Inspection(None, [], 0, str(error), [])
    if control is None:
        lost = "the folder contains WAL but no control file" if fs.listdir(wal_directory) else ""
        return Inspection(None, [], 0, lost, ["the folder has not been used by a safekeeper"] if not lost else [])
    settings, damaged = _agents_settings(fs, directory, control)
    if not control.segment_size:
        return Inspection(control, [], 0, "", ["not bootstrapped yet: the log is empty", *damaged], settings)
    segments, problems = inspect(fs, wal_directory, control.segment_size, control.wal_begin_lsn)
    flush_lsn = end_of_chain(segments, control.segment_size)
    lost = ""
    if not control.set_aside and not control.restore_from:  # Otherwise the next start opens another log.
        lost = recovery_error(fs, wal_directory, control.segment_size, control.wal_begin_lsn)
    notes = [problem for problem in problems if problem != lost]
    notes += [f"{segment.name} {problem}" for segment in segments for problem in segment.problems]
    if control.is_log_pending:
        notes.append("a reset of the log is unfinished: the next start completes it")
    elif control.truncate_to is not None:
        notes.append(f"a truncation to {format_lsn(control.truncate_to)} is unfinished: the next start completes it")
    begin_lsn = segments[0].begin_lsn if segments else 0
    lost = lost or missing_wal(control, begin_lsn, flush_lsn, wal_directory) or ""
    return Inspection(control, segments, flush_lsn, lost, notes + damaged, settings)


def _agents_settings(
    fs: FileSystem, directory: Path, control: ControlState
) -> tuple[AgentSettingsVersion | None, list[str]]:
    """Return what the agents share, and notes."""
    try:
        kept = agents_file(fs, directory).load(KeptSettings)
    except StorageFailed as error:
        return None, [str(error)]
    return kept.settings if kept is not None and kept.cluster_id == control.cluster_id else None, []


def as_json(inspection: Inspection) -> dict[str, Any]:
    """Return the inspection as JSON values; LSNs as PostgreSQL prints them, also those of the control file."""
    control = inspection.control
    return {
        "control": _readable(msgspec.to_builtins(control)) if control is not None else None,
        "flush_lsn": format_lsn(inspection.flush_lsn),
        "segments": [
            {
                "name": segment.name,
                "tli": segment.tli,
                "begin_lsn": format_lsn(segment.begin_lsn),
                "valid_end_lsn": format_lsn(segment.valid_end_lsn) if segment.valid_end_lsn is not None else None,
                "problems": list(segment.problems),
            }
            for segment in inspection.segments
        ],
        "agents": _readable_settings(inspection.settings) if inspection.settings is not None else None,
        "lost": inspection.lost,
        "notes": inspection.notes,
    }


def _readable_settings(settings: AgentSettingsVersion) -> dict[str, Any]:
    content = settings.content.decode(errors="replace")
    return {"counter": settings.counter, "author": settings.author, "content": content}


def settings_rows(settings: AgentSettingsVersion | None) -> list[tuple[str, str]]:
    """Return what the agents share as (name, value) rows to print."""
    if settings is None:
        return []
    content = settings.content.decode(errors="replace")
    return [("settings of agents", one_line(f"version {settings.counter} of {settings.author[:8]}: {content}"))]


def control_rows(control: ControlState) -> list[tuple[str, str]]:
    """Return the control file as (name, value) rows to print."""
    membership = control.membership
    rows = [
        ("safekeeper", f"{control.safekeeper_id}, incarnation {control.incarnation}"),
        ("starts", str(control.starts)),
        ("cluster", control.cluster_id or "(none)"),
        ("system identifier", str(control.system_id)),
        ("membership", _described(membership) if membership is not None else "(none)"),
        ("promised", str(control.promised)),
    ]
    if control.forgotten_term:
        rows.append(("history", f"terms up to {control.forgotten_term} are no longer recorded"))
    rows += [
        (
            "history",
            f"term {entry.term} from {format_lsn(entry.start_lsn)}, TLI {entry.tli}"
            + (", gives up committed WAL" if entry.gives_up else "")
            + (f", sealed up to TLI {entry.floor}" if entry.floor else ""),
        )
        for entry in control.history
    ]
    rows += [
        (name, format_lsn(getattr(control, name)))
        for name in ("wal_begin_lsn", "commit_lsn", "truncate_lsn", "archived_lsn")
    ]
    if control.replaced is not None:
        kept = f"cluster {control.replaced.cluster_id}, its WAL is in {WAL_FOLDER}.{control.replaced_wal}"
        rows.append(("replaced by a rebootstrap", kept))
    rows += [("other folder", f"safekeeper {state.safekeeper_id}: {state}") for state in control.folders]
    return rows


def _described(membership: Membership) -> str:
    halves = [
        ", ".join(f"{m.id}={m.incarnation[:8]}{f' at {m.address}' if m.address else ''}" for m in half)
        for half in membership.halves()
    ]
    author = f" of term {membership.author}" if membership.author else ""
    return (
        f"generation {membership.generation}{author}: {' to '.join(halves)}; "
        f"quorums: {' to '.join(str(sizes) for sizes in membership.half_sizes())}"
    )


def _readable(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _readable(each, key) for key, each in value.items()}
    if isinstance(value, int) and (name.endswith("_lsn") or name == "truncate_to"):
        return format_lsn(value)
    if name == "history":
        names = ("term", "start_lsn", "tli", "gives_up", "floor", "given")
        return [_readable(dict(zip(names, entry, strict=True))) for entry in value]
    if name in ("quorum_sizes", "new_quorum_sizes"):
        return dict(zip(("commit", "elect"), value, strict=True))
    if name == "system_id":
        return str(value)
    return value
