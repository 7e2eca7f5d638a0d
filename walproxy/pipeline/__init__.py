"""WAL as tables: decoded where it is stored, written as Parquet, Iceberg or Delta, queried with SQL.

    archive, safekeeper --input/--> raw WAL --decoder/--> arrays --views--> Arrow --tables/--> Parquet, Iceberg, Delta
                                                                     |
                                                                     '--source/--> Spark DataFrames

Spark cuts the work into pieces, spreads it and restarts it; WAL itself never passes through the JVM. A task reads the
WAL of its piece, decodes it with compiled code, and hands out Arrow batches or writes data files; only then does the
driver register the files in a table, at most once for each batch of a stream.

What reads and decodes WAL (`input/`, `decoder/`, `schemas`) imports no pyspark: a task and `waldump` need no JVM.
Everything here needs `pip install 'walproxy[pipeline]'`; nothing outside of this room imports it, but for the commands
of walproxy/cli and the demo, which do it when they are used.
"""
