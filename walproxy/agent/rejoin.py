"""Bring an old primary back as a standby of the new primary.

    1  look at both servers, and plan (rejoin_plan.py). Nothing is changed.
    2  before_overwrite: the caller keeps what it needs of the old primary; the WAL after the fork is copied aside.
    3  record the overwrite (rejoin_folder.py). From here on the data folder is not started.
    4  pg_rewind, which leaves WAL after the fork: that is removed (foreign_wal.py); or a base backup into a new folder
       beside, which then replaces the data folder by renames.
    5  the local configuration again, in place of the new primary's; standby.signal; the record is removed.

Every step can be repeated. An attempt that ended at any point, even by SIGKILL or a power cut, is continued by the next
`run`. pg_rewind is repeated only while pg_control is still the old primary's: pg_rewind writes it last, and a second
run on its own result would compare the new primary with itself. If pg_rewind fails, a base backup follows.

The caller starts the server afterwards, as a standby.
"""

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from safekeeper.base.errors import ConfigurationError, RemoteProtocolError
from safekeeper.base.lsn import Lsn, parse_segment_name
from safekeeper.base.timelines import parse_timeline_history, timeline_history_name
from walproxy.agent import agent_settings, processes
from walproxy.agent.control_data import ControlData
from walproxy.agent.errors import RejoinFailed
from walproxy.agent.foreign_wal import remove_foreign_wal
from walproxy.agent.managed_server import ManagedServer
from walproxy.agent.owner_commands import essence, run_as_owner
from walproxy.agent.rejoin_folder import Overwrite, OverwriteStep, RejoinFolder
from walproxy.agent.rejoin_plan import (
    ComparedWal,
    RejoinPlan,
    TimelineLineage,
    Way,
    check_source,
    find_fork,
    plan_rejoin,
)
from walproxy.agent.source import Source, SourceFacts
from walproxy.postgres.problems import ServerProblem

_LOCK_TIMEOUT_S = 30.0
# For pg_rewind, and for the base backup.
_PROGRAM_TIMEOUT_S = 24 * 3600.0
_REPLY_TIMEOUT_S = 30.0
_KEEP_ALL_WAL = "1048576GB"

_log = logging.getLogger(__name__)


class RejoinRun:
    """One old primary on its way to be a standby.

    Args:
        server: stopped. `run` refuses while a process of it exists.
        source_conninfo: of the new primary, for SQL and for pg_basebackup: a superuser. A password belongs into the
            password file of the server's user, because programs show their arguments.
        primary_conninfo, restore_command: of the standby, as `ManagedServer.make_standby`.
        before_overwrite: called before anything is changed, not if the server only follows. What it raises ends the
            attempt, and nothing was changed. It may be called again by the next attempt.
        keep_wal: a folder for the WAL segments after the fork; None keeps none.
    """

    def __init__(
        self,
        server: ManagedServer,
        source_conninfo: str,
        *,
        primary_conninfo: str,
        restore_command: str = "",
        before_overwrite: Callable[[RejoinPlan], None] | None = None,
        keep_wal: Path | None = None,
    ) -> None:
        self._server = server
        self._source = Source(source_conninfo, _REPLY_TIMEOUT_S)
        self._primary_conninfo = primary_conninfo
        self._restore_command = restore_command
        self._before_overwrite = before_overwrite
        self._keep_wal = keep_wal
        self._data_directory = server.data_directory
        self._folder = RejoinFolder(server.data_directory)
        self._lock = -1

    def run(self, *, by_base_backup: bool = False) -> Way:
        """Make the data folder a standby's and return how. The server is not started.

        Args:
            by_base_backup: an operator has ordered that. Nothing is planned, and `before_overwrite` is not called.

        Raises:
            RejoinFailed: not possible at present; a later attempt continues.
            ServerProblem: a local program failed, or the server runs.
            ConfigurationError: not possible until an operator changes something.
            OSError: a file cannot be read or written.
        """
        if self._data_directory.is_symlink():
            raise ConfigurationError(f"{self._data_directory} is a link: use the path of its target")
        with self._folder.locked(_LOCK_TIMEOUT_S) as self._lock:
            if self._data_directory.is_dir():
                if processes.processes_of(self._data_directory):
                    raise ServerProblem(f"processes of {self._data_directory} exist: stop the server before the rejoin")
                processes.remove_stale_pid_file(self._data_directory)
            begun = self._folder.read()
            if by_base_backup:
                begun = self._begin_base_backup(begun)
            elif begun is None:
                begun = self._begin()
            way = Way.FOLLOW
            if begun is not None:
                way = Way.REWIND if begun.step is OverwriteStep.REWIND else Way.BASE_BACKUP
                way = self._overwrite(begun) or way
            self._configure_standby(self._data_directory)
            self._folder.remove()
        return way

    def plan(self) -> RejoinPlan:
        """Return what `run` would do now with a stopped server. Nothing is changed. Raises as `run`."""
        return self._plan()[0]

    # Planning.

    def _plan(self) -> tuple[RejoinPlan, ControlData, SourceFacts]:
        facts, control = self._source.facts(), self._server.control_data()
        check_source(control, facts.system_id, facts.in_recovery)
        major = (self._data_directory / "PG_VERSION").read_text().strip()
        if major != str(facts.major):
            raise ConfigurationError(f"the new primary is PostgreSQL {facts.major}, the data folder of {major}")
        assert facts.history is not None  # only a standby has none
        local, compared = self._local_history(control), ComparedWal.UNREADABLE
        fork = find_fork(local, facts.history) if local is not None else None
        if local is not None and fork is not None and fork.lsn is not None:
            compared = self._source.compare_wal(
                self._data_directory / "pg_wal", local, facts.history, fork, control.segment_size
            )
        can_rewind = self._has_program("pg_rewind")
        return plan_rejoin(control, local, facts.history, compared, can_rewind), control, facts

    def _local_history(self, control: ControlData) -> TimelineLineage | None:
        tli = control.last_tli
        if tli == 1:
            return TimelineLineage(1, ())
        try:
            content = (self._data_directory / "pg_wal" / timeline_history_name(tli)).read_bytes()
            return TimelineLineage(tli, parse_timeline_history(tli, content))
        except (FileNotFoundError, RemoteProtocolError):
            return None

    def _has_program(self, name: str) -> bool:
        try:
            self._server.program(name)
        except ConfigurationError:
            return False
        return True

    def _begin(self) -> Overwrite | None:
        """Plan, and record the overwrite; return None if none is needed."""
        plan, control, facts = self._plan()
        if plan.way is Way.FOLLOW:
            return None
        if plan.way is Way.BASE_BACKUP:
            self._check_replaceable(facts)
        if self._before_overwrite is not None:
            self._before_overwrite(plan)
        if self._keep_wal is not None:
            self._keep_tail(self._keep_wal, plan, control)
        return self._record(OverwriteStep.REWIND if plan.way is Way.REWIND else OverwriteStep.BASE_BACKUP, control)

    def _begin_base_backup(self, begun: Overwrite | None) -> Overwrite:
        """Record a base backup, in place of what has begun."""
        if begun is not None:
            is_copied = begun.step in (OverwriteStep.BASE_BACKUP, OverwriteStep.SWAP)
            return begun if is_copied else self._next(begun, OverwriteStep.BASE_BACKUP)
        control, facts = self._server.control_data(), self._source.facts()
        check_source(control, facts.system_id, facts.in_recovery)
        self._check_replaceable(facts)
        return self._record(OverwriteStep.BASE_BACKUP, control)

    def _record(self, step: OverwriteStep, control: ControlData) -> Overwrite:
        """Keep the user's files, and record that the overwrite begins."""
        self._folder.keep_users_files()
        overwrite = Overwrite(step, control.system_id, control.tli)
        self._folder.write(overwrite)
        return overwrite

    def _check_replaceable(self, facts: SourceFacts) -> None:
        """Check that a base backup can replace the data folder.

        Raises:
            ConfigurationError: it cannot.
        """
        folder, manually = self._data_directory, "rebuild it with pg_basebackup"
        if facts.tablespaces or any((folder / "pg_tblspc").iterdir()):
            raise ConfigurationError(f"{folder} has tablespaces, which this base backup does not place: {manually}")
        if (folder / "pg_wal").is_symlink():
            raise ConfigurationError(f"{folder}/pg_wal is a link, which this base backup does not keep: {manually}")
        if os.path.ismount(folder):
            raise ConfigurationError(
                f"{folder} is a mount point, which this base backup cannot replace: {manually}, one level below it"
            )

    def _keep_tail(self, target: Path, plan: RejoinPlan, control: ControlData) -> None:
        """Copy the local segments that contain WAL after the fork, and all history files, into `target`, durably."""
        fork_lsn: Lsn = plan.fork.lsn or 0 if plan.fork is not None else 0
        fork_tli = plan.fork.tli if plan.fork is not None else 0
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in sorted((self._data_directory / "pg_wal").iterdir()):
            parsed = parse_segment_name(path.name, control.segment_size)
            is_tail = parsed is not None and parsed[0] >= fork_tli and parsed[1] + control.segment_size > fork_lsn
            if (is_tail or path.name.endswith(".history")) and not (target / path.name).exists():
                temporary = target / f"{path.name}.tmp"
                shutil.copy2(path, temporary)
                agent_settings.sync_file(temporary)
                temporary.replace(target / path.name)
        agent_settings.sync_folder(target)

    # Overwriting.

    def _overwrite(self, begun: Overwrite) -> Way | None:
        """Execute the steps from the recorded one on; return the way if it has changed meanwhile."""
        changed = None
        if begun.step is OverwriteStep.REWIND:
            if self._rewind(begun):
                begun = self._next(begun, OverwriteStep.CONFIGURE)
            else:
                self._check_replaceable(self._checked_source(begun))
                begun, changed = self._next(begun, OverwriteStep.BASE_BACKUP), Way.BASE_BACKUP
        if begun.step is OverwriteStep.BASE_BACKUP:
            self._check_replaceable(self._checked_source(begun))
            self._back_up()
            begun = self._next(begun, OverwriteStep.SWAP)
        if begun.step is OverwriteStep.SWAP:
            self._swap()
        else:
            self._remove_foreign_wal(begun)
            self._folder.restore_users_files(self._data_directory, self._server.owner())
        return changed

    def _remove_foreign_wal(self, begun: Overwrite) -> None:
        history = self._checked_source(begun).history
        assert history is not None  # only a standby has none
        segment_size = self._server.control_data().segment_size
        remove_foreign_wal(self._data_directory / "pg_wal", history, segment_size)

    def _checked_source(self, begun: Overwrite) -> SourceFacts:
        facts = self._source.facts()
        if facts.system_id != begun.system_id or facts.in_recovery:
            raise ConfigurationError("the new primary is another system, or a standby: correct its connection string")
        return facts

    def _next(self, begun: Overwrite, step: OverwriteStep) -> Overwrite:
        overwrite = Overwrite(step, begun.system_id, begun.tli)
        self._folder.write(overwrite)
        return overwrite

    def _rewind(self, begun: Overwrite) -> bool:
        """Run pg_rewind; return False if the data folder needs a base backup.

        Raises:
            RejoinFailed: the new primary cannot be reached: nothing is known about the data folder.
        """
        self._checked_source(begun)
        if self._server.control_data().tli != begun.tli:
            return False  # An attempt was interrupted after pg_rewind wrote pg_control, before that was recorded.
        self._source.checkpoint()
        for name in ("standby.signal", "recovery.signal"):
            # pg_rewind runs crash recovery in a single-user server, which refuses to be a standby.
            (self._data_directory / name).unlink(missing_ok=True)
        self._recover_from_crash()
        words = [str(self._server.program("pg_rewind")), "--target-pgdata", str(self._data_directory)]
        words += ["--source-server", self._source.conninfo]
        if self._restore_command:
            self._configure_standby_settings(self._data_directory)
            words += ["--restore-target-wal"]
        if self._server.config_file is not None:
            words += [f"--config-file={self._server.config_file}"]
        answer = self._run(words)
        if answer is None:
            return True
        self._checked_source(begun)
        _log.warning("pg_rewind failed, a base backup follows: %s", answer)
        return False

    def _recover_from_crash(self) -> None:
        """Replay the local WAL of a server that was not shut down, without the removal of any WAL.

        pg_rewind would do it, but the checkpoint at its end could remove WAL that pg_rewind reads next: that from the
        last checkpoint before the fork on.
        If it fails, pg_rewind fails too, and a base backup follows.
        """
        if self._server.control_data().is_clean:
            return
        words = [str(self._server.program("postgres")), "--single", "-D", str(self._data_directory)]
        words += ["-c", f"wal_keep_size={_KEEP_ALL_WAL}", "-c", "archive_mode=off"]
        if self._server.config_file is not None:
            words += ["-c", f"config_file={self._server.config_file}"]
        failure = self._run([*words, "template1"])
        if failure is not None:
            _log.warning("crash recovery before pg_rewind failed: %s", failure)

    def _back_up(self) -> None:
        """Take a base backup into the new folder, with all that a standby needs."""
        owner, status = self._server.owner(), self._data_directory.stat()
        new = self._folder.new
        if new.exists():
            shutil.rmtree(new)  # of an attempt that was interrupted
        new.mkdir(mode=0o700)
        if os.geteuid() == 0:
            os.chown(new, owner.uid, status.st_gid)
        words = [str(self._server.program("pg_basebackup")), "-D", str(new), "-d", self._source.conninfo]
        failure = self._run([*words, "-X", "stream", "-c", "fast", "--no-password"])
        if failure is not None:
            raise RejoinFailed(f"pg_basebackup failed: {failure}")
        new.chmod(status.st_mode & 0o7777)
        self._folder.restore_users_files(new, owner)
        self._configure_standby(new)

    def _swap(self) -> None:
        """Replace the data folder by the base backup. Each rename is a state from which this continues."""
        folder, new, old = self._data_directory, self._folder.new, self._folder.old
        if new.exists():
            if folder.exists():
                if old.exists():
                    shutil.rmtree(old)
                folder.rename(old)
                agent_settings.sync_folder(folder.parent)
            new.rename(folder)
            agent_settings.sync_folder(folder.parent)
        if old.exists():
            shutil.rmtree(old)

    def _configure_standby(self, folder: Path) -> None:
        self._configure_standby_settings(folder)
        self._server.touch_as_owner(folder / "standby.signal")

    def _configure_standby_settings(self, folder: Path) -> None:
        agent_settings.write(folder, self._server.standby_settings(self._primary_conninfo, self._restore_command))

    def _run(self, words: list[str]) -> str | None:
        """Run a program that changes the data folder; return its output if it failed.

        Raises:
            ServerProblem: it cannot be started, or has not ended in time.
        """
        answer = run_as_owner(self._server.owner(), words, timeout_s=_PROGRAM_TIMEOUT_S, pass_fds=(self._lock,))
        return None if answer.returncode == 0 else essence(answer.stdout)
