"""What agents keep on a simulated safekeeper: the product's registry, on a file of the model's disk.

The real safekeepers have it by themselves.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from safekeeper.base.errors import StorageFull
from safekeeper.node.agent_registry import AgentRegistry

if TYPE_CHECKING:
    from safekeeper.consensus.messages import AcceptorMessage
    from tests.simulation.model.safekeeper import SimSafekeeper


class AgentsFile:
    """The file `agents` of a data folder, and the thread that writes it: it is there as a whole, late, or not."""

    def __init__(self, safekeeper: "SimSafekeeper") -> None:
        self._safekeeper = safekeeper
        self._disk, self._life = safekeeper.disk, safekeeper.life

    def load(self, kind: type) -> Any:
        """Return what is in the file."""
        return self._disk.agents

    def store(self, stored: Any) -> None:
        """Replace it.

        Raises:
            StorageFull: there is no room.
        """
        if self._disk.full:
            raise StorageFull("no space left on the virtual disk")
        self._disk.agents = stored

    def submit(self, job: Callable[[], Any], done: Callable[..., None], token: Any = None) -> None:
        """Let the thread do something, unless the process dies before."""
        world = self._safekeeper.world
        delay_s = world.rng.random() * self._safekeeper.flush_delay_s
        world.clock.after(delay_s, self._do, job, done, token)

    def _do(self, job: Callable[[], Any], done: Callable[..., None], token: Any) -> None:
        if self._safekeeper.life == self._life:
            try:
                job()
            except StorageFull as error:
                done(token, None, error)
            else:
                done(token, None, None)


def new_registry(safekeeper: "SimSafekeeper", send: "Callable[[int, AcceptorMessage], None]") -> AgentRegistry:
    """Return the registry of a safekeeper that starts."""
    assert safekeeper.acceptor is not None  # it starts
    file: Any = AgentsFile(safekeeper)
    return AgentRegistry(safekeeper.acceptor, file, file, send, lambda: safekeeper.clock.now)
