"""Runs a command line: an expected error is one line on stderr and a stable exit code, never a traceback."""

import contextlib
import os
import sys
from typing import NoReturn

import click

from safekeeper.base.errors import EXIT_CONFIGURATION, EXIT_UNEXPECTED, WalproxyError
from safekeeper.base.logs import describe_bug, print_error


def run_command(command: click.Command, program: str, failure_code: int | None = None) -> NoReturn:
    """Run `command` with the arguments of this process, and exit.

    Exit codes are those of safekeeper/base/errors.py; 2 is wrong usage.

    Args:
        failure_code: the exit code of every failure instead, for a caller that assigns meanings to codes.
    """
    try:
        code = command.main(prog_name=program, standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except WalproxyError as error:
        _give_up(program, str(error), failure_code or error.exit_code)
    except click.exceptions.Abort:
        _give_up(program, "interrupted", failure_code or EXIT_UNEXPECTED)
    except click.UsageError as error:
        with contextlib.suppress(OSError):  # Standard error may be a file on a full disk; the exit code still counts.
            error.show()
        sys.exit(failure_code or error.exit_code)
    except click.ClickException as error:
        _give_up(program, error.format_message(), failure_code or EXIT_CONFIGURATION)
    except BrokenPipeError:
        # The reader of standard output has closed it. Python would report that again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(failure_code or EXIT_UNEXPECTED)
    except Exception as error:
        _give_up(program, describe_bug(error), failure_code or EXIT_UNEXPECTED)
    finally:
        _drop_unwritable_lines()


def _drop_unwritable_lines() -> None:
    """Drop lines that standard error did not take because its disk is full: Python 3.11.2 would exit with code 120."""
    if sys.stderr is None:
        return  # The caller has closed it: `2>&-`.
    try:
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def _give_up(program: str, reason: str, exit_code: int) -> NoReturn:
    print_error(program, reason)
    sys.exit(exit_code)
