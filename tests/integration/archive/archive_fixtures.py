"""An archive for a test: what writes into it, what reads it, and a way behind its back."""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from safekeeper.archive.fetch import ArchiveReader
from safekeeper.archive.objects import ArchivedFile, segment_file
from safekeeper.archive.store import ObjectStore
from safekeeper.archive.upload import Uploader
from tests.integration.archive.object_stores import ACCESS_KEY, SECRET_KEY, Place, Server

MIB = 1024 * 1024
SYSTEM_ID = 7_531_902_468_013_579_246
CLUSTER_ID = "5e1f0c3a9b7d2486"
TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Archive:
    """One prefix of a server.

    Attributes:
        place: as an operator configures it, perhaps with a relay in between.
    """

    server: Server
    prefix: str
    place: Place

    def store(self, timeout_s: float = TIMEOUT_S) -> ObjectStore:
        """Open it as a process of its own would."""
        return ObjectStore.open(self.place.url, options=self.place.options, timeout_s=timeout_s, makes_folder=True)

    def uploader(
        self,
        *,
        cluster_id: str = CLUSTER_ID,
        system_id: int = SYSTEM_ID,
        segment_size: int = MIB,
        safekeeper_id: int = 1,
        compress: bool = False,
        timeout_s: float = TIMEOUT_S,
    ) -> Uploader:
        return Uploader(
            self.store(timeout_s),
            cluster_id=cluster_id,
            system_id=system_id,
            segment_size=segment_size,
            safekeeper_id=safekeeper_id,
            compress=compress,
        )

    def reader(self) -> ArchiveReader:
        return ArchiveReader(self.store())

    def keys(self) -> list[str]:
        """All that is there, apart from what a probe leaves behind."""
        return [key for key in self.server.keys(self.prefix) if not key.startswith("probe/")]

    def contents(self) -> dict[str, bytes]:
        return {key: self.read(key) for key in self.keys()}

    def read(self, key: str) -> bytes:
        return self.server.read(self.prefix, key)

    def write(self, key: str, content: bytes) -> None:
        self.server.write(self.prefix, key, content)

    def remove(self, key: str) -> None:
        self.server.remove(self.prefix, key)


def wal(seed: int, size: int = MIB) -> bytes:
    """Bytes that compress a little, as WAL does. The same seed makes the same bytes."""
    return random.Random(seed).randbytes(size // 2) + bytes(size - size // 2)


def segment(number: int, tli: int = 1, size: int = MIB) -> ArchivedFile:
    return segment_file(tli, number * size, size)


def confirmed(archive: Archive, segment_size: int = MIB) -> set[ArchivedFile]:
    """What has a receipt, after a check that nothing in the archive contradicts itself."""
    listing = archive.uploader(segment_size=segment_size).listing()
    assert (listing.conflicts, listing.lost, listing.strangers) == ([], [], [])
    return {archived.file for archived in listing.objects}


@contextmanager
def credentials() -> Iterator[None]:
    """The environment that S3 needs, and nothing of the credentials of the user who runs the tests."""
    with pytest.MonkeyPatch.context() as environment:
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION"):
            environment.delenv(name, raising=False)
        environment.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        environment.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
        yield


def at_once(*actions: Callable[[], object]) -> list[object]:
    """Run all of them at once, each in a thread, and return what each returned or raised."""
    outcomes: list[object] = [None] * len(actions)
    barrier = threading.Barrier(len(actions))

    def run(index: int, action: Callable[[], object]) -> None:
        barrier.wait(TIMEOUT_S)
        try:
            outcomes[index] = action()
        except Exception as error:
            outcomes[index] = error

    threads = [threading.Thread(target=run, args=each) for each in enumerate(actions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes
