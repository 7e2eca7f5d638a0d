"""Runs a command line: an expected error is one line on stderr and a stable exit code, never a traceback."""

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Any, NoReturn, TextIO

import click

from safekeeper.base.errors import EXIT_CONFIGURATION, EXIT_UNEXPECTED, WalproxyError
from safekeeper.base.logs import describe_bug, print_error


def run_command(command: click.Command, program: str, failure_code: int | None = None) -> NoReturn:
    """Run `command` with the arguments of this process, and exit.

    Exit codes are those of safekeeper/base/errors.py; 2 is wrong usage.

    Args:
        failure_code: the exit code of every failure instead, for a caller that assigns meanings to codes.
    """
    output = _watch_output()
    try:
        with _all_output_is_written():
            code = command.main(prog_name=program, standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except WalproxyError as error:
        if output is not None and output.error is not None:
            # A layer in between, as that of Spark, has converted it: its own reason is wrong.
            _give_up_output(program, output.error, failure_code or EXIT_UNEXPECTED)
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
        # The reader of standard output has closed it.
        _discard_output()
        sys.exit(failure_code or EXIT_UNEXPECTED)
    except Exception as error:
        if output is not None and output.error is error:
            _give_up_output(program, output.error, failure_code or EXIT_UNEXPECTED)
        _give_up(program, describe_bug(error), failure_code or EXIT_UNEXPECTED)
    finally:
        _drop_unwritable(sys.stdout)
        _drop_unwritable(sys.stderr)


class _WatchedOutput(io.FileIO):
    """Standard output. A command that fails because of it has an error like that of any other file.

    Attributes:
        error: why it could not be written, None if it could.
    """

    error: OSError | None = None

    def write(self, data: Any, /) -> int:
        """Write, as FileIO does."""
        try:
            return super().write(data)
        except OSError as error:
            self.error = error
            raise


def _watch_output() -> _WatchedOutput | None:
    """Replace sys.stdout by one that is watched; return None if it is not that of the process, or closed: `>&-`."""
    stdout = sys.stdout
    if stdout is None or stdout is not sys.__stdout__ or not isinstance(stdout, io.TextIOWrapper):
        return None
    watched = _WatchedOutput(stdout.fileno(), "w", closefd=False)
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(watched),
        encoding=stdout.encoding,
        errors=stdout.errors,
        line_buffering=stdout.line_buffering,
        write_through=stdout.write_through,
    )
    return watched


@contextlib.contextmanager
def _all_output_is_written() -> Iterator[None]:
    """Flush standard output at the end of a command: an exit code of success means that it is written."""
    try:
        yield
    except SystemExit:
        _flush_output()
        raise
    _flush_output()


def _flush_output() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def _discard_output() -> None:
    """Discard what is written to standard output: Python would report it when it flushes at exit, with code 120."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _drop_unwritable(stream: TextIO | None) -> None:
    """Drop what a standard stream does not take, e.g. because its disk is full: Python would exit with code 120."""
    if stream is None or stream.closed:
        return  # The caller has closed it: `2>&-`.
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _give_up_output(program: str, error: OSError, exit_code: int) -> NoReturn:
    """Exit because standard output could not be written; quietly if its reader has closed it."""
    _discard_output()
    if isinstance(error, BrokenPipeError):
        sys.exit(exit_code)
    _give_up(program, f"could not write to standard output: {error.strerror or error}", exit_code)


def _give_up(program: str, reason: str, exit_code: int) -> NoReturn:
    print_error(program, reason)
    sys.exit(exit_code)
