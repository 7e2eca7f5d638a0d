"""`walproxy pipeline cdc`: the publication and the slot from which row changes are read."""

from collections.abc import Mapping
from contextlib import closing

import click
import msgspec

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.lsn import format_lsn
from walproxy.cli.configuration import APPLY
from walproxy.cli.pipeline_commands.keys import KeyedCommand, keys_options, lake_options
from walproxy.pipeline.cdc.publication import (
    create_publication,
    drop_publication,
    parse_table,
    require_publications,
)
from walproxy.pipeline.cdc.published_tables import published_tables
from walproxy.pipeline.cdc.safe_lsn import SafeLsn
from walproxy.pipeline.cdc.server import connect
from walproxy.pipeline.cdc.slot import create_slot, drop_slot, read_slot, usable_slot
from walproxy.proxy.status_table import format_bytes

_primary = click.option(
    "--primary", envvar="WALPROXY_PRIMARY", required=True, metavar="CONNINFO", help="The primary, and its database."
)
_slot = click.option("--slot", required=True, metavar="NAME", help="The logical slot.")


@click.group()
def cdc() -> None:
    """Create, check and drop the publication and the logical slot for row changes.

    A slot retains WAL on the primary from the position of its reader on. Drop a slot that is no longer read.

    \b
    Examples:
      walproxy pipeline cdc create --primary "host=db1 dbname=shop" --slot lake --publication lake --table public.orders
      walproxy pipeline cdc status --primary "host=db1 dbname=shop" --slot lake
      walproxy pipeline cdc drop --primary "host=db1 dbname=shop" --slot lake
    """


@cdc.command()
@_primary
@_slot
@click.option("--publication", required=True, metavar="NAME", help="The publication.")
@click.option(
    "--table",
    "tables",
    multiple=True,
    metavar="SCHEMA.NAME",
    help="A table of it; can be repeated; by default all tables.",
)
def create(primary: str, slot: str, publication: str, tables: tuple[str, ...]) -> None:
    """Create a publication and a slot, if they are missing.

    The publication comes first: the slot sends no changes from before it. Creating the slot waits for the end of
    every open transaction.
    """
    names = [parse_table(table) for table in tables]
    with closing(connect(primary, writes=True)) as connection:
        if create_publication(connection, publication, names):
            click.echo(f"publication {publication} created")
        else:
            absent = set(names) - {each.table for each in published_tables(connection, [publication])}
            if absent:
                raise ConfigurationError(
                    f"publication {publication!r} exists without {min(absent)}: ALTER PUBLICATION ... ADD TABLE"
                )
            click.echo(f"publication {publication} exists")
        if read_slot(connection, slot) is None:
            click.echo(f"slot {slot} created, at {format_lsn(create_slot(connection, slot))}")
        else:
            click.echo(f"slot {slot} exists, at {format_lsn(usable_slot(connection, slot)[1])}")


@cdc.command(cls=KeyedCommand, role=APPLY)
@_primary
@_slot
@click.option("--publication", metavar="NAME", help="Show its tables, too.")
@click.option(
    "--status", metavar="SOURCE", help="Source of the quorum's position: walproxy's URL, standby:NAME, or none."
)
@click.option("--to", metavar="DIR|URL", help="Show the tables of `apply` there, too.")
@lake_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@keys_options
def status(
    primary: str,
    slot: str,
    publication: str | None,
    status: str | None,
    to: str | None,
    lake_options: Mapping[str, str],
    as_json: bool,
) -> None:
    """Report where a slot is, how much WAL it retains, and which tables follow it.

    With --to also the mode of the tables, and how far they are behind the quorum, in bytes and seconds. If the slot
    cannot be read, the error contains the reason. Exit code 1 if a table is quarantined.
    """
    keys: dict[str, list[str]] | None = None
    with closing(connect(primary)) as connection:
        state, confirmed_lsn = usable_slot(connection, slot)
        safe_lsn = SafeLsn(status).read(connection)
        if publication is not None:
            require_publications(connection, [publication])
            keys = {str(each.table): list(each.key) for each in published_tables(connection, [publication])}
    lag_bytes, retained_bytes = max(safe_lsn - confirmed_lsn, 0), state.retained_bytes or 0
    if not as_json:
        click.echo(f"slot {slot}: read up to {format_lsn(confirmed_lsn)}, by process {state.active_pid or '-'}")
        click.echo(f"on the quorum: up to {format_lsn(safe_lsn)}, {format_bytes(lag_bytes)} ahead")
        click.echo(
            f"WAL that it retains on the primary: {format_bytes(retained_bytes)}"
            + (f" ({state.wal_status})" if state.wal_status not in (None, "reserved") else "")
        )
        for name, key in (keys or {}).items():
            click.echo(f"{name}: key {', '.join(key) or 'none'}")
    followed = None
    if to is not None:
        from walproxy.cli.pipeline_work.apply_status import ApplyPosition

        followed = ApplyPosition(to, lake_options, safe_lsn)
    if as_json:
        content = {
            "slot": slot,
            "confirmed_lsn": format_lsn(confirmed_lsn),
            "active_pid": state.active_pid,
            "quorum_lsn": format_lsn(safe_lsn),
            "lag_bytes": lag_bytes,
            "retained_bytes": retained_bytes,
            "wal_status": state.wal_status,
            "keys": keys,
            "apply": None if followed is None else followed.as_json(),
        }
        click.echo(msgspec.json.encode(content).decode())
    elif followed is not None:
        followed.show()
    if followed is not None:
        followed.require_all()


@cdc.command()
@_primary
@_slot
@click.option("--publication", metavar="NAME", help="Drop this publication, too.")
def drop(primary: str, slot: str, publication: str | None) -> None:
    """Drop a slot. Its reader does not receive the changes that it has not read yet."""
    with closing(connect(primary, writes=True)) as connection:
        if read_slot(connection, slot) is None:
            click.echo(f"slot {slot} does not exist")
        else:
            drop_slot(connection, slot)
            click.echo(f"slot {slot} dropped")
        if publication is not None:
            drop_publication(connection, publication)
            click.echo(f"publication {publication} dropped")
