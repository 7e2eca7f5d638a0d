"""`walproxy restore`: a data folder from a base backup and its WAL."""

import contextlib
import logging
import os
import tempfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from safekeeper.base import logs, settings
from safekeeper.base.errors import ConfigurationError
from safekeeper.base.lsn import format_lsn, parse_lsn
from walproxy.cli.parameters import INSTANT, TARGET_TIMELINE
from walproxy.recovery.backup_manifest import BackupDamaged
from walproxy.recovery.base_backup import BaseBackup, write_entry
from walproxy.recovery.config import ENVIRONMENT_PREFIX, SourceConfig, load_sources, open_sources
from walproxy.recovery.fetcher import Fetcher
from walproxy.recovery.plan import LATEST, Plan, RecoveryTarget, format_time, make_plan
from walproxy.recovery.replay_survey import ReplaySurvey, preparations, refuse_live_tablespaces, survey_replay
from walproxy.recovery.restore import (
    check_target_folder,
    owner_of,
    refuse_credentials,
    warn_of_unreachable,
    write_data_folder,
)

_log = logging.getLogger(__name__)


@click.command()
@click.option(
    "--backup",
    required=True,
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="What pg_basebackup has written: a folder, a folder of tars, or base.tar (also .gz, .zst).",
)
@click.option("--target", required=True, type=click.Path(path_type=Path), metavar="DIR", help="The new data folder.")
@click.option("--target-time", type=INSTANT, help="Recover up to this time (ISO 8601).")
@click.option("--target-lsn", metavar="LSN", help="Recover up to this LSN.")
@click.option("--target-name", metavar="NAME", help="Recover up to this restore point.")
@click.option(
    "--target-timeline",
    default=LATEST,
    show_default=True,
    type=TARGET_TIMELINE,
    help="Which timeline to follow: latest, current (the backup's) or a number.",
)
@click.option(
    "--target-action",
    type=click.Choice(["promote", "pause", "shutdown"]),
    default="promote",
    show_default=True,
    help="Action of PostgreSQL at the target.",
)
@click.option(
    "--owner", metavar="USER", help="Owner of the files, if root runs it; by default the owner of DIR's parent folder."
)
@click.option(
    "--dry-run", is_flag=True, help="Verify the backup and print the end of the recoverable WAL, but write nothing."
)
@click.option(
    "--ignore-manifest",
    is_flag=True,
    help="Restore the backup without comparing it with its backup_manifest.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@settings.click_options(SourceConfig, ENVIRONMENT_PREFIX)
def restore(
    config: Path | None,
    backup: Path,
    target: Path,
    target_time: datetime | None,
    target_lsn: str | None,
    target_name: str | None,
    target_timeline: str,
    target_action: str,
    owner: str | None,
    dry_run: bool,
    ignore_manifest: bool,
    as_json: bool,
    **command_line: Any,
) -> None:
    """Restore a base backup into a data folder that recovers from the archive and safekeepers.

    The target is the end of the WAL, a time, an LSN or a restore point. The command first checks that all WAL up to it
    is available, and writes nothing otherwise. Every file is compared with the backup_manifest while it is copied; if
    one differs, all copied files are removed. Recovery begins when the server is started.

    \b
    Examples:
      walproxy restore --backup base/ --target /var/lib/postgresql/17/main --archive s3://bucket/main
      walproxy restore --backup base.tar.gz --target data --archive /mnt/archive \\
          --data-dir /var/lib/safekeeper --uncommitted
      walproxy restore --backup base/ --target data --archive s3://bucket/main --target-time 2026-11-21T14:16:05Z
    """
    if sum(each is not None for each in (target_time, target_lsn, target_name)) > 1:
        raise click.UsageError("--target-time, --target-lsn and --target-name cannot be combined")
    logs.configure(lambda: "walproxy restore", "info")
    loaded = load_sources(SourceConfig, command_line, os.environ, config)
    lsn = parse_lsn(target_lsn) if target_lsn is not None else None
    goal = RecoveryTarget(target_time, lsn, target_name, target_timeline, target_action)
    target = target.absolute()
    check_target_folder(target)
    if not dry_run:
        refuse_credentials(loaded)
    new_owner = None if dry_run else owner_of(target, owner)
    try:
        source = BaseBackup(backup, ignore_manifest=ignore_manifest)
        if source.manifest is None:
            _log.warning("%s", _unverified(source, ignore_manifest))
        fetcher = Fetcher(open_sources(loaded), system_id=source.facts.system_id, timeout_s=loaded.timeout)
        own_wal = {entry.path.name: entry.size for entry in source.wal_entries()}
        with _temporary_files():
            plan = make_plan(fetcher, source.facts, own_wal, goal)
            survey = _survey(fetcher, source, plan, goal)
        refuse_live_tablespaces(survey.tablespaces, source.facts)
        with _progress() as bar:
            task = bar.add_task(f"{'verifying' if dry_run else 'copying'} {backup.name}", total=source.size())
            if not dry_run:
                write_data_folder(source, target, loaded, plan, goal, new_owner, lambda size: bar.advance(task, size))
            elif source.manifest is not None:
                source.verify(lambda size: bar.advance(task, size))
    except BackupDamaged as damage:
        raise ConfigurationError(
            f"{damage}; {'nothing was written' if dry_run else 'the copied files were removed'}: use another backup, "
            "or restore this one with --ignore-manifest"
        ) from damage
    unreachable = warn_of_unreachable(new_owner, loaded) if new_owner is not None else []
    for warning in (*preparations(survey, source.facts, target), *unreachable):
        _log.warning("%s", warning)
    if as_json:
        click.echo(msgspec.json.encode(_as_json(source, plan, goal, target, dry_run)).decode())
    else:
        for line in _result_lines(source, plan, goal, target, dry_run):
            click.echo(line)


@contextlib.contextmanager
def _temporary_files() -> Iterator[None]:
    """Turn an error of temporary files, which get a copy of the WAL that is read, into one line."""
    try:
        yield
    except OSError as error:
        raise ConfigurationError(
            f"could not write WAL to the folder of temporary files: {error.strerror or error}; set TMPDIR to a folder "
            "with more space; nothing was written"
        ) from error


def _survey(fetcher: Fetcher, source: BaseBackup, plan: Plan, goal: RecoveryTarget) -> ReplaySurvey:
    """Read the WAL of the recovery; the backup's own WAL from a temporary copy of it, if no source has it."""
    facts = source.facts
    with _progress() as bar, tempfile.TemporaryDirectory(prefix="walproxy-own-wal-") as folder:
        task = bar.add_task("reading WAL", total=plan.reach_lsn - facts.start_lsn)
        for entry in source.wal_entries() if plan.needs_own_wal else ():
            write_entry(entry, Path(folder), lambda size: None)
        own_wal = Path(folder, "pg_wal") if plan.needs_own_wal else None
        return survey_replay(fetcher, plan, facts, goal, own_wal, lambda size: bar.advance(task, size))


def _progress() -> Progress:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _unverified(source: BaseBackup, ignore_manifest: bool) -> str:
    if ignore_manifest:
        return f"{source.path} is not compared with its backup_manifest (--ignore-manifest): damage is not detected"
    return (
        f"{source.path} has no backup_manifest: damaged and missing files are not detected; take backups without "
        "--no-manifest"
    )


def _goal_text(goal: RecoveryTarget) -> str:
    if goal.lsn is not None:
        return f"LSN {format_lsn(goal.lsn)}"
    if goal.time is not None:
        return f"time {format_time(goal.time)}"
    return f"restore point {goal.name}" if goal.name is not None else "the end of the WAL"


def _result_lines(source: BaseBackup, plan: Plan, goal: RecoveryTarget, target: Path, dry_run: bool) -> list[str]:
    facts = source.facts
    commit = f", last commit {format_time(plan.last_commit.time)}" if plan.last_commit is not None else ""
    verified = f"{len(source.manifest.files)} files, as in backup_manifest" if source.manifest is not None else "no"
    lines = [
        f"backup: PostgreSQL {facts.major}, system {facts.system_id}, begun {facts.started_at or 'at an unknown time'} "
        f"at {format_lsn(facts.start_lsn)} on timeline {facts.start_tli}",
        f"verified: {verified}",
        f"WAL: without a hole up to {format_lsn(plan.reach_lsn)} on timeline {plan.path.tli}{commit}",
        f"recovery to: {_goal_text(goal)}" + ("" if goal.is_end else f", then {goal.action}"),
    ]
    if dry_run:
        return [*lines, "nothing was written (--dry-run)"]
    return [
        *lines,
        f"{target} is ready. Next steps:",
        f"  pg_ctl -D {target} start, as the user that owns it; it recovers, and logs its progress",
        "  commits wait as before for the standbys of synchronous_standby_names: they return when a walproxy serves "
        "this server (walproxy rebootstrap begins a new cluster), or that setting is emptied",
    ]


def _as_json(source: BaseBackup, plan: Plan, goal: RecoveryTarget, target: Path, dry_run: bool) -> dict[str, Any]:
    facts = source.facts
    return {
        "target": str(target),
        "written": not dry_run,
        "system_id": str(facts.system_id),
        "major": facts.major,
        "backup_start_lsn": format_lsn(facts.start_lsn),
        "backup_end_lsn": format_lsn(facts.end_lsn) if facts.end_lsn else None,
        "backup_tli": facts.start_tli,
        "backup_verified": source.manifest is not None,
        "tli": plan.path.tli,
        "reach_lsn": format_lsn(plan.reach_lsn),
        "last_commit": format_time(plan.last_commit.time) if plan.last_commit is not None else None,
        "recovery_to": _goal_text(goal),
    }
