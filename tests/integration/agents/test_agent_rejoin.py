"""An old primary becomes a standby of the new one: followed, rewound, or replaced, also after a crash in the middle."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.lsn import segment_name
from tests.integration.agents.agent_fixtures import AgentsServer, agents_servers
from tests.integration.conftest import EVERY, MOSTLY_NEWEST, NEWEST
from tests.waiting import wait_for
from walproxy.agent.errors import RejoinFailed
from walproxy.agent.rejoin import RejoinRun
from walproxy.agent.rejoin_folder import Overwrite, OverwriteStep, RejoinFolder
from walproxy.agent.rejoin_plan import RejoinPlan, Way
from walproxy.agent.server_look import ServerState
from walproxy.failover.discarded import RowCounts
from walproxy.failover.discarded_report import DiscardedReport, discarded_report
from walproxy.failover.relation_names import with_names
from walproxy.postgres.binaries import ServerBinaries
from walproxy.postgres.problems import ServerProblem

NewServer = Callable[[str], AgentsServer]
Pair = tuple[AgentsServer, AgentsServer]


@pytest.fixture
def new_server(servers: dict[int, ServerBinaries], major: int, folder: Path) -> Iterator[NewServer]:
    with agents_servers(servers[major], folder) as make:
        yield make


@pytest.fixture
def pair(new_server: NewServer, template: Path) -> Pair:
    """A primary with one row, and a standby that has replayed it."""
    primary = new_server("one").fill(template).start()
    standby = new_server("two").start_standby_of(primary)
    primary.execute("CREATE TABLE t (a int)")
    primary.execute("INSERT INTO t VALUES (1)")
    end = primary.managed.look().written_lsn
    wait_for(lambda: standby.managed.look().replayed_lsn >= end, "the standby has replayed it")
    return primary, standby


def diverge(old: AgentsServer, new: AgentsServer) -> None:
    """Promote the standby, let both servers write other rows, and kill the old primary."""
    old.execute("SELECT pg_switch_wal()")
    # The checkpoint after a promotion, which is late on a busy machine, would otherwise remove the WAL before the fork.
    new.execute("ALTER SYSTEM SET wal_keep_size = '1GB'")
    new.execute("SELECT pg_reload_conf()")
    new.promote()
    new.execute("INSERT INTO t VALUES (2)")
    old.execute("INSERT INTO t SELECT 0 FROM generate_series(1, 1000)")
    old.managed.kill()


def verify_standby(standby: AgentsServer, primary: AgentsServer) -> None:
    """Start it; it has the primary's rows, also new ones, and its own port and settings."""
    standby.managed.start(as_standby=True)
    primary.execute("INSERT INTO t VALUES (3)")
    rows = primary.execute("SELECT a, count(*) FROM t GROUP BY a ORDER BY a")
    wait_for(
        lambda: standby.execute("SELECT a, count(*) FROM t GROUP BY a ORDER BY a") == rows, "the standby has all rows"
    )
    look = standby.managed.look()
    assert (look.state, look.tli) == (ServerState.STANDBY, primary.managed.look().tli)
    assert not RejoinFolder(standby.data_directory).path.exists()
    beside = sorted(path.name for path in standby.data_directory.parent.iterdir())
    assert beside == ["data", "log"]


@MOSTLY_NEWEST
def test_rewound_server_does_not_replay_its_own_wal_beyond_the_fork(pair: Pair, folder: Path) -> None:
    old, new = pair
    diverge(old, new)
    # The segment with the fork, which the new primary lacks while pg_rewind runs, as one that is a base backup does.
    [(name,)] = new.execute("SELECT pg_walfile_name(pg_switch_wal() - 1)")
    new.execute("INSERT INTO t VALUES (2)")
    segment, aside = new.data_directory / "pg_wal" / name, folder / name

    class Rejoin(RejoinRun):
        def _rewind(self, begun: Overwrite) -> bool:
            segment.rename(aside)
            return super()._rewind(begun)

    assert Rejoin(old.managed, new.conninfo, primary_conninfo=new.conninfo).run() is Way.REWIND
    aside.rename(segment)
    verify_standby(old, new)


@EVERY
def test_diverged_old_primary_is_rewound(pair: Pair, folder: Path) -> None:
    old, new = pair
    old.execute("ALTER SYSTEM SET work_mem = '5MB'")
    old.managed.make_read_only()
    old.managed.make_writable()
    diverge(old, new)
    plans: list[RejoinPlan] = []
    reports: list[DiscardedReport] = []

    def before_overwrite(plan: RejoinPlan) -> None:
        plans.append(plan)
        assert plan.fork is not None and plan.fork.lsn is not None
        report = discarded_report(old.data_directory / "pg_wal", plan.fork.lsn, plan.fork.tli)
        reports.append(with_names(report, new.conninfo))

    kept = folder / "tail"
    (old.data_directory / "own.key").write_text("key")
    command = f"cp {folder}/archive/%f %p"
    rejoin = old.rejoin(new, before_overwrite=before_overwrite, keep_wal=kept, restore_command=command)
    assert rejoin.run() is Way.REWIND
    (plan,) = plans
    assert plan.fork is not None and plan.fork.tli == 1 and plan.fork.lsn is not None
    # The transactions of the tail are reported before it goes, and found in the WAL that is kept.
    (report,) = reports
    (lost,) = report.tail.transactions
    assert {report.names.get(relation): rows for relation, rows in lost.rows.items()} == {
        "postgres.public.t": RowCounts(inserted=1000)
    }
    assert discarded_report(kept, plan.fork.lsn).tail.transactions[0].rows == lost.rows
    verify_standby(old, new)
    assert old.execute("SHOW work_mem") == [("5MB",)]
    assert old.execute("SHOW restore_command") == [(command,)]
    assert (old.data_directory / "own.key").read_text() == "key"
    assert (old.data_directory / "own.key").stat().st_uid == old.data_directory.stat().st_uid


