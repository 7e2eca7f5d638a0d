"""Names of relations, as a real server tells them, and what becomes of them when files change."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from safekeeper.base.errors import ConfigurationError
from tests.cluster_templates import cluster_template, init_by_copying
from tests.scratch import scratch_folder
from walproxy.cli.pipeline_commands.catalog import catalog
from walproxy.pipeline.jobs.catalog import (
    CatalogFailed,
    RelationId,
    RelationNames,
    merge,
    open_names,
    read_snapshot,
    take_snapshot,
    write_snapshot,
)
from walproxy.postgres.local_server import LocalPostgres, find_servers

SETUP = """
    CREATE SCHEMA sales;
    CREATE TABLE sales.orders (id int PRIMARY KEY, note text);
    CREATE TABLE sales."Order lines" (id int);
    CREATE MATERIALIZED VIEW sales.totals AS SELECT count(*) FROM sales.orders;
    CREATE SEQUENCE numbers;
    CREATE ROLE reader LOGIN
"""


@pytest.fixture(scope="module")
def server() -> Iterator[LocalPostgres]:
    servers = find_servers()
    settings = {"shared_buffers": "16MB", "fsync": "off", "autovacuum": "off"}
    with (
        scratch_folder() as folder,
        LocalPostgres(servers[max(servers)], folder / "data", settings=settings) as made,
    ):
        init_by_copying(made, cluster_template(made.binaries)).start()
        for statement in SETUP.split(";"):
            made.execute(statement)
        made.execute("CREATE DATABASE other")
        made.execute("CREATE DATABASE closed")
        made.execute("REVOKE CONNECT ON DATABASE closed FROM PUBLIC")
        yield made


def file_of(server: LocalPostgres, relation: str) -> RelationId:
    """What WAL calls a relation: the server says it as a path, base/DATABASE/FILE or global/FILE."""
    [(path,)] = server.execute("SELECT pg_relation_filepath(%s::regclass)", relation)
    folder, *numbers = path.split("/")
    return RelationId(1664, 0, int(numbers[0])) if folder == "global" else RelationId(1663, *map(int, numbers))


def toast_of(server: LocalPostgres, relation: str) -> str:
    [(name,)] = server.execute("SELECT reltoastrelid::regclass::text FROM pg_class WHERE oid = %s::regclass", relation)
    return str(name)


def test_every_kind_of_relation_is_known_by_the_number_that_its_file_has(server: LocalPostgres) -> None:
    names = RelationNames(take_snapshot(server.conninfo()))
    expected = {
        "sales.orders": ("postgres.sales.orders", "table", "postgres.sales.orders"),
        "sales.orders_pkey": ("postgres.sales.orders_pkey", "index", "postgres.sales.orders"),
        'sales."Order lines"': ('postgres.sales."Order lines"', "table", 'postgres.sales."Order lines"'),
        "sales.totals": ("postgres.sales.totals", "materialized view", "postgres.sales.totals"),
        "numbers": ("postgres.public.numbers", "sequence", "postgres.public.numbers"),
        "pg_class": ("postgres.pg_catalog.pg_class", "table", "postgres.pg_catalog.pg_class"),
        "pg_database": ("pg_catalog.pg_database", "table", "pg_catalog.pg_database"),
    }
    for relation, (name, kind, table) in expected.items():
        numbers = file_of(server, relation)
        found = names.file(*numbers)
        assert found is not None, relation
        assert (names.name(*numbers), found.kind, names.table(*numbers)) == (name, kind, table)


def test_a_toast_table_and_its_index_belong_to_the_table(server: LocalPostgres) -> None:
    names = RelationNames(take_snapshot(server.conninfo()))
    toast = toast_of(server, "sales.orders")
    for relation, kind in ((toast, "toast"), (f"{toast}_index", "index")):
        numbers = file_of(server, relation)
        found = names.file(*numbers)
        assert found is not None
        assert (found.kind, names.table(*numbers)) == (kind, "postgres.sales.orders")


def test_a_role_with_no_rights_reads_the_names_and_says_which_databases_it_could_not(server: LocalPostgres) -> None:
    snapshot = take_snapshot(server.conninfo(user="reader"))
    assert set(snapshot.unread) == {"closed", "template0"}
    assert snapshot.unread["closed"] == "this role may not connect"
    [(other,)] = server.execute("SELECT oid::int8 FROM pg_database WHERE datname = 'other'")
    assert any(file.database == other and file.name == "pg_class" for file in snapshot.relations)
    assert file_of(server, "sales.orders") in {
        (file.tablespace, file.database, file.relation) for file in snapshot.relations
    }


def test_what_is_not_known_is_shown_as_numbers(server: LocalPostgres) -> None:
    names = RelationNames(take_snapshot(server.conninfo()))
    database = file_of(server, "sales.orders").database
    assert names.name(1663, database, 999_999) == f"?1663/{database}/999999 (postgres)"
    assert names.table(1663, 77, 999_999) == "?1663/77/999999"
    assert RelationNames().name(1664, 0, 1260) == "?1664/0/1260"


def test_a_merged_file_still_knows_the_number_that_a_table_had_before_it_was_rewritten(
    server: LocalPostgres, tmp_path: Path
) -> None:
    path = tmp_path / "names.json"
    run = CliRunner()
    first = run.invoke(catalog, ["--primary", server.conninfo(), "--output", str(path)])
    assert first.exit_code == 0, first.output
    old = file_of(server, "sales.orders")
    server.execute("VACUUM FULL sales.orders")
    new = file_of(server, "sales.orders")
    assert old != new
    words = ["--primary", server.conninfo(), "--merge", str(path), "--output", str(path)]
    assert run.invoke(catalog, words).exit_code == 0
    names = open_names(str(path))
    assert names.name(*old) == names.name(*new) == "postgres.sales.orders"
    assert open_names(server.conninfo()).name(*old).startswith("?")


def test_of_two_names_of_one_number_the_newer_counts_and_systems_are_not_mixed(
    server: LocalPostgres, tmp_path: Path
) -> None:
    older = take_snapshot(server.conninfo())
    server.execute('ALTER TABLE sales."Order lines" RENAME TO lines')
    newer = take_snapshot(server.conninfo())
    server.execute('ALTER TABLE sales.lines RENAME TO "Order lines"')
    numbers = file_of(server, 'sales."Order lines"')
    for order in ([older, newer], [newer, older]):
        assert RelationNames(merge(order)).name(*numbers) == "postgres.sales.lines"
    path = tmp_path / "names.json"
    write_snapshot(newer, path)
    path.write_text(path.read_text().replace(str(newer.system_id), "4711"))
    with pytest.raises(ConfigurationError, match="two systems"):
        merge([older, read_snapshot(path)])


def test_what_cannot_be_read_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(CatalogFailed, match="cannot connect to the database"):
        take_snapshot("host=127.0.0.1 port=1 user=nobody")
    with pytest.raises(ConfigurationError, match="cannot be read as a file of names"):
        open_names(str(tmp_path / "missing"))
    other = tmp_path / "other.json"
    other.write_text('{"names": 1}')
    with pytest.raises(ConfigurationError, match="is not a file of names"):
        open_names(str(other))
    with pytest.raises(ConfigurationError, match="connection string is wrong"):
        open_names("host=x nonsense=y")
    assert CliRunner().invoke(catalog, ["--output", str(other)]).exception is not None
