"""`walproxy restore` when the WAL creates a tablespace outside of the data folder: replay would write to it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from safekeeper.base.errors import EXIT_CONFIGURATION
from tests.integration.conftest import EVERY, NEWEST
from tests.integration.restore.restore_fixtures import (
    Past,
    give_to_server,
    make_past,
    make_runnable,
    owner,
    recovered,
    restore,
    rows,
    take_backup,
    up_to,
    walproxy,
)
from tests.scratch import scratch_folder
from walproxy.postgres.local_server import ServerBinaries

ROWS = 20_000


@pytest.fixture
def past(servers: dict[int, ServerBinaries], major: int) -> Iterator[Past]:
    """A past whose backup is older than a tablespace with a table, and than a higher max_connections."""
    with scratch_folder() as folder:
        (folder / "archive").mkdir(mode=0o755)
        past = make_past(servers[major], folder)
        try:
            take_backup(past.server, folder / "base")
            past.add_steps(2)
            make_space(past)
            past.server.execute(f"CREATE TABLESPACE space LOCATION '{folder / 'space'}'")
            past.server.execute("CREATE TABLE precious (number int) TABLESPACE space")
            past.server.execute(f"INSERT INTO precious SELECT generate_series(1, {ROWS})")
            past.server.stop()
            past.server.configure({"max_connections": "40"})
            past.server.start()
            past.add_steps(1)
            past.archive_up_to(past.flush_lsn())
            yield past
        finally:
            past.server.close()


def make_space(past: Past) -> None:
    """Make the empty folder of the tablespace."""
    space = past.folder / "space"
    space.mkdir(mode=0o700)
    give_to_server(space)


def raise_connections(target: Path) -> None:
    with (target / "postgresql.auto.conf").open("a") as file:
        file.write("max_connections = 40\n")


@EVERY
def test_a_restore_beside_the_live_server_does_not_touch_its_tablespaces(past: Past, target: Path) -> None:
    backup, space = past.folder / "base", past.folder / "space"
    answer = walproxy("restore", "--backup", backup, "--target", target, "--archive", past.archive, *owner())
    if answer.returncode == 0:
        make_runnable(past.folder, target)
        raise_connections(target)
        with recovered(past.server.binaries, target) as copy:
            copy.execute("TRUNCATE precious")
            copy.execute("CHECKPOINT")
    past.server.stop()
    past.server.start()
    assert past.server.execute("SELECT count(*) FROM precious") == [(ROWS,)]
    assert answer.returncode == EXIT_CONFIGURATION
    assert f"in {space}, where PG_{past.server.binaries.major}_" in answer.stderr
    assert not target.exists()
    advised = answer.stderr.partition("--target-lsn ")[2].partition(";")[0]
    restore(past, backup, target, "--archive", past.archive, "--target-lsn", advised)
    with recovered(past.server.binaries, target) as server:
        assert rows(server) == up_to(2)
        assert not list((target / "pg_tblspc").iterdir())


@NEWEST
def test_a_restore_where_the_tablespace_is_not_in_use_names_what_to_prepare(past: Past, target: Path) -> None:
    past.server.stop()
    (past.folder / "space").rename(past.folder / "elsewhere")
    backup = past.folder / "base"
    answer = walproxy("restore", "--backup", backup, "--target", target, "--archive", past.archive, *owner())
    assert answer.returncode == 0, answer.stderr
    make_runnable(past.folder, target)
    assert f"in {past.folder / 'space'}: before the start, make this folder, empty" in answer.stderr
    assert f"raises max_connections from 20 to 40: before the start, append max_connections = 40 to {target}/" in (
        answer.stderr
    )
    make_space(past)
    raise_connections(target)
    with recovered(past.server.binaries, target) as server:
        assert server.execute("SELECT count(*) FROM precious") == [(ROWS,)]
