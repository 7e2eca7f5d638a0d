"""Promotions of a standby whose restore_command is `walproxy wal-fetch`, whatever state its sources are in.

`Dynasty` is a server and its successors: each promotion makes a standby of the present primary, stops the primary, and
promotes the standby. The primary of the last promotion is the source of the next, so the timelines follow each other.
"""

import contextlib
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from safekeeper.archive.store import ObjectStore
from safekeeper.base.lsn import Lsn
from safekeeper.storage.control_file import DataDirectoryLock
from tests.integration.archive.archive_cluster_fixtures import source_options
from tests.integration.archive.archive_fixtures import credentials
from tests.integration.archive.faulty_relay import FaultyRelay, hang
from tests.integration.archive.object_stores import MotoServer
from tests.integration.restore.restore_fixtures import (
    MIB,
    SETTINGS,
    Past,
    give_to_server,
    make_past,
    make_safekeeper_folder,
    rows,
    up_to,
    walproxy_command,
)
from tests.scratch import scratch_folder
from walproxy.lab.cluster.local_standby import current_lsn, make_standby, wait_until_replayed
from walproxy.postgres.local_server import LocalPostgres, ServerBinaries

LOCAL, ALIVE, REFUSING, HANGING = "local archive", "S3", "S3 that refuses connections", "S3 that hangs"
ARCHIVES: Final = (LOCAL, ALIVE, REFUSING, HANGING)
FREE, IN_USE = "folder free", "folder in use"
FOLDERS: Final = (FREE, IN_USE)
START_S: Final = 60.0
PROMOTION_S: Final = 60
# A closed port.
DEAD_ENDPOINT: Final = "http://127.0.0.1:1"


@dataclass
class Dynasty:
    """A server, those that succeeded it, and where their standbys get WAL from.

    Attributes:
        past: its `server` is the present primary.
        moto: the object store; it has what the local archive has.
        hanging: the same, through a relay that never answers.
        safekeeper_folder: the data folder of a safekeeper with the first timeline's WAL.
    """

    past: Past
    moto: MotoServer
    hanging: FaultyRelay
    safekeeper_folder: Path
    servers: list[LocalPostgres] = field(default_factory=list)

    @property
    def tli(self) -> int:
        """The timeline of the present primary."""
        return len(self.servers)

    def promote(self, archive: str, folder: str) -> None:
        """Promote a standby with these sources; it must end as a whole primary on the next timeline."""
        tli, old = self.tli + 1, self.past.server
        with contextlib.ExitStack() as stack:
            if folder == IN_USE:
                lock = DataDirectoryLock(self.safekeeper_folder)
                stack.callback(lock.release)
                give_to_server(self.safekeeper_folder)
            options = {"restore_command": self._restore_command(archive), **SETTINGS}
            standby = make_standby(old, self.past.folder / f"server{tli}", f"server{tli}", settings=options)
            self.servers.append(standby)
            standby.start(START_S)
            # The archive's part of the open segment is shorter than what the standby has.
            self.past.add_steps(1, switch=False)
            self.archive()
            self.past.add_steps(1, switch=False)
            wait_until_replayed(standby, current_lsn(old))
            old.stop()
            standby.promote(PROMOTION_S)
            self.past.server = standby
            self._assert_it_is_whole(tli)
            # A server that lost its signal file before the end of its promotion would come back on the old timeline.
            standby.restart("immediate")
            self._assert_it_is_whole(tli)

    def archive(self) -> Lsn:
        """Put all WAL of the present primary into the folder and into the object store; return where that ends."""
        end_lsn = self.past.flush_lsn()
        place = self.moto.place("main")
        for store in (None, ObjectStore.open(place.url, options=place.options, makes_folder=True)):
            self.past.archive_up_to(end_lsn, store=store)
        return end_lsn

    def _assert_it_is_whole(self, tli: int) -> None:
        server = self.past.server
        self.past.add_steps(1, switch=False)
        assert rows(server) == up_to(len(self.past.steps))
        parents = [line.split("\t")[0] for line in (server.pg_wal / f"{tli:08X}.history").read_text().splitlines()]
        assert [parent for parent in parents if parent] == [str(each) for each in range(1, tli)]
        [(segment,)] = server.execute("SELECT pg_walfile_name(pg_current_wal_insert_lsn())")
        assert segment.startswith(f"{tli:08X}")

    def _restore_command(self, archive: str) -> str:
        words = [*self._options(archive), "--data-dir", str(self.safekeeper_folder)]
        return f"{walproxy_command(self.past.folder)} wal-fetch %f %p {shlex.join(words)}"

    def _options(self, archive: str) -> list[str]:
        if archive == LOCAL:
            return ["--archive", str(self.past.archive)]
        endpoint = {ALIVE: self.moto.endpoint, HANGING: self.hanging.endpoint, REFUSING: DEAD_ENDPOINT}
        return source_options(self.moto.place("main", endpoint[archive]))


@contextlib.contextmanager
def dynasty(binaries: ServerBinaries) -> Iterator[Dynasty]:
    """A server on timeline 1 with some rows, all archived; everything is gone at the end."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(scratch_folder())
        stack.enter_context(credentials())
        past = make_past(binaries, folder)
        servers = [past.server]
        stack.callback(lambda: [server.close() for server in servers])
        moto = stack.enter_context(MotoServer())
        relay = stack.enter_context(FaultyRelay(moto.endpoint))
        relay.when("", "", hang)
        past.add_steps(2)
        past.add_steps(1, switch=False)
        made = Dynasty(past, moto, relay, folder / "safekeeper", servers)
        end_lsn = made.archive()
        first_lsn = past.steps[0].end_lsn // MIB * MIB
        make_safekeeper_folder(past, made.safekeeper_folder, first_lsn, end_lsn, end_lsn)
        yield made