@MOSTLY_NEWEST
def test_cleanly_stopped_old_primary_only_follows(pair: Pair) -> None:
    old, new = pair
    old.managed.stop()
    new.promote()

    def refuse(plan: RejoinPlan) -> None:
        raise AssertionError(plan)

    assert old.rejoin(new, before_overwrite=refuse).run() is Way.FOLLOW
    verify_standby(old, new)
    old.managed.stop()
    assert old.rejoin(new, before_overwrite=refuse).run() is Way.FOLLOW
    verify_standby(old, new)


@MOSTLY_NEWEST
def test_old_primary_without_the_wal_at_the_fork_is_replaced(pair: Pair) -> None:
    old, new = pair
    diverge(old, new)
    mode = old.data_directory.stat().st_mode
    rejoin = old.rejoin(new)
    fork = rejoin.plan().fork
    assert fork is not None and fork.lsn is not None
    (old.data_directory / "pg_wal" / segment_name(fork.tli, fork.lsn - 1, 16 << 20)).unlink()
    assert (rejoin.plan().way, "cannot be compared" in rejoin.plan().reason) == (Way.BASE_BACKUP, True)
    assert rejoin.run() is Way.BASE_BACKUP
    assert old.data_directory.stat().st_mode == mode
    verify_standby(old, new)


@NEWEST
def test_rewind_that_fails_is_followed_by_a_base_backup(pair: Pair) -> None:
    old, new = pair
    diverge(old, new)
    (old.data_directory / "base" / "1" / "PG_VERSION").unlink()
    shutil.rmtree(old.data_directory / "pg_xact")
    assert old.rejoin(new).run() is Way.BASE_BACKUP
    verify_standby(old, new)


@EVERY
def test_same_number_of_two_histories_is_not_rewound(pair: Pair, new_server: NewServer) -> None:
    one, two = pair
    three = new_server("three").start_standby_of(one)
    end = one.managed.look().written_lsn
    wait_for(lambda: three.managed.look().replayed_lsn >= end, "the standby has replayed it")
    one.managed.kill()
    # Both take timeline 2, at the same position.
    two.promote()
    three.promote()
    two.execute("INSERT INTO t VALUES (2)")
    three.execute("INSERT INTO t SELECT 0 FROM generate_series(1, 1000)")
    three.managed.stop()
    two.execute("CHECKPOINT")
    words = [str(three.binaries.bin_directory / "pg_rewind"), "--target-pgdata", str(three.data_directory), "--dry-run"]
    user = three.user.uid if three.user is not None else None
    pg_rewind = subprocess.run([*words, "--source-server", two.conninfo], capture_output=True, text=True, user=user)
    assert "no rewind required" in pg_rewind.stderr
    rejoin = three.rejoin(two)
    assert "both servers took timeline 2" in rejoin.plan().reason

    # Nor after the right one has gone on to timeline 3: the numbers are an ancestor and its descendant.
    two.managed.stop()
    two.managed.make_standby("host=127.0.0.1 port=1")
    two.managed.start(as_standby=True)
    two.promote()
    assert two.managed.look().tli == 3
    assert "differs on the two servers" in rejoin.plan().reason
    assert rejoin.run() is Way.BASE_BACKUP
    verify_standby(three, two)


