"""Tables of the pipeline: rows that are added exactly once, as Parquet, Iceberg or Delta
(docs/design/adr/0019-tables.md).

opening          a table by its folder and name; which tables a folder holds
table            the interface of a table, for every format
position         rule X1: a commit names the position that its writer believes the table has
dataset          files of a table as an Arrow dataset
compaction       many small files become few large ones
parquet_files    writing Parquet, and reading a file's footer
table_folder     the identity of a table: its format and its schema
disk             names that appear and vanish durably
commit_log       the log of a table of plain Parquet
parquet_table    plain Parquet: a folder that every reader of Parquet reads
iceberg_table    Iceberg, with a catalog in SQLite
delta_table      Delta Lake
delta_statistics what Delta's log notes of a file's values

Tasks write files (`Table.new_file`), one process commits them (`Table.commit`) under the name of a writer and the
number of a batch. A batch that is in already is recognised, if any process commits it again after a crash: its files
are removed, and no row comes twice.

No file here imports pyspark.
"""

from walproxy.pipeline.choices import TableFormat
from walproxy.pipeline.tables.opening import find_tables, open_table
from walproxy.pipeline.tables.parquet_files import DataFile, LiveFile, NewFile
from walproxy.pipeline.tables.position import TableMoved
from walproxy.pipeline.tables.table import After, Table
from walproxy.pipeline.tables.table_folder import FORMATS

__all__ = [
    "FORMATS",
    "After",
    "DataFile",
    "LiveFile",
    "NewFile",
    "Table",
    "TableFormat",
    "TableMoved",
    "find_tables",
    "open_table",
]
