"""`walproxy pipeline`: WAL as tables; its commands are imported as those of walproxy/cli are.

The libraries that they need come with an extra, and Spark needs Java. A command that lacks one of them ends with an
error of one line; `--help` and the list of commands need none.
"""

import importlib
from typing import Any, Final

import click

from walproxy.cli.extras import missing_extra_is_one_line

_EXTRA: Final = ("the pipeline", "pipeline")

_COMMANDS: Final[dict[str, str]] = {
    "run": "write WAL into tables, and continue as it grows",
    "query": "query the tables with SQL",
    "report": "show what wrote the WAL, as an HTML page",
    "waldump": "show records of the WAL, as pg_waldump does",
    "maintain": "merge small files of tables, remove what is old",
    "page": "restore a page of a table as it was",
    "catalog": "write the names of relations into a file",
    "cdc": "publication and slot for row changes",
    "apply": "keep tables as the tables of a database are",
}
"""The help of each command, in one line: reading it from the commands would import all their libraries."""


class _Commands(click.Group):
    """Commands that are imported from `walproxy.cli.pipeline_commands.NAME` when they are needed."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        with missing_extra_is_one_line(*_EXTRA):
            command = getattr(importlib.import_module(f"walproxy.cli.pipeline_commands.{name}"), name)
        assert isinstance(command, click.Command)  # by the naming above
        return command

    def invoke(self, context: click.Context) -> Any:
        with missing_extra_is_one_line(*_EXTRA):
            return super().invoke(context)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


def check_pipeline() -> None:
    """Check that the pipeline can be used, before anything is started for it.

    Raises:
        ConfigurationError: a library is missing, or Java.
    """
    with missing_extra_is_one_line(*_EXTRA):
        from walproxy.pipeline.spark_session import find_java
    find_java()


@click.group(cls=_Commands)
def pipeline() -> None:
    """Write WAL from the archive or from safekeepers into tables, and query them with SQL.

    \b
    Examples:
      walproxy pipeline run s3://bucket/main --to tables --once
      walproxy pipeline query "SELECT rmgr, count(*) FROM records GROUP BY rmgr" --tables tables
    """
