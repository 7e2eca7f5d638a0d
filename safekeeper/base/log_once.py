"""A condition for lines that repeat: the same text is logged once. Pure.

`ProblemLog` of logs.py logs by itself, and again after a while; this only decides.
"""


class LogOnce:
    """The last text that was logged of one thing; empty if nothing was, or if it is over."""

    __slots__ = ("logged",)

    def __init__(self) -> None:
        self.logged = ""

    def is_new(self, text: str) -> bool:
        """Return whether `text` differs from the last logged one, and take it as logged."""
        if text == self.logged:
            return False
        self.logged = text
        return True

    def reset(self) -> None:
        """Let the same text be logged again: what it reported is over."""
        self.logged = ""
