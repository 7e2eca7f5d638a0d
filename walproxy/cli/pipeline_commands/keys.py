"""Keys of a command of click: parameters that are not on the command line, but in the cluster's file.

    @click.command(cls=KeyedCommand, role=APPLY)
    @key("copy_sessions", type=click.IntRange(1, 64), default=2, help="Sessions that copy tables.")

Each is parsed as an option of click is, from -c KEY=VALUE or the command's section of the file, else its default.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from safekeeper.base.cluster_file import Role
from safekeeper.base.errors import ConfigurationError
from safekeeper.base.settings import Given, config_option
from walproxy.cli.configuration import open_cluster_file
from walproxy.cli.parameters import KEY_VALUES, SIZE

_Command = TypeVar("_Command", bound=Callable[..., Any])
_GIVEN = f"{__name__}.given"


class Key(click.Parameter):
    """A parameter that no word of the command line sets."""

    param_type_name = "key"

    def __init__(self, declarations: Sequence[str], *, help: str, **attributes: Any) -> None:
        super().__init__(declarations, **attributes)
        self.help = help

    def _parse_decls(self, decls: Sequence[str], expose_value: bool) -> tuple[str, list[str], list[str]]:
        return decls[0], list(decls), []

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Add nothing."""

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """Return the value as it is passed to the command.

        Raises:
            ConfigurationError: it is not valid; the message begins with its place.
        """
        try:
            return super().process_value(ctx, value)
        except click.BadParameter as error:
            given = ctx.meta.get(_GIVEN, {}).get(self.name)
            raise ConfigurationError(f"{given.place if given else self.name}: {error.message}") from None

    def described(self, ctx: click.Context) -> tuple[str, str]:
        """Return its name and its help."""
        default = f"  [default: {self.default}]" if isinstance(self.default, str | int) and self.default != "" else ""
        return f"{self.name} {self.make_metavar(ctx)}", f"{self.help}{default}"


class KeyedCommand(click.Command):
    """A command with keys.

    Args:
        role: what it reads in the cluster's file.
    """

    def __init__(self, *arguments: Any, role: Role, **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self.role = role

    @property
    def keys(self) -> list[Key]:
        """Its keys."""
        return [each for each in self.params if isinstance(each, Key)]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, and the keys after them."""
        super().format_options(ctx, formatter)
        with formatter.section(f"Keys of [{self.role.section}] in the cluster's file"):
            formatter.write_dl([each.described(ctx) for each in self.keys])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line, and the keys."""
        # Both are processed before the keys, which take their values from there.
        rest = super().parse_args(ctx, args)
        del ctx.params["config"], ctx.params["assignments"]
        return rest


def key(name: str, **attributes: Any) -> Callable[[_Command], _Command]:
    """Add a key to a command; the arguments are those of an option of click."""
    return click.option(name, cls=cast(Any, Key), **attributes)


def archive_options(command: _Command) -> _Command:
    """Add the key of the archive's store."""
    return key(
        "archive_options",
        type=KEY_VALUES,
        default="",
        help="Settings of the archive's store, by obstore's names, e.g. endpoint and region.",
    )(command)


def lake_options(command: _Command) -> _Command:
    """Add the key of the tables' store."""
    return key(
        "lake_options",
        type=KEY_VALUES,
        default="",
        help="Settings of the tables' store, by obstore's names, e.g. endpoint and region.",
    )(command)


def iceberg_catalog(command: _Command) -> _Command:
    """Add the key of the catalog of Iceberg tables."""
    return key(
        "iceberg_catalog",
        type=KEY_VALUES,
        default="",
        help="Catalog of Iceberg tables in an object store, by pyiceberg's names, e.g. uri, and its namespace.",
    )(command)


def query_limits(command: _Command) -> _Command:
    """Add the keys of what DuckDB may use."""
    cores = key("query_cores", type=click.IntRange(1), metavar="N", help="How many cores a query uses; by default all.")
    memory = key(
        "query_memory",
        type=SIZE,
        default="2GB",
        help="Memory limit of a query; larger sorts and sums use temporary files.",
    )
    return cores(memory(command))


def keys_options(command: _Command) -> _Command:
    """Add -c and --config to a command with keys; they are its last options."""
    assignments = click.option(
        "-c",
        "assignments",
        metavar="KEY=VALUE",
        multiple=True,
        is_eager=True,
        callback=_take_assignments,
        help="Set a key of the file for this run; can be repeated.",
    )
    return assignments(config_option(command, is_eager=True, callback=_take_file))


def _take_assignments(context: click.Context, parameter: click.Parameter, written: tuple[str, ...]) -> None:
    command = context.command
    assert isinstance(command, KeyedCommand)
    by_name = {each.name: each for each in command.keys}
    for each in written:
        name, equals, value = each.partition("=")
        if not equals or name not in by_name:
            problem = f"{name} is not a key" if equals else f"{each!r} is not KEY=VALUE"
            raise ConfigurationError(f"-c: {problem}; the keys are {', '.join(by_name)}")
        place, before = f"-c {name}", _given(context).get(name)
        values = before.value if before is not None and before.place == place else ()
        _give(context, name, Given(place, (*values, value) if by_name[name].multiple else value))


def _take_file(context: click.Context, parameter: click.Parameter, config: Path | None) -> None:
    command = context.command
    assert isinstance(command, KeyedCommand)
    file = open_cluster_file(config)
    by_name = {each.name: each for each in command.keys}
    for name, given in file.values(command.role).items() if file is not None else ():
        if name in by_name and name not in _given(context):
            _give(context, name, Given(given.place, _as_written(given.value, by_name[name])))


def _given(context: click.Context) -> dict[str, Given]:
    found: dict[str, Given] = context.meta.setdefault(_GIVEN, {})
    return found


def _give(context: click.Context, name: str, given: Given) -> None:
    _given(context)[name] = given
    context.default_map = {name: each.value for name, each in _given(context).items()}


def _as_written(value: Any, key: Key) -> Any:
    """Return a value of TOML as it would be written on a command line, or a table of texts, which may have commas."""
    if isinstance(value, dict) and key.type is KEY_VALUES:
        return {name: str(each) for name, each in value.items()}
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        parts = tuple(str(each) for each in value)
    else:
        parts = (str(value),)
    return parts if key.multiple else ",".join(parts)
