"""`walproxy pipeline apply`: tables that follow the tables of a database."""

import logging
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Final

import click

from safekeeper.base import logs
from safekeeper.base.errors import ConfigurationError
from safekeeper.base.networks import Networks
from safekeeper.base.settings import Address
from safekeeper.process.credential_files import http_access, https
from walproxy.cli.configuration import APPLY
from walproxy.cli.parameters import ADDRESS, DURATION, HOST_NAMES, NETWORKS, SIZE
from walproxy.cli.pipeline_commands.keys import KeyedCommand, iceberg_catalog, key, keys_options, lake_options
from walproxy.pipeline.cdc.publication import parse_table
from walproxy.pipeline.cdc.safe_lsn import SafeLsn
from walproxy.pipeline.choices import (
    ARRAY_COLUMNS,
    COPY_RANGE_BYTES,
    COPY_SESSIONS,
    COPY_SESSIONS_MAX,
    FOLLOWING_MODES,
    ON_BAD_VALUE,
    TABLE_FORMATS,
    ArrayColumns,
    FollowingMode,
    OnBadValue,
    TableFormat,
)

_MAX_RETAINED_MIN_BYTES: Final = 64 << 20  # four segments
_COPY_RANGE_MIN_BYTES: Final = 1 << 20


@click.command(cls=KeyedCommand, role=APPLY)
@click.option(
    "--primary", envvar="WALPROXY_PRIMARY", required=True, metavar="CONNINFO", help="The primary, and its database."
)
@click.option("--slot", required=True, metavar="NAME", help="The logical slot, used by this job only.")
@click.option("--publication", "publications", required=True, multiple=True, metavar="NAME", help="Can be repeated.")
@click.option("--to", required=True, metavar="DIR|URL", help="The folder of the tables, or s3://, gs:// or az://.")
@lake_options
@iceberg_catalog
@click.option(
    "--format",
    "table_format",
    type=click.Choice(TABLE_FORMATS),
    help="Format of new tables; by default delta, or iceberg if a catalog is given.",
)
@click.option(
    "--mode",
    type=click.Choice(FOLLOWING_MODES),
    default="mirror",
    show_default=True,
    help="What the tables keep: the rows of the source; every change as a row; or its rows, and deleted ones with a "
    "mark.",
)
@click.option(
    "--table", "tables", multiple=True, metavar="SCHEMA.NAME", help="Follow only this table; can be repeated."
)
@key(
    "text_column",
    multiple=True,
    metavar="SCHEMA.TABLE.COLUMN",
    help="Keep this column as PostgreSQL prints it; can be repeated.",
)
@key(
    "arrays",
    type=click.Choice(ARRAY_COLUMNS),
    help="Store arrays of built-in types as lists, or as PostgreSQL prints them; by default as so far, lists in a new "
    "job. A change copies tables with arrays again.",
)
@click.option("--once", is_flag=True, help="End when the tables contain all changes that are on the quorum now.")
@key("interval", type=DURATION, default="5s", help="Interval between steps.")
@click.option(
    "--status", metavar="SOURCE", help="Source of the quorum's position: walproxy's URL, standby:NAME, or none."
)
@key("max_bytes", type=SIZE, default="256MB", help="Amount of WAL that one step reads.")
@key("memory", type=SIZE, default="128MB", help="Memory for changes.")
@key("keep", type=DURATION, default="1d", help="Time for which old states can be read.")
@click.option("--copy-again", multiple=True, metavar="SCHEMA.NAME", help="Copy this table again; can be repeated.")
@key(
    "copy_sessions",
    type=click.IntRange(1, COPY_SESSIONS_MAX),
    default=COPY_SESSIONS,
    help="Sessions that copy tables, or ranges of a large one, at the same time.",
)
@key(
    "copy_range_size",
    type=SIZE,
    default=f"{COPY_RANGE_BYTES >> 20}MB",
    help="Size of the ranges of a large table: each becomes a file, which a restarted job keeps.",
)
@click.option("--start-over", is_flag=True, help="Copy all tables again, with a new slot if it is missing.")
@key(
    "on_bad_value",
    type=click.Choice(ON_BAD_VALUE),
    default="stop",
    help="Handling of infinity, NaN and other values that a column's type cannot store; stop quarantines the table.",
)
@key(
    "max_retained",
    type=SIZE,
    metavar="SIZE",
    help="WAL that the slot may retain on the primary; above it the slot is created again and all tables are copied.",
)
@click.option("--http-listen", type=ADDRESS, help="Address on which to serve /status, /metrics and /readyz.")
@key("http_tls", type=bool, default=False, help="Serve HTTPS with tls_cert and tls_key.")
@key("tls_cert", type=click.Path(path_type=Path), metavar="FILE", help="Certificate of HTTPS.")
@key("tls_key", type=click.Path(path_type=Path), metavar="FILE", help="Private key of the certificate.")
@key("http_allow", type=NETWORKS, help="Networks from which HTTP is accepted.")
@key("http_hosts", type=HOST_NAMES, default="", help="Host names of HTTP, besides IP addresses and localhost.")
@key("http_password_file", type=click.Path(path_type=Path), metavar="FILE", help="File of the password for HTTP.")
@click.option("--verify", is_flag=True, help="Catch up, compare all rows with the source, and end.")
@click.option("--repair", is_flag=True, help="As --verify, and copy tables that differ again.")
@keys_options
def apply(
    primary: str,
    slot: str,
    publications: tuple[str, ...],
    to: str,
    lake_options: Mapping[str, str],
    iceberg_catalog: Mapping[str, str],
    table_format: TableFormat | None,
    mode: FollowingMode,
    tables: tuple[str, ...],
    text_column: tuple[str, ...],
    arrays: ArrayColumns | None,
    once: bool,
    interval: float,
    status: str | None,
    max_bytes: int,
    memory: int,
    keep: float,
    copy_again: tuple[str, ...],
    copy_sessions: int,
    copy_range_size: int,
    start_over: bool,
    on_bad_value: OnBadValue,
    max_retained: int | None,
    http_listen: Address | None,
    http_tls: bool,
    tls_cert: Path | None,
    tls_key: Path | None,
    http_allow: Networks | None,
    http_hosts: frozenset[str],
    http_password_file: Path | None,
    verify: bool,
    repair: bool,
) -> None:
    """Replicate tables of a database into lakehouse tables.

    The first time the tables are copied; then every change is put into them, exactly once, and only when it is on
    the quorum. Each table of the source becomes one here, named SCHEMA.NAME. With --mode mirror, a table has the rows
    of its source; with append, a row for each change, with _op, _commit_lsn, _commit_time and _sequence; with
    soft-delete, also the rows that were deleted, with _deleted and _deleted_at. A table that cannot be followed is
    quarantined, and the others continue. Stop the job at any time, with kill -9 too, and start it again. Publication
    and slot: `walproxy pipeline cdc create`; a missing slot is created.

    \b
    Examples:
      walproxy pipeline apply --primary "host=db1 dbname=shop" --slot lake --publication lake --to /lake/shop
      walproxy pipeline apply ... --to /lake/shop --format iceberg --once
      walproxy pipeline apply ... --to s3://bucket/shop -c lake_options=region=eu-central-1
      walproxy pipeline apply ... --to s3://bucket/shop -c iceberg_catalog=uri=https://catalog.example
      walproxy pipeline apply ... --to /lake/history --mode append
      walproxy pipeline apply ... --to /lake/archive --mode soft-delete --format iceberg
      walproxy pipeline apply ... --to /lake/shop --verify
    """
    logs.configure(lambda: "walproxy pipeline apply", "warning")
    logging.getLogger("walproxy").setLevel(logging.INFO)
    for name in text_column:
        if name.count(".") < 2:
            raise ConfigurationError(f"text_column: {name!r} is not a column: write schema.table.column")
    SafeLsn(status)
    if max_retained is not None and max_retained < _MAX_RETAINED_MIN_BYTES:
        raise ConfigurationError(
            f"max_retained: the minimum is {_MAX_RETAINED_MIN_BYTES >> 20} MB, which a slot always retains"
        )
    if copy_range_size < _COPY_RANGE_MIN_BYTES:
        raise ConfigurationError(f"copy_range_size: the minimum is {_COPY_RANGE_MIN_BYTES >> 20} MB")
    from walproxy.cli.pipeline_work.apply import ApplyOptions, LakeLocation, apply_until_signal, verify_once

    options = ApplyOptions(
        primary,
        slot,
        publications,
        LakeLocation.parse(to, lake_options, iceberg_catalog),
        table_format or ("iceberg" if iceberg_catalog else "delta"),
        frozenset(parse_table(table) for table in tables),
        frozenset(text_column),
        frozenset(parse_table(table) for table in copy_again),
        start_over,
        status,
        interval,
        max_bytes,
        memory,
        timedelta(seconds=keep),
        on_bad_value,
        max_retained,
        http_listen=http_listen,
        http_tls=https(http_tls, tls_cert, tls_key),
        http_allow=http_allow,
        http_access=http_access(http_hosts, http_password_file),
        mode=mode,
        arrays=arrays,
        copy_sessions=copy_sessions,
        copy_range_bytes=copy_range_size,
    )
    if verify or repair:
        verify_once(options, repair=repair)
    else:
        apply_until_signal(options, once=once)
