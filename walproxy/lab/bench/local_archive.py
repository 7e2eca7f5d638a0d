"""An archive in a local folder that can die and come back."""

from pathlib import Path
from shutil import rmtree

from safekeeper.base.errors import WalproxyError

_ATTEMPTS = 100


class LocalArchive:
    """A folder that safekeepers archive into. While it is dead, a file is in its place, so that every access fails.

    Attributes:
        directory: what safekeepers get as --archive.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._away = directory.with_name(f"{directory.name}.away")

    def options(self, partial_interval_s: float) -> tuple[str, ...]:
        """Return the options with which a safekeeper archives here."""
        return "--archive", str(self.directory), "--archive-partial-interval", str(partial_interval_s)

    def die(self) -> None:
        """Take it away.

        Raises:
            WalproxyError: safekeepers create it again each time.
        """
        self.directory.rename(self._away)
        for _ in range(_ATTEMPTS):
            try:
                self.directory.touch(exist_ok=False)
            except FileExistsError:
                # An upload that had begun has made the folder again, for an object that does not count.
                rmtree(self.directory, ignore_errors=True)
            else:
                return
        raise WalproxyError(f"could not put a file in the place of the archive {self.directory}")

    def revive(self) -> None:
        """Bring it back as it was."""
        self.directory.unlink()
        self._away.rename(self.directory)