@NEWEST
def test_attempt_that_ended_at_any_step_is_continued(pair: Pair) -> None:
    old, new = pair
    # As its slot does for a primary of the quorum: a restart retains the WAL before the fork.
    old.execute("ALTER SYSTEM SET wal_keep_size = '1GB'")
    diverge(old, new)

    def fail(plan: RejoinPlan) -> None:
        raise RuntimeError("report")

    with pytest.raises(RuntimeError, match="report"):
        old.rejoin(new, before_overwrite=fail).run()
    assert not old.managed.look().rejoin_begun
    # Nothing was changed: it is still the old primary.
    old.start()
    assert old.execute("SELECT count(*) FROM t WHERE a = 0") == [(1000,)]
    old.managed.kill()
    # While pg_rewind runs, the record exists.
    rejoin = old.rejoin(new)
    new_source = rejoin._source.conninfo
    rejoin._source.conninfo = "host=127.0.0.1 port=1 user=postgres"
    with pytest.raises(RejoinFailed):
        rejoin.run()
    assert not old.managed.look().rejoin_begun
    rejoin._source.conninfo = new_source
    run, rejoin._run = rejoin._run, lambda words: (_ for _ in ()).throw(ServerProblem("killed"))  # type: ignore[method-assign]
    with pytest.raises(ServerProblem, match="killed"):
        rejoin.run()
    assert old.managed.look().rejoin_begun
    with pytest.raises(ServerProblem, match="repeat the rejoin"):
        old.managed.start(as_standby=False)

    # pg_rewind is complete, and that was not recorded: it is not run on its own result.
    ran: list[str] = []

    def run_and_die(words: list[str]) -> str | None:
        assert run(words) is None
        ran.append(Path(words[0]).name)
        if ran[-1] == "postgres":
            return None
        raise ServerProblem("killed")

    rejoin._run = run_and_die  # type: ignore[method-assign]
    with pytest.raises(ServerProblem, match="killed"):
        rejoin.run()
    with pytest.raises(ServerProblem, match="repeat the rejoin"):
        old.managed.start(as_standby=True)
    # A base backup is complete, and that was not recorded.
    with pytest.raises(ServerProblem, match="killed"):
        rejoin.run()
    assert ran == ["postgres", "pg_rewind", "pg_basebackup"]
    rejoin._run = run  # type: ignore[method-assign]
    # The data folder is renamed, and the new one is not in its place.
    paths = RejoinFolder(old.data_directory)
    paths.write(Overwrite(OverwriteStep.BASE_BACKUP, new.managed.look().system_id, 1))
    rejoin._back_up()
    paths.write(Overwrite(OverwriteStep.SWAP, new.managed.look().system_id, 1))
    old.data_directory.rename(paths.old)
    assert old.managed.look().state is ServerState.MISSING
    assert rejoin.run() is Way.BASE_BACKUP
    verify_standby(old, new)


@NEWEST
def test_killed_agent_leaves_no_program_that_overwrites(pair: Pair, folder: Path) -> None:
    old, new = pair
    diverge(old, new)
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from walproxy.agent.managed_server import ManagedServer\n"
        "from walproxy.agent.rejoin import RejoinRun\n"
        "data, programs, conninfo, source = sys.argv[1:]\n"
        "server = ManagedServer(Path(data), Path(programs), conninfo, log_path=Path(data + '.log'))\n"
        "RejoinRun(server, source, primary_conninfo=source).run()\n"
    )
    # A pg_rewind that does not end.
    programs = folder / "programs"
    programs.mkdir()
    for name in ("postgres", "pg_controldata"):
        (programs / name).symlink_to(old.binaries.bin_directory / name)
    (programs / "pg_rewind").write_text("#!/bin/sh\nexec sleep 300\n")
    (programs / "pg_rewind").chmod(0o755)
    words = [sys.executable, "-c", program, str(old.data_directory), str(programs), old.conninfo, new.conninfo]
    agent = subprocess.Popen(words, cwd=Path(__file__).parents[3])
    try:
        wait_for(lambda: "sleep" in children_of(agent.pid).values(), "pg_rewind runs")
        (child,) = children_of(agent.pid)
        os.kill(agent.pid, signal.SIGKILL)
    finally:
        agent.kill()
        agent.wait()
    wait_for(lambda: not Path("/proc", str(child)).exists(), "pg_rewind has ended with the agent")
    assert old.managed.look().rejoin_begun
    assert old.rejoin(new).run() is Way.REWIND
    verify_standby(old, new)


def children_of(pid: int) -> dict[int, str]:
    """Return {pid: name} of the children of a process."""
    found = {}
    for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # It has ended meanwhile.
            found[int(each)] = Path(f"/proc/{each}/comm").read_text().strip()
    return found


@NEWEST
def test_what_must_not_be_overwritten_is_refused(
    pair: Pair, new_server: NewServer, template: Path, folder: Path
) -> None:
    old, new = pair
    with pytest.raises(ServerProblem, match="stop the server before"):
        old.rejoin(new).run()
    old.managed.stop()
    with pytest.raises(ConfigurationError, match="is a standby in recovery"):
        old.rejoin(new).run()
    new.promote()
    with pytest.raises(ConfigurationError, match=r"new primary is PostgreSQL \d+, the data folder of 9"):
        (old.data_directory / "PG_VERSION").write_text("9\n")
        old.rejoin(new).run()
    (old.data_directory / "PG_VERSION").write_text((new.data_directory / "PG_VERSION").read_text())
    place = folder / "space"
    place.mkdir(mode=0o700)
    new.give(place)
    new.execute(f"CREATE TABLESPACE space LOCATION '{place}'")
    (old.data_directory / "pg_wal" / "000000010000000000000001").unlink(missing_ok=True)
    for path in (old.data_directory / "pg_wal").glob("0000*"):
        path.unlink()
    with pytest.raises(ConfigurationError, match="has tablespaces"):
        old.rejoin(new).run()
    assert not old.managed.look().rejoin_begun
