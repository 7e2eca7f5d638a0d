"""Tables of commands: complete in a pipe, fitted to the width of a terminal."""

import io

from rich.console import Console
from rich.text import Text

from walproxy.terminal import Fit, FittedTable, TableColumn

COLUMNS = (
    TableColumn("xid", is_right=True),
    TableColumn("end"),
    TableColumn("kind", leaves=1),
    TableColumn("session", leaves=2, fit=Fit.WRAP),
    TableColumn("query", leaves=3, fit=Fit.SHORTEN),
)
QUERY = "INSERT INTO orders SELECT * FROM [bold]carts WHERE " + " AND ".join(f"column_{n} = {n}" for n in range(40))
ROW = ("4123456789", "1A/FF000028", "commit_prepared", "ann shop 10.0.0.1", QUERY)


def shown(width: int, *, is_terminal: bool) -> list[str]:
    table = FittedTable(COLUMNS)
    table.add_row(*ROW)
    table.add_row(Text("7", style="red"), "-", "commit", "two\nlines", "-")
    console = Console(file=io.StringIO(), width=width, force_terminal=is_terminal, color_system=None, highlight=False)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_without_a_terminal_each_row_is_one_line_with_all_values_whatever_the_width() -> None:
    lines = shown(1_000_000, is_terminal=False)
    assert lines[0].split() == ["xid", "end", "kind", "session", "query"]
    assert lines[1] == "  ".join(ROW)
    assert lines[2].split(maxsplit=3) == ["7", "-", "commit", "two; lines         -"]
    assert len(lines) == 3


def test_a_narrow_terminal_leaves_out_columns_in_their_order_and_names_them() -> None:
    for width, missing in ((110, ""), (80, "kind"), (50, "kind, session"), (30, "kind, session, query")):
        lines = shown(width, is_terminal=True)
        assert max(map(len, lines)) <= width
        assert any("4123456789" in line and "1A/FF000028" in line for line in lines), (width, lines)
        assert (f"not shown in {width} columns: {missing}" in " ".join(lines)) == bool(missing)


def test_a_text_gets_what_the_other_columns_leave_and_ends_in_an_ellipsis() -> None:
    for width in (80, 120, 200):
        (row,) = (line for line in shown(width, is_terminal=True) if "4123456789" in line)
        assert row.endswith("…") and len(row) == width
        assert row.split("  ")[-1][:-1] in QUERY
    # Of a terminal that is wide enough nothing is cut.
    assert any(line.rstrip().endswith(QUERY) for line in shown(1000, is_terminal=True))
