"""WAL bytes to arrays to Arrow, fast enough to be limited by memory rather than by Python.

    wal (uint8) --pages.strip--> contiguous WAL --walker.walk--> arrays, one row a record --arrow, views--> Arrow

- `decode.py` is the listener: `decode`, `Decoded`, `End`, `Workspace`, `straddler_end`.
- `walker.py` is compiled by numba, once per machine; `warm.py` does so ahead of time.
- What a record means is decided in one place for the project: the numbers come from safekeeper/waldecode/format.py, and
  safekeeper/waldecode/records.py, which reads a stream bit by bit and without numba, is what this is tested against.

This package imports nothing by itself: numba takes most of a second, and data sources are imported in every worker.
"""
