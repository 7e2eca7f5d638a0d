"""Snapshots of Iceberg tables: which are old, and which files only these need."""

import itertools
import time
from collections.abc import Sequence
from typing import Final

from pyiceberg.table import Table as PyIcebergTable
from pyiceberg.table.snapshots import Operation, Snapshot

from safekeeper.archive.objects import ObjectInfo
from walproxy.pipeline.lake.location import LakeLocation

_LOOKED_INTO: Final = 20
"""Of this number of old snapshots, one is read to find files that are no longer needed."""

SNAPSHOTS_MAX: Final = 200
"""The most snapshots that `expire` keeps, however young: every commit writes the list of all of them again."""


def in_order(table: PyIcebergTable) -> list[Snapshot]:
    """Return the snapshots of a table in the order in which they were committed."""
    return sorted(table.snapshots(), key=lambda snapshot: snapshot.sequence_number or 0)


def old_snapshots(table: PyIcebergTable, keep_s: float) -> list[Snapshot]:
    """Return the snapshots that have not been the newest one for that time, and those beyond what can be kept."""
    snapshots = in_order(table)
    limit_ms = (time.time() - keep_s) * 1000
    young = next(
        (n for n, successor in enumerate(snapshots[1:]) if successor.timestamp_ms >= limit_ms), len(snapshots) - 1
    )
    named = {reference.snapshot_id for reference in table.refs().values()}
    old = snapshots[: max(young, len(snapshots) - SNAPSHOTS_MAX, 0)]
    return [snapshot for snapshot in old if snapshot.snapshot_id not in named]


def is_linear(table: PyIcebergTable) -> bool:
    """Return whether each snapshot follows the one before it: then what a later one does not need never comes back."""
    pairs = itertools.pairwise(in_order(table))
    return len(table.refs()) <= 1 and all(after.parent_snapshot_id == before.snapshot_id for before, after in pairs)


def to_look_into(old: Sequence[Snapshot], kept: Sequence[Snapshot]) -> list[Snapshot]:
    """Return those of the old snapshots whose manifests are read to find files that are no longer needed.

    Reading a list of 100 manifests takes 25 ms. Those before a change that removed files name all that it removed.
    A manifest that came and went between two of the others is found by `remove_orphans`.
    """
    changed = {
        after.parent_snapshot_id
        for after in (*old, *kept)
        if after.summary and after.summary.operation != Operation.APPEND
    }
    return [
        snapshot
        for index, snapshot in enumerate(old)
        if snapshot.snapshot_id in changed or index % _LOOKED_INTO == 0 or index == len(old) - 1
    ]


def unneeded(table: PyIcebergTable, location: LakeLocation, stored: Sequence[ObjectInfo]) -> list[ObjectInfo]:
    """Return those of the objects of a location that no snapshot of its table needs, nor the log of its metadata."""
    snapshots = in_order(table)
    needed = {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
    needed |= {snapshot.manifest_list for snapshot in snapshots}
    orphans = list(stored)
    # Mostly the newest snapshot needs them all, and the lists of the others need not be read.
    for some in (snapshots[-1:], snapshots):
        needed |= files_named(table, some)
        orphans = [info for info in orphans if f"{location}/{info.key}" not in needed]
        if not orphans:
            break
    return orphans


def files_named(table: PyIcebergTable, snapshots: Sequence[Snapshot]) -> set[str]:
    """Return the manifest lists, manifests and data files of snapshots."""
    found = set()
    for snapshot in snapshots:
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path not in found:
                entries = manifest.fetch_manifest_entry(table.io)
                found |= {manifest.manifest_path, *(entry.data_file.file_path for entry in entries)}
    return found
