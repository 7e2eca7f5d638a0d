"""Every view of a piece of decoded WAL, as an Arrow batch.

`records` and `blocks` have a row for each record or block reference (arrow.py), `transactions` one for each that ended
(transactions.py); the others are aggregated: a row has the sums of one key in the whole piece, and the rows of
several pieces add up. What each column means stands in walproxy/pipeline/schemas.py. Rows come in the order of the
WAL, aggregated ones by their key's first record.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from safekeeper.base.lsn import Lsn
from walproxy.pipeline.decoder.arrow import Columns, blocks_batch, records_batch, repeated
from walproxy.pipeline.decoder.catalog_changes import catalog_changes
from walproxy.pipeline.decoder.decode import Decoded
from walproxy.pipeline.decoder.page_versions import page_versions
from walproxy.pipeline.decoder.transaction_relations import transaction_relations
from walproxy.pipeline.decoder.transactions import transactions
from walproxy.pipeline.decoder.tuple_stats import tuple_stats
from walproxy.pipeline.decoder.volume import relation_volume, transaction_volume
from walproxy.pipeline.schemas import arrow_schema

_BUILDERS: Final[dict[str, Callable[[Decoded], Columns]]] = {
    "transactions": transactions,
    "transaction_volume": transaction_volume,
    "relation_volume": relation_volume,
    "page_versions": page_versions,
    "tuple_stats": tuple_stats,
    "transaction_relations": transaction_relations,
    "catalog_changes": catalog_changes,
}
_AGGREGATED: Final = frozenset(_BUILDERS) - {"transactions", "catalog_changes"}


class Piece(NamedTuple):
    """A range of WAL between two page boundaries; the records that begin in it are its records."""

    begin_lsn: Lsn
    end_lsn: Lsn


def view_batch(
    view: str, decoded: Decoded, piece: Piece, names: Sequence[str] | None = None, *, dictionaries: bool = False
) -> pa.RecordBatch:
    """Return a view of a piece of WAL, with the schema `arrow_schema(view, names)`.

    The batch stays valid when the workspace of `decoded` is used again.

    Args:
        view: one of `schemas.VIEWS`.
        decoded: the records of the piece.
        piece: its bounds, which aggregated views repeat in every row.
        names: only these columns, in the order of the view; all by default.
        dictionaries: texts of `records` and `blocks` are of Arrow's dictionary type, which Parquet files take over.

    Raises:
        ConfigurationError: there is no such view or column.
        WalFormatError: a record that the view looks into is not as its version of PostgreSQL writes it.
    """
    if view == "records":
        return records_batch(decoded, names, dictionaries=dictionaries)
    if view == "blocks":
        return blocks_batch(decoded, names, dictionaries=dictionaries)
    schema = arrow_schema(view, names)
    columns = _BUILDERS[view](decoded)
    if view in _AGGREGATED:
        rows = len(columns["records" if "records" in columns else "inserts"]())
        columns["begin_lsn"] = lambda: repeated(piece.begin_lsn, rows)
        columns["end_lsn"] = lambda: repeated(piece.end_lsn, rows)
    return pa.RecordBatch.from_arrays([columns[name]() for name in schema.names], schema=schema)
