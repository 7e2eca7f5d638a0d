"""Mistakes of operators, as faults: lists that differ, copied data folders, proxies of other protocol versions.

Changes of members and sizes, rebootstraps, restored and exchanged folders, and failovers are in faults.py.
"""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from safekeeper.base.errors import ConfigurationError, StorageFailed
from safekeeper.consensus.messages import PROTOCOL_VERSION
from safekeeper.storage.data_folder import DataFolder
from tests.simulation.checks.violation import Violation
from tests.simulation.shells.shell_disk import DIRECTORY, ShellDisk

if TYPE_CHECKING:
    from tests.simulation.model.proxy import SimProxy
    from tests.simulation.model.safekeeper import SimSafekeeper
    from tests.simulation.world.world import World

_OTHER_VERSIONS = (PROTOCOL_VERSION - 2, PROTOCOL_VERSION - 1, PROTOCOL_VERSION + 1, PROTOCOL_VERSION + 2)


class OperatorFaults:
    """The part of `Faults` that this module has."""

    world: "World"
    rng: random.Random

    # Of `Faults`.
    _safekeeper: "Callable[[], SimSafekeeper]"
    _proxy: "Callable[[], SimProxy]"
    _soon: Callable[[], float]

    def shorten_list(self) -> None:
        """Restart a proxy with a list that lacks safekeepers, of which other proxies have all; correct it later."""
        world, proxy = self.world, self._proxy()
        if world.checker.won:
            listed = frozenset(i for i in world.safekeepers if self.rng.random() < 0.6)
            self._restart_with(proxy, listed or frozenset({self._safekeeper().id}), PROTOCOL_VERSION)

    def start_other_version(self) -> None:
        """Start a proxy of another protocol version in the place of one, and later that one again."""
        if self.world.checker.won:
            self._restart_with(self._proxy(), None, self.rng.choice(_OTHER_VERSIONS))

    def _restart_with(self, proxy: "SimProxy", listed: frozenset[int] | None, version: int) -> None:
        proxy.stop()
        proxy.listed, proxy.version = listed, version
        proxy.start()
        self.world.clock.after(2 * self._soon(), self._correct, proxy)

    def _correct(self, proxy: "SimProxy") -> None:
        if not self.world.is_healing:
            proxy.stop()
            proxy.correct()
            proxy.start()

    def copy_folder(self) -> None:
        """Start a safekeeper on a copy of another one's data folder: it must be noticed (the shells do that)."""
        safekeeper, other = self._safekeeper(), self._safekeeper()
        if not isinstance(other.disk, ShellDisk) or other.disk.control is None or safekeeper.id == other.id:
            return
        copy = other.disk.duplicate()
        assert isinstance(copy, ShellDisk)
        copy.on_persist = None
        try:
            DataFolder.open(copy.fs, DIRECTORY, safekeeper.id, self.world.incarnation_of(safekeeper))
        except ConfigurationError:
            self.world.counts.count("copied folders noticed")
        except StorageFailed as error:
            self.world.note(safekeeper.name, "does not start on a copy", error)
        else:
            raise Violation("CopyIsNoticed", f"{safekeeper.name} starts on a copy of the data folder of {other.name}")
