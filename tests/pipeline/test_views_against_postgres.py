"""The aggregated views of real WAL against the server's own statistics, its data files, and group-bys by pandas."""

import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
import psycopg
import pytest

from safekeeper.base.lsn import Lsn
from tests.cluster_templates import cluster_template, init_by_copying
from tests.pipeline.decoder_comparison import Log, Rows
from tests.pipeline.wal_workload import pgbench
from tests.scratch import scratch_folder
from tests.waiting import wait_for
from walproxy.pipeline.input.opening import open_input
from walproxy.pipeline.schemas import VIEWS
from walproxy.postgres.local_server import LocalPostgres, find_servers

MIB = 1 << 20
PAGE_SIZE = 8192
SETTINGS = {
    "autovacuum": "off",
    "fsync": "off",
    "max_prepared_transactions": "10",
    "wal_keep_size": "1GB",
    "wal_level": "logical",
    "wal_log_hints": "on",  # else VACUUM leaves the LSN of a page that it marks as all-visible
}
TABLES = ("kept", "emptied", "wide", "pgbench_accounts", "pgbench_tellers", "pgbench_branches", "pgbench_history")
LOOSELY = {"check_names": False, "check_dtype": False}
COUNTS = ["inserts", "updates", "hot_updates", "deletes"]


@dataclass
class Worked:
    """What a server said before it was stopped, and the rows of its WAL.

    Attributes:
        counts: of each table and TOAST table what pg_stat_all_tables says, in the order of COUNTS.
        files: their filenodes, the tables' of before a TRUNCATE too.
        pages: of some filenodes the LSNs that stand in the pages of their files.
    """

    rows: Rows
    counts: dict[str, list[int]]
    files: dict[str, set[int]]
    pages: dict[int, list[Lsn]]

    def table(self, view: str) -> pd.DataFrame:
        return self.rows.tables[view].to_pandas()


@pytest.fixture(
    scope="module",
    params=[*(pytest.param(major, marks=pytest.mark.nightly) for major in (15, 17)), 18],
    ids=lambda major: f"pg{major}",
)
def worked(request: pytest.FixtureRequest) -> Iterator[Worked]:
    major: int = request.param
    if major not in find_servers():
        pytest.skip(f"no PostgreSQL {major} on this machine")
    with scratch_folder() as folder:
        with LocalPostgres(find_servers()[major], folder / "data", settings=SETTINGS) as server:
            init_by_copying(server, cluster_template(server.binaries, 1)).start()
            files = work(server)
            server.execute("CHECKPOINT")
            wait_until_others_are_gone(server)
            counts = statistics(server)
            pages = {
                server.execute("SELECT pg_relation_filenode(%s::regclass)", name)[0][0]: page_lsns(server, name)
                for name in ("kept", "kept_pkey", "pgbench_accounts", "pgbench_tellers_pkey")
            }
            server.stop()
            source = open_input(str(server.pg_wal))
            path = source.log_path(None)
            [extent] = source.extents(path)
            log = Log(source.read(path, *extent), extent.begin_lsn, path.segment_size)
        yield Worked(Rows(log, log.borders(MIB), VIEWS), counts, files, pages)


