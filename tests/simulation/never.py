"""Points of `sometimes` that no run of the simulator reaches, each with the reason."""

from tests.simulation.sometimes import Explained

_SHELL = "no part of the pure runs: the simulation opens WalStorage itself; tests/unit/storage"
_CONFIGURED = "the text of an option that is wrong: tests/unit"

EXPLAINED: tuple[Explained, ...] = (
    Explained("safekeeper/storage/data_folder.py", "", "", _SHELL),
    Explained("safekeeper/storage/control_file.py", "", "", _SHELL),
    Explained("safekeeper/storage/event_file.py", "", "", _SHELL),
    Explained("safekeeper/storage/disk_space.py", "", "", _SHELL),
    Explained("safekeeper/storage/inspection.py", "", "", "commands on the folder of a stopped safekeeper"),
)
