"""`walproxy pipeline apply`: options of copies that are not valid, and the bar of a copy."""

import io
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from safekeeper.base.errors import ConfigurationError
from walproxy.cli.pipeline_commands.apply import apply
from walproxy.cli.pipeline_work.apply import copy_bar
from walproxy.pipeline.cdc.apply.parallel_copy import CopyProgress
from walproxy.pipeline.cdc.publication import TableName

WORDS = ("--primary", "host=nowhere", "--slot", "s", "--publication", "p", "--to")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("-c", "copy_range_size=64kB"), "copy_range_size: the minimum is 1 MB"),
        (("-c", "copy_sessions=0"), "-c copy_sessions: 0 is not in the range 1<=x<=64"),
        (("-c", "copy_sessions=65"), "-c copy_sessions: 65 is not in the range 1<=x<=64"),
        (("-c", "copy_sessions=many"), "-c copy_sessions: 'many' is not a valid integer range"),
    ],
)
def test_bad_values_are_one_line(tmp_path: Path, words: tuple[str, str], says: str) -> None:
    result = CliRunner().invoke(apply, [*WORDS, str(tmp_path), *words])
    assert result.exit_code != 0
    line = str(result.exception) if isinstance(result.exception, ConfigurationError) else result.output.splitlines()[-1]
    assert says in line and "\n" not in line


def progress(done: int, ranges: int, name: str = "orders") -> CopyProgress:
    return CopyProgress(TableName("public", name), 1, done, ranges)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_terminal_shows_a_bar_for_each_table_that_has_ranges(is_terminal: bool) -> None:
    shown = io.StringIO()
    with copy_bar(Console(file=shown, force_terminal=is_terminal, width=100)) as on_copy:
        on_copy(progress(0, 0, "small"))
        for done in range(3):
            on_copy(progress(done, 3))
        on_copy(progress(0, 2, "again"))  # The copy before has failed.
        on_copy(progress(2, 2, "again"))
    text = shown.getvalue()
    names = [name for name in ("small", "public.orders", "public.again") if name in text]
    assert names == (["public.orders", "public.again"] if is_terminal else [])
    assert not is_terminal or "2/3" in text
