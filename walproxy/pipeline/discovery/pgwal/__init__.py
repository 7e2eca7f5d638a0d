"""PostgreSQL's WAL as Arrow tables, without a server, without Spark: `import pgwal`.

    wal = pgwal.open("/var/lib/postgresql/17/main/pg_wal")
    wal.table("relation_volume")

Documentation: docs/guide/pgwal.md. The code is in walproxy/pipeline/library.
"""

try:
    from safekeeper.base.errors import ArchiveRefused, ConfigurationError, WalproxyError
    from safekeeper.base.lsn import format_lsn, parse_lsn
    from walproxy.pipeline.library.wal import Bound, Wal
    from walproxy.pipeline.library.wal import open_wal as open
    from walproxy.pipeline.schemas import VIEWS, arrow_schema
    from walproxy.wal_sources.source import Extent, SourceCorrupt, SourceUnavailable, WalMissing
except ModuleNotFoundError as error:
    if error.name in ("llvmlite", "numba", "numpy", "pyarrow"):
        from walproxy.installation import pip_install

        raise ImportError(f"pgwal needs {error.name}, which is not installed: {pip_install('decoder')}") from error
    raise

__all__ = [
    "VIEWS",
    "ArchiveRefused",
    "Bound",
    "ConfigurationError",
    "Extent",
    "SourceCorrupt",
    "SourceUnavailable",
    "Wal",
    "WalMissing",
    "WalproxyError",
    "arrow_schema",
    "format_lsn",
    "open",
    "parse_lsn",
]
