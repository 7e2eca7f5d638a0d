"""Tables in object stores: Delta Lake and Iceberg in S3, GCS and Azure, committed exactly once without any lock
(docs/design/adr/0066-lake.md, 0070-iceberg-in-object-stores.md).

location    where tables are: a folder, or a prefix of an object store
opening     a table by its location and name, in a folder or in an object store
table       the interface of a table, written once on two primitives of a format
delta       these two for Delta Lake
iceberg     these two for Iceberg
catalog     Iceberg's catalogs, and their errors
iceberg_files   pyiceberg's metadata as objects
files       Parquet files as objects: written with one put, their footer read with a range
probe       whether a store refuses all but one of the puts that race for one name
state       a small object that is replaced only if it is still the one that was read
duck        SQL over the tables, by DuckDB
errors      errors of the libraries as errors of ours, in one line

Tables in folders are those of `walproxy/pipeline/tables`. No file here imports pyspark.
"""
