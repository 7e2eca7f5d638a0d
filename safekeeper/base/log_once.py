"""A condition for lines that repeat: the same text is logged once. Pure.

`ProblemLog` of logs.py logs by itself, and again after an interval; this class only decides.
"""


class LogOnce:
    """The last text that was logged on one subject; empty if none was, or if it no longer applies."""

    __slots__ = ("logged",)

    def __init__(self) -> None:
        self.logged = ""

    def is_new(self, text: str) -> bool:
        """Return whether `text` differs from the last logged one, and record it as logged."""
        if text == self.logged:
            return False
        self.logged = text
        return True

    def reset(self) -> None:
        """Allow the same text to be logged again, because its subject no longer applied meanwhile."""
        self.logged = ""
