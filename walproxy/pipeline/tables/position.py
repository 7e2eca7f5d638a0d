"""Rule X1 of docs/design/invariants.md: a commit names the position that its writer believes the table has.

The position is part of the table. A format reads it together with the state of the table that it commits against: if
anything else is committed in between, the commit fails, and the position is read and compared again. Then the locks of
jobs are not needed for rows to be there once; they only report a second job earlier.
"""

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
