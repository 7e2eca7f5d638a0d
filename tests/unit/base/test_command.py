"""What a command that fails prints, and its exit code, when standard output cannot be written either."""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

DEADLINE_S = 30.0
# A layer in between converts what it does not know, as that of Spark does.
PROGRAM = """
import click
from safekeeper.base.command import run_command
from safekeeper.base.errors import Fenced

@click.command()
@click.argument("what")
def command(what):
    if what == "converted":
        try:
            print("a row", flush=True)
        except OSError as error:
            raise Fenced(f"the stream ended: {type(error).__name__}") from error
    print("a row")
    if what == "usage":
        raise click.UsageError("no such row")
    if what == "abort":
        raise click.Abort
    if what == "bug":
        raise ValueError("a bug")
    raise Fenced("another proxy has taken over")

run_command(command, "program")
"""


def run(what: str, *, stdout: int) -> tuple[int, str]:
    """Return the exit code, and standard error."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, what], stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=DEADLINE_S
    )
    return done.returncode, done.stderr


def run_to_full_disk(what: str) -> tuple[int, str]:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        return run(what, stdout=full)
    finally:
        os.close(full)


def run_to_nobody(what: str) -> tuple[int, str]:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return run(what, stdout=writer)
    finally:
        os.close(writer)


def test_an_output_that_failed_is_the_reason_also_if_a_layer_in_between_gives_another() -> None:
    reason = "program: could not write to standard output: No space left on device\n"
    assert run_to_full_disk("converted") == (1, reason)


def test_a_reader_that_has_enough_ends_a_command_quietly_also_if_a_layer_in_between_gives_a_reason() -> None:
    assert run_to_nobody("converted") == (1, "")


@pytest.mark.parametrize("run_it", [run_to_full_disk, run_to_nobody])
@pytest.mark.parametrize(
    ("what", "code", "reason"),
    [
        ("fenced", 5, "another proxy has taken over"),
        ("usage", 2, "no such row"),
        ("abort", 1, "interrupted"),
        ("bug", 1, "a bug"),
    ],
)
def test_rows_that_were_not_written_yet_when_a_command_failed_do_not_change_its_reason_and_exit_code(
    run_it: Callable[[str], tuple[int, str]], what: str, code: int, reason: str
) -> None:
    found, printed = run_it(what)
    assert found == code
    assert reason in printed and "Exception ignored" not in printed
