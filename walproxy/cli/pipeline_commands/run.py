"""`walproxy pipeline run`: tables of WAL, kept up to date."""

from collections.abc import Mapping
from pathlib import Path

import click

from safekeeper.base import logs
from safekeeper.base.lsn import Lsn
from walproxy.cli.configuration import PIPELINE
from walproxy.cli.parameters import DURATION, LSN, SIZE
from walproxy.cli.pipeline_commands.keys import (
    KeyedCommand,
    archive_options,
    iceberg_catalog,
    key,
    keys_options,
    lake_options,
)
from walproxy.pipeline.choices import DEFAULT_TABLES, TABLE_FORMATS, VIEW_NAMES, TableFormat


def _tables(context: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in value.split(",") if name.strip())


def _master(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and value != "yarn" and not value.startswith(("spark://", "k8s://", "local")):
        raise click.BadParameter(f"{value!r} is not spark://HOST:PORT, k8s://URL, yarn or local[N]")
    return value


def _settings(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[tuple[str, str], ...]:
    settings = []
    for value in values:
        name, equals, setting = value.partition("=")
        if not equals or not name.startswith("spark."):
            raise click.BadParameter(f"{value!r} is not spark.NAME=VALUE")
        if name == "spark.master":
            raise click.BadParameter("name the master by the key master")
        settings.append((name, setting))
    return tuple(settings)


@click.command(cls=KeyedCommand, role=PIPELINE, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("source")
@click.option("--to", required=True, metavar="DIR|URL", help="The folder of the tables, or s3://, gs:// or az://.")
@click.option(
    "--format",
    "table_format",
    type=click.Choice(TABLE_FORMATS),
    help="Format of new tables; by default delta. In an object store Iceberg needs a catalog.",
)
@click.option(
    "--tables",
    default=",".join(DEFAULT_TABLES),
    callback=_tables,
    metavar="NAME,...",
    help=f"Tables to write; by default all but {' and '.join(VIEW_NAMES[len(DEFAULT_TABLES) :])}.",
)
@click.option("--once", is_flag=True, help="End when the tables contain the existing WAL.")
@key("interval", default="1s", type=DURATION, help="Interval between batches.")
@key(
    "max_bytes_per_trigger",
    default="256MB",
    type=SIZE,
    help="Maximum amount of WAL in a batch.",
)
@click.option("--start", type=LSN, help="Beginning of new tables; by default the beginning of the WAL.")
@click.option(
    "--timeline",
    type=click.IntRange(1),
    metavar="TLI",
    help="Stay on this timeline; by default promotions are followed.",
)
@click.option("--allow-gaps", is_flag=True, help="Skip WAL that is missing.")
@key(
    "checkpoint",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder for the state of Spark, created again at each start; by default in the folder of the tables.",
)
@key(
    "drain_timeout",
    default="45s",
    type=DURATION,
    help="Time that the present batch has after SIGTERM, before it is cancelled.",
)
@key("cores", type=click.IntRange(1), metavar="N", help="How many cores to use; by default all.")
@key("memory", default="1g", metavar="SIZE", help="Memory of Spark's JVM.")
@key(
    "master",
    callback=_master,
    metavar="URL",
    help="Master of a Spark cluster, e.g. spark://host:7077; by default this machine.",
)
@key(
    "spark_conf",
    multiple=True,
    callback=_settings,
    metavar="NAME=VALUE",
    help="A setting of Spark, e.g. spark.executor.memory=4g; can be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: a line for each batch.")
@archive_options
@lake_options
@iceberg_catalog
@keys_options
def run(
    source: str,
    to: str,
    table_format: TableFormat | None,
    tables: tuple[str, ...],
    once: bool,
    interval: float,
    max_bytes_per_trigger: int,
    start: Lsn | None,
    timeline: int | None,
    allow_gaps: bool,
    checkpoint: Path | None,
    drain_timeout: float,
    cores: int | None,
    memory: str,
    master: str | None,
    spark_conf: tuple[tuple[str, str], ...],
    as_json: bool,
    archive_options: Mapping[str, str],
    lake_options: Mapping[str, str],
    iceberg_catalog: Mapping[str, str],
) -> None:
    """Write WAL into tables, and continue as it grows: every record exactly once, also after a crash.

    SOURCE is a URL of s3://, gs:// or az://, a folder, or safekeeper://HOST:PORT,HOST:PORT. The tables contain
    their position; the same command continues there. After SIGTERM the present batch is finished, within
    drain_timeout.

    \b
    Examples:
      walproxy pipeline run s3://bucket/main --to tables --once
      walproxy pipeline run s3://bucket/main --to s3://bucket/lake -c lake_options=region=eu-central-1
      walproxy pipeline run s3://bucket/main --to s3://bucket/lake -c iceberg_catalog=uri=https://catalog.example
      walproxy pipeline run safekeeper://sk1:5462,sk2:5462 --to tables --format iceberg
      walproxy pipeline run /mnt/archive --to tables --tables transactions,relation_volume --start 5/40000000
      walproxy pipeline run s3://bucket/main --to s3://bucket/lake -c master=spark://host:7077
    """
    from walproxy.cli.pipeline_work.run import LakeLocation, RunConfig, run_and_report

    logs.configure(lambda: "walproxy pipeline run", "warning")
    options = {f"archive.{name}": value for name, value in archive_options.items()}
    if timeline is not None:
        options["timeline"] = str(timeline)
    if allow_gaps:
        options["allowGaps"] = "true"
    config = RunConfig(
        source,
        LakeLocation.parse(to, lake_options, iceberg_catalog),
        table_format,
        tables,
        tuple(options.items()),
        once=once,
        interval_s=interval,
        batch_bytes_max=max_bytes_per_trigger,
        start=start,
        checkpoint=checkpoint.absolute() if checkpoint is not None else None,
        drain_timeout_s=drain_timeout,
        cores=cores,
        memory=memory,
        master=master,
        spark_settings=spark_conf,
    )
    run_and_report(config, as_json=as_json)
