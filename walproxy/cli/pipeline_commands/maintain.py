"""`walproxy pipeline maintain`: fewer and larger files, and an end to what is old."""

import sys
from collections.abc import Mapping

import click

from safekeeper.base import logs
from safekeeper.base.errors import EXIT_FINE, EXIT_UNEXPECTED
from walproxy.cli.configuration import PIPELINE
from walproxy.cli.parameters import DURATION, SIZE
from walproxy.cli.pipeline_commands.keys import KeyedCommand, iceberg_catalog, key, keys_options, lake_options


@click.command(cls=KeyedCommand, role=PIPELINE, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("place", metavar="DIR|URL")
@click.option("--table", "names", multiple=True, metavar="NAME", help="Only this table; can be given several times.")
@key("target_size", default="128MB", type=SIZE, help="Size of the files that are made of small ones.")
@click.option("--keep", default="7d", show_default=True, type=DURATION, help="Time for which old states can be read.")
@key(
    "orphans_after",
    default="1d",
    type=DURATION,
    help="Age at which files of killed tasks are removed; more than the time of any batch.",
)
@click.option("--dry-run", is_flag=True, help="Only print what would be done.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@lake_options
@iceberg_catalog
@keys_options
def maintain(
    place: str,
    names: tuple[str, ...],
    target_size: int,
    keep: float,
    orphans_after: float,
    dry_run: bool,
    as_json: bool,
    lake_options: Mapping[str, str],
    iceberg_catalog: Mapping[str, str],
) -> None:
    """Merge small files of tables into large ones, and remove what is old: files, snapshots, entries of logs.

    No row is lost or doubled, and jobs that write to the tables can continue. Run it once an hour beside a job with
    batches of seconds. The exit code is 1 if something could not be done.

    \b
    Examples:
      walproxy pipeline maintain tables
      walproxy pipeline maintain s3://bucket/lake -c lake_options=region=eu-central-1
      walproxy pipeline maintain tables --table records --keep 2d --dry-run -c target_size=512MB
    """
    logs.configure(lambda: "walproxy pipeline maintain", "warning")
    from walproxy.cli.pipeline_work.maintain import LakeLocation, maintain_and_print

    location = LakeLocation.parse(place, lake_options, iceberg_catalog)
    is_done = maintain_and_print(location, names, target_size, keep, orphans_after, dry_run=dry_run, as_json=as_json)
    sys.exit(EXIT_FINE if is_done else EXIT_UNEXPECTED)
