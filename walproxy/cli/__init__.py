"""The command line of walproxy. Each command's module parses, calls, prints; this one imports it and ends the process.

A command's module is imported when the command is used: the restart of a proxy must not wait for the libraries of the
demo (0.67 s of CPU time with all commands imported, 0.45 s for `run` alone).
An expected error is one line on stderr and an exit code of safekeeper/base/errors.py; a traceback is a bug.
"""

import importlib
import sys

import click

from safekeeper.base.command import run_command
from safekeeper.base.errors import ConfigurationError
from walproxy.cli.extras import CommandWithoutExtra, missing_extra_is_one_line
from walproxy.failure_codes import failure_code

_COMMANDS = (
    *("run", "status", "levels", "limbo", "events", "check", "members"),
    *("archive", "restore", "wal-fetch", "recovery-end", "rebootstrap"),
    *("failover", "switchover", "ready-to-promote", "discarded", "agent", "cluster"),
    *("demo", "bench", "torture", "pipeline"),
)
_OF_LAB = ("demo", "bench", "torture")


class _Commands(click.Group):
    """Commands that are imported from `walproxy.cli.NAME` when they are used, with `_` for `-` in a name."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        if name not in _OF_LAB:
            return _imported(name)
        try:
            with missing_extra_is_one_line(f"walproxy {name}", "lab"):
                return _imported(name)
        except ConfigurationError as error:
            return CommandWithoutExtra(name, error)


def _imported(name: str) -> click.Command:
    module = name.replace("-", "_")
    command = getattr(importlib.import_module(f"walproxy.cli.{module}"), module)
    assert isinstance(command, click.Command)  # by the naming above
    return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="walproxy", prog_name="walproxy")
def cli() -> None:
    """Zero-loss commits for a stock PostgreSQL: its WAL on a quorum of safekeepers before COMMIT returns."""


def main() -> None:
    """Run the command line, and exit with its code."""
    run_command(cli, "walproxy", failure_code(sys.argv[1:]))