def work(server: LocalPostgres) -> dict[str, set[int]]:
    """Change tables in every way, with no transaction that aborts. Return the tables' filenodes, old ones too."""
    pgbench(server, "-i", "-s", "1", "-q")
    pgbench(server, "-n", "-c", "2", "-t", "200")
    with psycopg.connect(server.conninfo(), autocommit=True) as connection:
        for statement in (
            "CREATE TABLE kept (id int PRIMARY KEY, v int DEFAULT 0, filler text DEFAULT 'f') WITH (fillfactor = 50)",
            "INSERT INTO kept SELECT n FROM generate_series(1, 700) n",
            "UPDATE kept SET v = 1 WHERE id % 3 = 0",
            "UPDATE kept SET id = -id WHERE id % 5 = 0",
            "INSERT INTO kept VALUES (1), (100000) ON CONFLICT (id) DO UPDATE SET v = 2",
            "DELETE FROM kept WHERE id % 7 = 0",
            "SELECT count(*) FROM (SELECT * FROM kept WHERE id < 50 FOR UPDATE) locked",
            "CREATE TABLE emptied AS SELECT n FROM generate_series(1, 300) n",
            "CREATE TABLE wide (id int, plain text)",
            "ALTER TABLE wide ALTER plain SET STORAGE external",
            "INSERT INTO wide SELECT n, repeat('w', 9000) FROM generate_series(1, 20) n",
            "DELETE FROM wide WHERE id % 2 = 0",
        ):
            connection.execute(statement)
        old = connection.execute("SELECT pg_relation_filenode('emptied')").fetchone()
        connection.execute("TRUNCATE emptied")
        with connection.cursor() as cursor, cursor.copy("COPY emptied FROM STDIN") as copy:
            for number in range(1234):
                copy.write_row((number,))
        connection.execute("BEGIN")
        for number in range(20):
            connection.execute("SAVEPOINT here")
            connection.execute("INSERT INTO kept VALUES (%s)", (200_000 + number,))
        connection.execute("PREPARE TRANSACTION 'later'")
        connection.execute("COMMIT PREPARED 'later'")
        connection.execute("VACUUM kept")
        files = {
            name: {file}
            for name, file in connection.execute(
                "SELECT relname, pg_relation_filenode(oid) FROM pg_class WHERE relkind = 'r' AND relname = ANY(%s) "
                "UNION ALL SELECT 'toast of ' || relname, pg_relation_filenode(reltoastrelid) FROM pg_class "
                "WHERE relname = 'wide'",
                (list(TABLES),),
            )
        }
    assert old is not None
    files["emptied"].add(old[0])
    return files


def wait_until_others_are_gone(server: LocalPostgres) -> None:
    """Wait until no other session is left: a backend adds its last counts when it ends."""
    others = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
    with psycopg.connect(server.conninfo(), autocommit=True) as connection:
        wait_for(lambda: connection.execute(others).fetchone() == (0,), "all other sessions are gone")


def statistics(server: LocalPostgres) -> dict[str, list[int]]:
    """Return the server's own counters. It knows updates of all kinds and hot ones."""
    rows = server.execute(
        "SELECT coalesce((SELECT 'toast of ' || c.relname FROM pg_class c WHERE c.reltoastrelid = s.relid), relname), "
        "n_tup_ins, n_tup_upd - n_tup_hot_upd, n_tup_hot_upd, n_tup_del FROM pg_stat_all_tables s"
    )
    return {name: counts for name, *counts in rows}


