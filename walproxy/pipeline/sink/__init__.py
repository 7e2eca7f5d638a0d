"""Spark's way into the tables: the data source `pgtable`, which writes any DataFrame, batch or stream, exactly once.

data_source   the class that Spark finds
writers       a query's options; tasks write files, the driver commits them
"""
