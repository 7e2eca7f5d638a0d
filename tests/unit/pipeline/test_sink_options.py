"""What a query may say to `pgtable`."""

from pathlib import Path

import pytest

from safekeeper.base.errors import ConfigurationError
from walproxy.pipeline.sink.writers import SinkOptions

PLACE = {"path": "/tables", "table": "records"}


def test_a_batch_query_says_where_and_perhaps_as_whom() -> None:
    assert SinkOptions.parse(PLACE, overwrite=False) == ("/tables", "records", None, None, None)
    numbered = {**PLACE, "TABLEFORMAT": "delta", "writer": "me", "Batch": "7"}
    assert SinkOptions.parse(numbered, overwrite=False) == ("/tables", "records", "delta", "me", 7)


def test_a_stream_is_named_by_its_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text('{"id":"0c1f"}')
    for location in (str(tmp_path), tmp_path.as_uri()):
        options = SinkOptions.parse({**PLACE, "checkpointLocation": location}, overwrite=False, streaming=True)
        assert options.writer == "spark-0c1f"
    named = SinkOptions.parse({**PLACE, "writer": "me"}, overwrite=False, streaming=True)
    assert (named.writer, named.batch) == ("me", None)


@pytest.mark.parametrize("content", [None, "", "{}", "[]", '{"name": 1}'])
def test_a_checkpoint_without_an_id_is_reported(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "metadata").write_text(content)
    with pytest.raises(
        ConfigurationError, match=r"the stream's id cannot be read from .*; name the writer by the option"
    ):
        SinkOptions.parse({**PLACE, "checkpointLocation": str(tmp_path)}, overwrite=False, streaming=True)


@pytest.mark.parametrize(
    ("options", "streaming", "complaint"),
    [
        ({"path": "/tables"}, False, "needs the option 'table': the table's name"),
        ({"table": "records"}, False, "needs the option 'path'"),
        ({**PLACE, "mode": "x"}, False, "pgtable has no option 'mode': it has path, table"),
        ({**PLACE, "tableFormat": "orc"}, False, "unknown table format 'orc'"),
        ({**PLACE, "path": "s3://bucket/tables"}, False, "is needed here, not s3://bucket/tables"),
        ({**PLACE, "batch": "1"}, False, "both options 'writer' and 'batch', or neither"),
        ({**PLACE, "writer": "me", "batch": "-1"}, False, "the option 'batch' is '-1', not a number"),
        ({**PLACE, "writer": "me", "batch": "1"}, True, "a stream numbers its batches itself"),
        (PLACE, True, "a stream needs the option 'writer' or 'checkpointLocation'"),
    ],
)
def test_what_makes_no_sense_is_reported(options: dict[str, str], streaming: bool, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        SinkOptions.parse(options, overwrite=False, streaming=streaming)


def test_nothing_is_overwritten() -> None:
    with pytest.raises(ConfigurationError, match=r"use mode\('append'\)"):
        SinkOptions.parse(PLACE, overwrite=True)
