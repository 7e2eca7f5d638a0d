"""SQL over tables that follow tables of a database, in a folder and in S3 (moto), in both formats."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from safekeeper.base.errors import ConfigurationError
from tests.integration.archive.object_stores import Place, Server
from tests.pipeline.apply_fixtures import options_of
from tests.pipeline.logical_server import Source
from walproxy.cli.pipeline_commands.query import query
from walproxy.cli.pipeline_work.query import tables_at
from walproxy.pipeline import duck
from walproxy.pipeline.cdc.apply.job import run_apply
from walproxy.pipeline.choices import TABLE_FORMATS, TableFormat
from walproxy.pipeline.lake.location import LakeLocation

SETUP = (
    "CREATE TABLE orders (id int PRIMARY KEY, amount numeric(8,2))",
    "INSERT INTO orders SELECT i, i FROM generate_series(1, 100) i",
    "CREATE SCHEMA sales",
    'CREATE TABLE sales."Ü b" (a text PRIMARY KEY)',
    "CREATE TABLE sales.nothing (a text PRIMARY KEY)",
    "CREATE SCHEMA main",
    "CREATE TABLE main.m (x int PRIMARY KEY)",
    "INSERT INTO sales.\"Ü b\" VALUES ('ä')",
)
CHANGES = (
    "ALTER TABLE orders ADD COLUMN note text",
    "INSERT INTO orders VALUES (200, 1.5, 'late')",
    "DELETE FROM orders WHERE id <= 50",
)


@pytest.fixture(params=TABLE_FORMATS)
def table_format(request: pytest.FixtureRequest) -> TableFormat:
    chosen: TableFormat = request.param
    return chosen


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.nightly)])
def location(request: pytest.FixtureRequest, moto: Server, tmp_path: Path, table_format: TableFormat) -> LakeLocation:
    is_stored = request.param == "s3"
    place = moto.place(f"query-{table_format}") if is_stored else Place(str(tmp_path))
    catalog = {"uri": f"sqlite:///{tmp_path / 'catalog.db'}"} if is_stored and table_format == "iceberg" else {}
    return LakeLocation.parse(place.url, place.options, catalog)


def test_followed_tables_are_queried_by_their_names_as_they_are_now(
    empty: Source,
    location: LakeLocation,
    table_format: TableFormat,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    empty.run(*SETUP)
    empty.publish("orders", "sales.Ü b", "sales.nothing", "main.m")
    options = options_of(empty, location, table_format)
    run_apply(options, once=True)
    empty.run(*CHANGES)
    run_apply(options, once=True)
    place = options.location

    def asked(statement: str) -> list[tuple[object, ...]]:
        with duck.query(tables_at(place.url, dict(place.options), dict(place.catalog)), statement) as result:
            return list(result.rows)

    assert asked("SELECT count(*), sum(amount)::text, max(note) FROM public.orders") == [(51, "3776.50", "late")]
    assert (
        asked('SELECT count(note) FROM "public.orders"') == asked('SELECT count(note) FROM "public"."orders"') == [(1,)]
    )
    assert asked('SELECT a FROM sales."Ü b" UNION SELECT a FROM sales.nothing') == [("ä",)]
    assert asked('SELECT count(*) FROM "main.m"') == [(0,)]
    with pytest.raises(ConfigurationError, match=r"public\.orders"):
        asked("SELECT * FROM public.missing")
    words = ["SELECT id FROM public.orders WHERE id > 150", "--csv", "--tables", place.url]
    for key, settings in (("lake_options", place.options), ("iceberg_catalog", place.catalog)):
        words += ["-c", f"{key}=" + ",".join(map("=".join, settings))]
    shown = CliRunner().invoke(query, words)
    assert (shown.exit_code, shown.output) == (0, "id\n200\n"), shown.output
