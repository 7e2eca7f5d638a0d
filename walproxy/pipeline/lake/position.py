"""Rule X1 of docs/design/invariants.md: a commit names the position that its writer believes the table has.

The position is part of the table. A format reads it together with the state of the table that it commits against: if
anything else is committed in between, the commit fails, and the position is read and compared again. Then the locks of
jobs are not needed for rows to be there once; they only report a second job earlier.
"""

from collections.abc import Callable
from typing import NamedTuple

from safekeeper.base.errors import EXIT_CONFIGURATION, WalproxyError


class TableMoved(WalproxyError):
    """Another job has changed the position of a table. Nothing was committed, and nothing is retried."""

    exit_code = EXIT_CONFIGURATION


def require_position(table: object, expected: object, found: object) -> None:
    """Compare the position of a table, None if it has none, with what its writer believes.

    Args:
        table: its name for the message.

    Raises:
        TableMoved: it is another one.
    """
    if found != expected:
        here, there = ("none" if each is None else each for each in (found, expected))
        raise TableMoved(
            f"the table {table} is at position {here}, not {there}: another job writes to it; stop one of the jobs, "
            "nothing was committed"
        )


class After(NamedTuple):
    """What a writer believes to be its last batch in a table.

    Attributes:
        batch: its number; None if the table has none of this writer.
        show: how a message prints a number.
    """

    batch: int | None
    show: Callable[[int], str] = str


class Batch(NamedTuple):
    """A batch that is to be committed.

    Attributes:
        after: the batch that it continues; None if that does not matter.
    """

    writer: str
    number: int
    after: After | None = None

    def is_in(self, last: int | None, table: object) -> bool:
        """Return whether a table has this batch, by the number of the writer's last batch in it.

        Raises:
            TableMoved: it has not, and another process has committed a batch that this one does not know.
        """
        if last == self.number or (self.after is None and last is not None and last > self.number):
            return True
        if self.after is not None:
            expected, found = (
                self.after.show(number) if number is not None else None for number in (self.after.batch, last)
            )
            require_position(table, expected, found)
        return False
