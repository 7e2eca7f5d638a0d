"""A job goes on at a promoted standby that has its slot (PostgreSQL 17 and newer synchronize it)."""

from contextlib import ExitStack
from pathlib import Path

from tests.pipeline.apply_fixtures import compare, options_of
from tests.pipeline.logical_server import Source, client, logical_server, wait_until
from tests.scratch import scratch_folder
from walproxy.pipeline.cdc.apply.job import run_apply
from walproxy.pipeline.cdc.apply.job_file import job_state, read_job
from walproxy.pipeline.cdc.slot import usable_slot


def test_a_job_goes_on_after_the_promotion_of_a_standby_that_has_its_slot(tmp_path: Path) -> None:
    with logical_server() as primary, scratch_folder() as folder, ExitStack() as stack:
        source = Source(primary)  # it goes with its server
        stack.callback(lambda: (source.connection.close(), source.asking.close()))
        source.run("CREATE TABLE t (id int PRIMARY KEY, v text)")
        source.publish("t")
        source.run("SELECT pg_create_physical_replication_slot('standby', true)")
        settings = {"hot_standby_feedback": "on", "primary_slot_name": "standby"}
        standby = primary.base_backup(
            folder / "standby", primary_conninfo=primary.conninfo(dbname=source.name), settings=settings
        )
        with standby:
            standby.start()
            options = options_of(source, tmp_path)
            synced = "SELECT count(*) FROM pg_replication_slots WHERE synced AND NOT temporary"
            numbers = iter(range(1, 10_000))

            def is_synced() -> bool:
                source.run(f"INSERT INTO t VALUES ({next(numbers)}, 'before')", "SELECT pg_log_standby_snapshot()")
                run_apply(options, once=True)
                # A slot whose position is beyond the standby's WAL is an error.
                confirmed_lsn = usable_slot(source.connection, source.slot)[1]
                has_it = (
                    "SELECT greatest(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn()) >= "
                    f"'0/0'::pg_lsn + {confirmed_lsn}"
                )
                wait_until(lambda: standby.execute(has_it) == [(True,)])
                standby.execute("SELECT pg_sync_replication_slots()")  # what sync_replication_slots does now and then
                return standby.execute(synced) == [(1,)]

            wait_until(is_synced)
            source.run("UPDATE t SET v = 'last' WHERE id = 1")
            run_apply(options, once=True)
            end_lsn = source.end_lsn()
            wait_until(
                lambda: standby.execute(f"SELECT pg_last_wal_replay_lsn() >= '0/0'::pg_lsn + {end_lsn}") == [(True,)]
            )
            source.connection.close()
            source.asking.close()
            primary.kill9()

            standby.execute("SELECT pg_promote()")
            source.server, source.conninfo = standby, standby.conninfo(dbname=source.name)
            source.connection, source.asking = client(source.conninfo), client(source.conninfo)
            job = read_job(job_state(options.location))
            assert job is not None and job.position_lsn >= usable_slot(source.connection, source.slot)[1]
            source.run("DELETE FROM t WHERE id = 2", "INSERT INTO t VALUES (0, 'promoted')")
            run_apply(options._replace(conninfo=source.conninfo), once=True)
            compare(source, options.location, "delta", "t")
