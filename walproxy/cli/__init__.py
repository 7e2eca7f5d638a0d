"""The command line of walproxy. Each command's module parses, calls, prints; this one ends the process.

An expected error is one line on stderr and an exit code of safekeeper/errors.py; a traceback is a bug.
"""

import click

from safekeeper.command import run_command
from walproxy import __version__
from walproxy.cli.bench import bench
from walproxy.cli.demo import demo
from walproxy.cli.rebootstrap import rebootstrap
from walproxy.cli.run import run
from walproxy.cli.status import status


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="walproxy")
def cli() -> None:
    """Zero-loss commits for a stock PostgreSQL: its WAL on a quorum of safekeepers before COMMIT returns."""


for _command in (run, status, demo, rebootstrap, bench):
    cli.add_command(_command)


def main() -> None:
    """Run the command line, and exit with the code that says how it went."""
    run_command(cli, "walproxy")