def page_lsns(server: LocalPostgres, relation: str) -> list[Lsn]:
    """Return what the headers of a relation's pages say: two halves, the upper one first."""
    [(path,)] = server.execute("SELECT pg_relation_filepath(%s::regclass)", relation)
    pages = np.frombuffer((server.data_directory / os.fspath(path)).read_bytes(), "<u4").reshape(-1, PAGE_SIZE // 4)
    return [int(high) << 32 | int(low) for high, low in pages[:, :2]]


def test_tuples_are_counted_as_the_server_counts_them(worked: Worked) -> None:
    counted = worked.table("tuple_stats").groupby("relation")[COUNTS].sum()
    ours = {name: counted[counted.index.isin(files)].sum().tolist() for name, files in worked.files.items()}
    assert ours == {name: worked.counts[name] for name in worked.files}
    assert all(sum(ours[name][kind] for name in ours) > 0 for kind in range(4))


def test_a_page_s_last_version_is_what_stands_in_its_header(worked: Worked) -> None:
    versions = worked.table("page_versions").query("fork == 0").groupby(["relation", "block"])["last_end_lsn"].max()
    for relation, lsns in worked.pages.items():
        # PostgreSQL extends a table by several pages for sessions that wait for one; those not used yet are zeros.
        assert versions[relation].to_dict() == {block: lsn for block, lsn in enumerate(lsns) if lsn}


def test_the_volume_of_relations_is_all_of_the_wal(worked: Worked) -> None:
    volume, records, blocks = (worked.table(view) for view in ("relation_volume", "records", "blocks"))
    assert volume["wal_bytes"].sum() == records["total_length"].sum()
    assert volume["records"].sum() == len(records)
    assert volume["image_bytes"].sum() == records["image_bytes"].sum()
    keys = ["rmgr", "tablespace", "database", "relation"]
    theirs = blocks.assign(images=blocks["has_image"].astype(int), one=1).groupby(keys)
    ours = volume.dropna(subset="relation").astype(dict.fromkeys(keys[1:], "int64")).groupby(keys)
    for column, counted in (("block_references", "one"), ("image_count", "images"), ("image_bytes", "image_bytes")):
        pd.testing.assert_series_equal(ours[column].sum(), theirs[counted].sum(), **LOOSELY)
    by_rmgr = volume.groupby("rmgr")[["wal_bytes", "records"]].sum()
    lengths = records.groupby("rmgr")["total_length"].agg(["sum", "count"])
    assert (by_rmgr.to_numpy() == lengths.to_numpy()).all()


def test_the_volume_of_transactions_is_that_of_their_records(worked: Worked) -> None:
    ours = worked.table("transaction_volume").groupby("xid")
    theirs = worked.table("records").query("xid != 0").groupby("xid")
    for column, counted in (("wal_bytes", "total_length"), ("image_bytes", "image_bytes")):
        pd.testing.assert_series_equal(ours[column].sum(), theirs[counted].sum(), **LOOSELY)
    pd.testing.assert_series_equal(ours["first_lsn"].min(), theirs["lsn"].min(), **LOOSELY)
    pd.testing.assert_series_equal(ours["last_lsn"].max(), theirs["lsn"].max(), **LOOSELY)
    pd.testing.assert_series_equal(ours["top_xid"].max(), theirs["top_xid"].max(), **LOOSELY)
    assert ours["top_xid"].max().notna().sum() > 10


def test_the_versions_of_pages_are_the_records_that_change_them(worked: Worked) -> None:
    keys = ["tablespace", "database", "relation", "fork", "block"]
    versions, blocks = worked.table("page_versions"), worked.table("blocks")
    ours = versions.groupby(keys)
    changes = blocks.assign(image=blocks["image_applied"] | blocks["will_init"]).groupby([*keys, "lsn"])["image"].max()
    theirs = changes.reset_index().groupby(keys)
    pd.testing.assert_series_equal(ours["records"].sum(), theirs["lsn"].count(), **LOOSELY)
    pd.testing.assert_series_equal(ours["first_lsn"].min(), theirs["lsn"].min(), **LOOSELY)
    images = changes[changes].reset_index().groupby(keys)["lsn"].max()
    pd.testing.assert_series_equal(ours["image_lsn"].max().dropna().astype("int64"), images, **LOOSELY)
    # Over pieces: what stands behind the last image, or everything if there is none.
    last = changes.reset_index().merge(images.rename("image_lsn"), on=keys, how="left")
    since = last[~(last["lsn"] <= last["image_lsn"])].groupby(keys)["lsn"].count()
    with_image = versions.assign(last=versions["image_lsn"].fillna(-1)).groupby(keys)["last"].transform("max")
    behind = versions[(versions["last_lsn"] >= with_image)].groupby(keys)["records_since_image"].sum()
    assert behind[behind > 0].to_dict() == since.to_dict()


def test_the_times_of_pieces_are_those_of_their_transactions(worked: Worked) -> None:
    transactions = worked.table("transactions").query("outcome != 'prepare'").sort_values("lsn")
    pieces = worked.table("relation_volume").drop_duplicates("begin_lsn")
    assert len(pieces) > 10
    for piece in pieces.itertuples():
        times = transactions[transactions["lsn"].between(piece.begin_lsn, piece.end_lsn - 1)]["time"]
        expected = (times.iloc[0], times.iloc[-1]) if len(times) else (None, None)
        assert (piece.first_time, piece.last_time) == expected or (pd.isna(piece.first_time) and not len(times))
