"""Tables that commands print: complete where a program reads them, fitted to the width where a person does.

A pipe or a file has no width: each row is one line with all values. A terminal has one: the least important columns are
left out, and a line below names them; only then is a text, such as a query, shortened or wrapped. A value that is
copied, such as an LSN, is never cut.
"""

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Final, NamedTuple

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

_WIDTH_OF_PIPE: Final = 1_000_000
_TEXT_WIDTH_MIN: Final = 20
"""A column of text that would get less is not readable; another column is left out instead."""

_GAP: Final = 2
_SEPARATOR: Final = "  "


class Fit(Enum):
    """What happens to a column that is wider than the rest of the terminal."""

    WHOLE = "whole"  # Nothing: other columns are left out.
    SHORTEN = "shorten"  # It ends in an ellipsis.
    WRAP = "wrap"  # It continues on the next line.


class TableColumn(NamedTuple):
    """A column of a table.

    Attributes:
        leaves: its place in the order in which columns are left out, 1 for the first; 0: never.
    """

    name: str
    leaves: int = 0
    fit: Fit = Fit.WHOLE
    is_right: bool = False


def output_console(*, stderr: bool = False) -> Console:
    """Return the console of standard output or standard error, without a width if that is not a terminal."""
    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH_OF_PIPE
    return console


class FittedTable:
    """A table that rich prints as the module's text describes. Control characters in cells are the caller's matter."""

    def __init__(self, columns: Sequence[TableColumn]) -> None:
        self._columns = columns
        self._rows: list[tuple[Text, ...]] = []

    def add_row(self, *cells: str | Text) -> None:
        """Add a row, with a cell for each column; a str is plain text, not markup."""
        assert len(cells) == len(self._columns)  # by the caller's construction
        self._rows.append(tuple(cell if isinstance(cell, Text) else Text(cell) for cell in cells))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table for this output."""
        if options.is_terminal:
            yield from self._fitted(options.max_width)
        else:
            yield from self._lines()

    def _lines(self) -> Iterator[Text]:
        """Yield the header and the rows with all columns, each as one line without blanks at its end."""
        rows = [tuple(column.name for column in self._columns)]
        rows += [tuple(cell.plain.replace("\n", "; ") for cell in row) for row in self._rows]
        widths = [max(map(cell_len, cells)) for cells in zip(*rows, strict=True)]
        for row in rows:
            padded = []
            for cell, width, column in zip(row, widths, self._columns, strict=True):
                blanks = " " * (width - cell_len(cell))
                padded.append(blanks + cell if column.is_right else cell + blanks)
            yield Text(_SEPARATOR.join(padded).rstrip(), no_wrap=True, overflow="ignore")

    def _fitted(self, width: int) -> Iterator[RenderableType]:
        """Yield the table in at most `width` columns of the terminal, and the names of what it leaves out."""
        whole = [self._whole_width(place) for place in range(len(self._columns))]
        shown = list(range(len(self._columns)))
        leaving = sorted((column.leaves, place) for place, column in enumerate(self._columns) if column.leaves)
        while leaving and sum(self._needed(place, whole) + _GAP for place in shown) - _GAP > width:
            shown.remove(leaving.pop(0)[1])
        rooms = self._rooms(shown, whole, width)
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
        for place in shown:
            column = self._columns[place]
            table.add_column(
                column.name,
                justify="right" if column.is_right else "left",
                no_wrap=column.fit is Fit.SHORTEN,
                # A value that does not fit even so is continued below: it can still be copied.
                overflow="ellipsis" if column.fit is Fit.SHORTEN else "fold",
                max_width=rooms[place],
            )
        for row in self._rows:
            table.add_row(*(row[place] for place in shown))
        yield table
        missing = [column.name for place, column in enumerate(self._columns) if place not in shown]
        if missing:
            yield Text(f"not shown in {width} columns: {', '.join(missing)}", style="dim")

    def _whole_width(self, place: int) -> int:
        lines = (line for row in self._rows for line in row[place].plain.split("\n"))
        return max(map(cell_len, (self._columns[place].name, *lines)))

    def _needed(self, place: int, whole: list[int]) -> int:
        """Return the width without which a column is not shown."""
        return whole[place] if self._columns[place].fit is Fit.WHOLE else min(whole[place], _TEXT_WIDTH_MIN)

    def _rooms(self, shown: list[int], whole: list[int], width: int) -> dict[int, int]:
        """Return the greatest width of each shown column; columns of text share what the others leave."""
        rooms = {place: whole[place] for place in shown if self._columns[place].fit is Fit.WHOLE}
        texts = sorted((place for place in shown if place not in rooms), key=lambda place: whole[place])
        rest = width - sum(rooms.values()) - _GAP * (len(shown) - 1)
        for number, place in enumerate(texts):
            share = max(self._needed(place, whole), rest // (len(texts) - number))
            rooms[place] = min(whole[place], share)
            rest -= rooms[place]
        return rooms
