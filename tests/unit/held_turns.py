"""Turns of a listener's unknown clients that come when the test says so."""

from collections.abc import Callable

from safekeeper.net.turns import Turns


class HeldTurns(Turns):
    """Put it in place of a listener's `turns`, on the loop; accepting goes on.

    Attributes:
        held: the work that waits.
    """

    def __init__(self) -> None:
        super().__init__("clients")
        self.held: list[Callable[[], None]] = []

    def ask(self, host: str, work: Callable[[], None]) -> None:
        self.held.append(work)

    def withdraw(self, host: str, work: Callable[[], None]) -> None:
        if work in self.held:
            self.held.remove(work)

    def release(self) -> None:
        """Do the work that waits."""
        held, self.held = self.held, []
        for work in held:
            work()
