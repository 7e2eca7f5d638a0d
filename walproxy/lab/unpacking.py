"""Archives are unpacked here, on each Python that is supported."""

import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def unpack(archive: tarfile.TarFile, to: Path, members: Iterable[tarfile.TarInfo] | None = None) -> None:
    """Unpack an archive, or some members of it, into a folder.

    Raises:
        tarfile.FilterError: a member would leave the folder. Python before 3.11.4, as Debian 12 has it, does not check.
    """
    safely: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    archive.extractall(to, members, **safely)
