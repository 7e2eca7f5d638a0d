"""Faults inside a promotion, which its own commands raise when a file of their name exists.

They are commands of all hosts in all rounds: the fence of each agent, and PostgreSQL's recovery_end_command, which runs
when the new timeline is chosen and the server is not a primary yet.
"""

from pathlib import Path
from typing import Final

FENCE_FAILS: Final = "fence-fails"
PROMOTION_CRASHES: Final = "promotion-crashes"


class Triggers:
    """The files.

    Args:
        folder: made here; any user may remove files from it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        folder.chmod(0o777)

    def set(self, name: str) -> None:
        """Let a fault happen."""
        (self._folder / name).touch()

    def clear(self) -> None:
        """Let none happen from now on."""
        for path in self._folder.iterdir():
            path.unlink(missing_ok=True)

    @property
    def fence_command(self) -> str:
        """Fails as long as it is to."""
        return f"test ! -e {self._folder / FENCE_FAILS}"

    @property
    def recovery_end_command(self) -> str:
        """Kills one server, the first that comes here."""
        path = self._folder / PROMOTION_CRASHES
        return f"test ! -e {path} || {{ mv {path} {path}.done && kill -9 $(head -n 1 postmaster.pid) && sleep 30; }}"
