"""Reports on tables in a real S3 server (moto) are those on the same tables in a folder."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from tests.integration.archive.faulty_relay import FaultyRelay, answer
from tests.integration.archive.object_stores import Server
from tests.pipeline.report_story import make_night, views_of, write_tables
from tests.pipeline.test_report import snapshot
from walproxy.cli.pipeline_commands.report import report as command
from walproxy.pipeline.jobs.catalog import NAMES_FILE, write_snapshot
from walproxy.pipeline.lake.location import LakeLocation
from walproxy.pipeline.lake.opening import open_lake_table
from walproxy.pipeline.schemas import arrow_schema

USED = ("relation_volume", "transaction_volume", "transactions", "tuple_stats")


def report_on(*arguments: str) -> Any:
    result = CliRunner().invoke(command, ["--json", "--tables", *arguments])
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    printed.pop("made_at")
    return printed


@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_a_report_on_an_object_store_is_that_on_a_folder(moto: Server, tmp_path: Path, format: str) -> None:
    views = {name: rows for name, rows in views_of(make_night()).items() if name in USED}
    folder = tmp_path / "tables"
    write_tables(folder, views)
    write_snapshot(snapshot(), folder / NAMES_FILE)
    place = moto.place(f"report/{format}")
    catalog = {"uri": f"sqlite:///{tmp_path / 'catalog.db'}"} if format == "iceberg" else {}
    location = LakeLocation.parse(place.url, place.options, catalog)
    for name, rows in views.items():
        with open_lake_table(location, name, None, arrow_schema(name)) as table:
            file = table.new_file().write([pa.RecordBatch.from_pylist(rows, schema=table.schema)])
            table.commit(None, None, [file] if file is not None else [])
    location.store().put(NAMES_FILE, (folder / NAMES_FILE).read_bytes(), absent=False)

    def on_the_store(endpoint: str) -> list[str]:
        options = ",".join(f"{name}={value}" for name, value in {**place.options, "endpoint": endpoint}.items())
        settings = (f"lake_options={options}", "iceberg_catalog=" + ",".join(map("=".join, catalog.items())))
        return [place.url, *(word for each in settings for word in ("-c", each))]

    assert report_on(*on_the_store(moto.endpoint)) == report_on(str(folder))
    with FaultyRelay(moto.endpoint) as relay:
        relay.when("GET", NAMES_FILE, answer(403, "AccessDenied"))
        refused = CliRunner().invoke(command, ["--json", "--tables", *on_the_store(relay.endpoint)])
    assert "AccessDenied" in str(refused.exception)
    assert "\n" not in str(refused.exception)
