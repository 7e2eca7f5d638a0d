"""What the checkers raise."""


class Violation(Exception):
    """An invariant does not hold. `invariant` is its name in docs/design/invariants.md."""

    def __init__(self, invariant: str, text: str) -> None:
        super().__init__(f"{invariant}: {text}")
        self.invariant = invariant
