"""`walproxy pipeline catalog`: the names of relations, kept for reports on WAL."""

from pathlib import Path

import click

from safekeeper.base.errors import ConfigurationError
from walproxy.pipeline.jobs.catalog import merge, read_snapshot, take_snapshot, write_snapshot


@click.command()
@click.option("--primary", envvar="WALPROXY_PRIMARY", metavar="CONNINFO", help="The server, or a standby of it.")
@click.option(
    "--merge",
    "older",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Add the names of this file, which may have been taken earlier; can be repeated.",
)
@click.option("--output", required=True, type=click.Path(path_type=Path), metavar="FILE", help="The file to write.")
def catalog(primary: str | None, older: tuple[Path, ...], output: Path) -> None:
    """Write the names of all databases, tablespaces and relations into a file.

    WAL contains the numbers of files; a table that is rewritten gets a new one, and only an older file of names
    contains the old one. So write one from time to time, and merge it with the previous one. The role needs the right
    to connect to each database, and nothing else.

    \b
    Examples:
      walproxy pipeline catalog --primary "host=db1 user=report" --output names.json
      walproxy pipeline catalog --primary "host=db1 user=report" --merge names.json --output names.json
    """
    if primary is None and not older:
        raise ConfigurationError("nothing to write: name a server with --primary, or files with --merge")
    snapshots = [read_snapshot(path) for path in older]
    if primary is not None:
        snapshots.append(take_snapshot(primary))
    merged = merge(snapshots)
    write_snapshot(merged, output)
    click.echo(
        f"{output}: {len(merged.relations)} relations in {len(merged.databases)} databases of system {merged.system_id}"
    )
    for name, reason in merged.unread.items():
        if name != "template0":
            click.echo(f"not read: the relations of {name}: {reason}")
