"""The rows that a table shows of its source as it is now, by mode: what a verification compares.

| mode | rows |
|---|---|
| mirror | all |
| append | of each key the last one after the last TRUNCATE or RESET, if it is no DELETE. Without a key all of these |
| soft-delete | those that are not marked |

In mode append DuckDB sorts the rows, which can be more than fit into memory. A value that was not sent is the last one
that was.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from walproxy.pipeline.cdc.apply.following import FollowingTable
from walproxy.pipeline.cdc.apply.modes import (
    COMMIT_LSN,
    DELETE,
    DELETED,
    OP,
    RESET,
    SEQUENCE,
    TRUNCATE,
    UNSENT,
)
from walproxy.pipeline.cdc.apply.row_hashes import Rows
from walproxy.pipeline.choices import FollowingMode
from walproxy.pipeline.duck import connect, identifier, literal

_BATCH_ROWS: Final = 65_536
_FIRST: Final = (-1, 0)
"""A place before every row."""


def present_rows(following: FollowingTable, mode: FollowingMode, key: Sequence[str]) -> Rows:
    """Return what reads the rows that a table shows of its source. Raises what `FollowingTable.batches` raises."""
    if mode == "append":
        return _Last(following, key)
    if mode == "soft-delete":
        return lambda columns: _unmarked(following, columns)
    return following.batches


def _unmarked(following: FollowingTable, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    for batch in following.batches([*columns, DELETED]):
        yield batch.filter(pc.invert(batch.column(len(columns)))).select(list(columns))


class _Last:
    """The state that the changes of a table lead to."""

    def __init__(self, following: FollowingTable, key: Sequence[str]) -> None:
        self._following = following
        self._key = key

    def __call__(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        rows = self._following.dataset()
        schema = pa.schema([rows.schema.field(name).remove_metadata() for name in columns])
        with connect() as connection:
            connection.register("history", rows if rows.files else rows.schema.empty_table())
            query = self._query(connection, columns)
            for batch in connection.sql(query).to_arrow_reader(_BATCH_ROWS):
                yield from pa.Table.from_batches([batch]).cast(schema).to_batches()

    def _query(self, connection: duckdb.DuckDBPyConnection, columns: Sequence[str]) -> str:
        place = f"{COMMIT_LSN}, {SEQUENCE}"
        begin = connection.execute(
            f"SELECT {place} FROM history WHERE {OP} IN ('{TRUNCATE}', '{RESET}') "
            f"ORDER BY {COMMIT_LSN} DESC, {SEQUENCE} DESC LIMIT 1"
        ).fetchall()
        lsn, sequence = begin[0] if begin else _FIRST
        after = f"FROM history WHERE ({COMMIT_LSN} > {lsn} OR {COMMIT_LSN} = {lsn} AND {SEQUENCE} > {sequence})"
        if not self._key:
            return f"SELECT {', '.join(map(identifier, columns))} {after}"
        unsent = {name for (name,) in connection.execute(f"SELECT DISTINCT unnest({UNSENT}) {after}").fetchall()}
        key = ", ".join(map(identifier, self._key))
        values = ", ".join(_last_value(name) if name in unsent else identifier(name) for name in columns)
        return (
            f"SELECT {values} {after} "
            f"WINDOW w AS (PARTITION BY {key} ORDER BY {COMMIT_LSN} DESC, {SEQUENCE} DESC "
            "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) "
            f"QUALIFY row_number() OVER w = 1 AND {OP} <> '{DELETE}'"
        )


def _last_value(name: str) -> str:
    """A value that was not sent is not null, and was sent since its row was inserted."""
    sent = identifier(name)
    return (
        f"CASE WHEN list_contains({UNSENT}, {literal(name)}) THEN first_value({sent} IGNORE NULLS) OVER w "
        f"ELSE {sent} END AS {sent}"
    )
