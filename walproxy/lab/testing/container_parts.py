"""The container engine as the tests' clusters use it: containers, a network and a volume, made with testcontainers.

All that is made carries a label with its owner, so that the next cluster removes what a killed test has left. That
is what testcontainers' own reaper is for, too, which is one more image to pull and holds the engine's socket: it is not
started for these containers. Where it runs for others, it takes care of these as well.
"""

import io
import logging
import socket
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import docker
import docker.errors
from docker.models.containers import Container
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer
from testcontainers.core.docker_client import DockerClient, get_docker_host
from testcontainers.core.network import Network
from testcontainers.core.utils import inside_container

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.logs import one_line
from walproxy.lab.testing.engine import ClusterFailed
from walproxy.lab.testing.leftovers import has_ended, owner
from walproxy.lab.unpacking import unpack

LABEL = "walproxy.testing.owner"
LOOPBACK = "127.0.0.1"

_UNIX_SOCKET = "unix:///var/run/docker.sock"
_LOCAL = {"localhost", LOOPBACK, "::1"}

_REMOVAL_S = 20.0
_FREEZE_S = 20.0
_POLL_S = 0.1

_log = logging.getLogger(__name__)


@contextmanager
def engine_errors(what: str) -> Iterator[None]:
    """Turn what the engine's client raises into one line."""
    try:
        yield
    except (docker.errors.DockerException, OSError) as error:
        raise ClusterFailed(f"the container engine could not {what}: {one_line(str(error))}") from error


def engine_answers() -> bool:
    """Return whether there is a container engine."""
    host = get_docker_host() or _UNIX_SOCKET
    if host.startswith("unix://"):
        # Checked by hand first: the client leaks its socket where no engine answers.
        with closing(socket.socket(socket.AF_UNIX)) as probe:
            if probe.connect_ex(host.removeprefix("unix://")) != 0:
                return False
    try:
        DockerClient().client.close()
    except docker.errors.DockerException:
        return False
    return True


def require_image(name: str, hint: str) -> None:
    """Raise ConfigurationError if the engine does not have an image. `hint`: how to get it."""
    with closing(DockerClient().client) as client:
        try:
            client.images.get(name)
        except docker.errors.ImageNotFound:
            raise ConfigurationError(f"the container engine has no image {name}: {hint}") from None


def remove_leftovers() -> None:
    """Remove what carries the label of a process of this machine that has ended.

    What another cluster is removing just now is left to it; what cannot go at all, to the next one.
    """
    with engine_errors("list what a killed test has left"), closing(DockerClient().client) as client:
        labelled: dict[str, Any] = {"filters": {"label": LABEL}}
        containers = client.containers.list(all=True, ignore_removed=True, **labelled)
        left = [(each.labels[LABEL], partial(each.remove, force=True, v=True)) for each in containers]
        left += [(each.attrs["Labels"][LABEL], each.remove) for each in client.networks.list(**labelled)]
        left += [(each.attrs["Labels"][LABEL], each.remove) for each in client.volumes.list(**labelled)]
        for its_owner, remove in left:
            if has_ended(its_owner):
                try:
                    _remove(remove)
                except docker.errors.APIError as error:
                    _log.warning("left to the next cluster: %s", error)


def _remove(remove: Callable[[], None]) -> None:
    """Remove something permanently. The engine frees a network or a volume only a moment after its last container."""
    deadline = time.monotonic() + _REMOVAL_S
    while True:
        try:
            remove()
            return
        except docker.errors.NotFound:
            return
        except docker.errors.APIError:
            if time.monotonic() > deadline:
                raise
        time.sleep(_POLL_S)


def publish_address() -> str:
    """Return the engine's address at which ports are published: its loopback if that is this machine's, else all."""
    if testcontainers_config.tc_host_override in _LOCAL:
        return LOOPBACK
    is_ours = (get_docker_host() or _UNIX_SOCKET).startswith("unix://") and not inside_container()
    return LOOPBACK if is_ours else "0.0.0.0"


def _remove_network(network: Network) -> None:
    """Remove a network, or leave it to the engine's next start if the engine counts an endpoint that does not exist.

    Engines up to 28 at least do that at times (moby issues 42119 and 43286). No test is to fail for it.
    """
    try:
        _remove(network.remove)
    except docker.errors.APIError as error:
        if "active endpoints" not in str(error) or network._docker.client.networks.get(network.name).containers:
            raise
        _log.warning("network %s stays until the engine starts again: %s", network.name, one_line(str(error)))


@contextmanager
def network() -> Iterator[Network]:
    """A network for one cluster."""
    options = {"com.docker.network.bridge.host_binding_ipv4": publish_address()}
    with engine_errors("make a network"):
        made = Network(docker_network_kw={"options": options, "labels": {LABEL: owner()}}).create()
    try:
        yield made
    finally:
        with engine_errors("remove a network"):
            _remove_network(made)
        made._docker.client.close()


@contextmanager
def volume() -> Iterator[str]:
    """A volume for one cluster; its name."""
    with closing(DockerClient().client) as client:
        with engine_errors("make a volume"):
            made = client.volumes.create(labels={LABEL: owner()})
        try:
            yield str(made.name)
        finally:
            with engine_errors("remove a volume"):
                _remove(made.remove)


def new_container(image: str, name: str, within: Network, **options: Any) -> DockerContainer:
    """Return a container that is not made yet; others in the network know it by `name`.

    Args:
        options: what docker.containers.create takes besides.
    """
    container = DockerContainer(image).with_network(within).with_network_aliases(name)
    return container.with_kwargs(labels={LABEL: owner()}, hostname=name, **options)


@contextmanager
def started(container: DockerContainer) -> Iterator[DockerContainer]:
    """Start a container, and remove it with its volumes at the end."""
    try:
        with engine_errors(f"start {container.image}"), _without_reaper():
            container.start()
        yield container
    finally:
        with engine_errors(f"remove a container of {container.image}"):
            container.stop()


@contextmanager
def _without_reaper() -> Iterator[None]:
    before = testcontainers_config.ryuk_disabled
    testcontainers_config.ryuk_disabled = True
    try:
        yield
    finally:
        testcontainers_config.ryuk_disabled = before


def pause(container: Container) -> None:
    """Stop all processes of a container as they are.

    With cgroups of version 1, runc gives up after some 0.3 s if a process is in the kernel all that time, in a flush
    for instance, lets the others go on, and leaves it to its caller to try again (runc pull request 4388).
    """
    deadline = time.monotonic() + _FREEZE_S
    while True:
        try:
            container.pause()
            return
        except docker.errors.APIError as error:
            if "unable to freeze" not in str(error) or time.monotonic() > deadline:
                raise
        time.sleep(_POLL_S)


def put_file(container: Container, path: Path, content: bytes) -> None:
    """Write a small file into a container, whatever state that is in."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        about = tarfile.TarInfo(path.name)
        about.size, about.mode = len(content), 0o644
        tar.addfile(about, io.BytesIO(content))
    container.put_archive(str(path.parent), archive.getvalue())


def copy_folder(container: Container, path: str, to: Path) -> Path:
    """Copy a folder out of a container, whatever state that is in, into the folder `to`; return the copy."""
    stream, _ = container.get_archive(path)
    to.mkdir(parents=True)
    # The engine answers nothing else about a container while somebody has an archive of it half read.
    with closing(stream), tarfile.open(fileobj=_Stream(stream), mode="r|") as tar:
        unpack(tar, to)
    return to / Path(path).name


class _Stream(io.RawIOBase):
    """Pieces of bytes, read as a file."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._rest:
            self._rest = next(self._pieces, b"")
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count
