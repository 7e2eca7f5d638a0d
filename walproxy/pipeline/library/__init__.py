"""WAL in Python programs: what `import pgwal` provides, without Spark.

wal     a source of WAL, and its views as Arrow
spark   the Python program that Spark starts

The package `pgwal` (walproxy/pipeline/discovery/pgwal) has these names at the top level. It needs the extra `decoder`
only: numpy, numba, pyarrow.
"""
