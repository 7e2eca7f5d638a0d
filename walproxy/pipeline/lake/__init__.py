"""The pipeline's tables in folders and in object stores: Delta Lake and Iceberg, committed exactly once without a lock
(docs/design/adr/0066-lake.md, 0075-one-lake.md).

location    where tables are: a folder, or a prefix of an object store, and its files
names       names of tables
opening     a table by its location and name
table       the interface of a table, written once on two primitives of a format
position    rule X1: a commit names the position that its writer believes the table has
delta       the two primitives for Delta Lake
iceberg     the two primitives for Iceberg
catalog     Iceberg's catalogs, and their errors
iceberg_files   pyiceberg's metadata as objects or files
compaction  many small files become few large ones
files       Parquet files of a table: where tasks write them, and how their footer is read
parquet_files   how Parquet is written
dataset     files of a table as an Arrow dataset
disk        files and names that are durable, and locks
probe       whether a store refuses all but one of the puts that race for one name
state       a small object that is replaced only if it is still the one that was read
duck        SQL over the tables of an object store, by DuckDB
errors      errors of the libraries as errors of ours, in one line

No file here imports pyspark.
"""
