"""An archive as an input over each kind of object store: a folder, moto's S3 server, and rclone's without ranges."""

import re
from collections.abc import Iterator

import pytest

from safekeeper.base.errors import ArchiveRefused, ConfigurationError
from tests.integration.archive.archive_fixtures import Archive, credentials
from tests.integration.archive.object_stores import SERVERS, Server
from tests.unit.pipeline.foreign_archives import TOOLS, whole_log
from tests.unit.wal_builder import MIB
from tests.unit.wal_places import ArchiveMaker, extend, make_log
from walproxy.pipeline.input.opening import open_input
from walproxy.pipeline.input.pieces import decode_piece, plan_pieces, safe_end
from walproxy.pipeline.input.wal_input import WalInput
from walproxy.wal_sources.source import Extent, LogPath, SourceCorrupt, SourceUnavailable, WalMissing

PATH = LogPath(1, (), MIB)


@pytest.fixture(scope="module", params=SERVERS, ids=lambda kind: kind.name)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with credentials(), request.param() as made:
        yield made


@pytest.fixture
def archive(server: Server, request: pytest.FixtureRequest) -> Archive:
    prefix = "inputs/" + re.sub(r"\W+", "-", request.node.name)
    return Archive(server, prefix, server.place(prefix))


def opened(archive: Archive) -> WalInput:
    return open_input(archive.place.url, archive.place.options)


def starts(wal_input: WalInput, extents: list[Extent]) -> list[int]:
    """Return where the records begin that are there."""
    return [
        int(lsn)
        for piece in plan_pieces(PATH, extents)
        for lsn in decode_piece(wal_input, PATH, piece, workspace=None).lsn
    ]


@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "zstd"])
def test_a_log_is_followed_as_it_is_archived(archive: Archive, compressed: bool) -> None:
    wal = make_log(3 * MIB + 300_000)
    maker = ArchiveMaker(archive.store())
    maker.put_all(wal, compressed=compressed)
    wal_input = opened(archive)
    assert wal_input.log_path() == PATH
    assert wal_input.extents(PATH) == [Extent(MIB, wal.position)]
    assert starts(wal_input, wal_input.extents(PATH)) == [record.start_lsn for record in wal.records]
    for begin_lsn, end_lsn in ((2 * MIB + 99, 2 * MIB + 9000), (2 * MIB + 8192, 3 * MIB + 24), (MIB, wal.position)):
        assert wal_input.read(PATH, begin_lsn, end_lsn).tobytes() == wal.read(begin_lsn, end_lsn)

    before_lsn = wal.position
    extend(wal, 5 * MIB + 400_000)
    maker.put_all(wal, compressed=compressed)
    for info in archive.store().list("wal"):
        if f"{before_lsn:016X}.partial" in info.key:
            archive.remove(info.key)
    assert wal_input.extents(PATH) == [Extent(MIB, wal.position)]
    end_lsn = safe_end(wal_input, PATH, 3 * MIB, wal.position)
    assert wal.position - 40_000 < end_lsn <= wal.position
    assert starts(wal_input, wal_input.extents(PATH)) == [record.start_lsn for record in wal.records]


def test_what_is_missing_is_named(archive: Archive) -> None:
    wal = make_log(4 * MIB)
    maker = ArchiveMaker(archive.store())
    maker.put_segment(wal, MIB)
    maker.put_segment(wal, 3 * MIB)
    wal_input = opened(archive)
    with pytest.raises(WalMissing, match="000000010000000000000002 is missing: no WAL from 0/200000 to 0/300000"):
        plan_pieces(PATH, wal_input.extents(PATH))
    with pytest.raises(WalMissing, match="has no 000000010000000000000002 with the WAL from 0/200000 to 0/200010"):
        wal_input.read(PATH, 2 * MIB, 2 * MIB + 16)


@pytest.mark.parametrize("tool", TOOLS)
def test_an_archive_of_another_tool_is_found_by_its_names(archive: Archive, tool: str) -> None:
    wal = whole_log()
    for key, content in TOOLS[tool].objects(wal, "gz"):
        archive.write(key, content)
    for below in ("", *TOOLS[tool].ancestors[-1:]):
        wal_input = open_input("/".join(filter(None, (archive.place.url, below))), archive.place.options)
        assert wal_input.log_path() == PATH
        assert wal_input.extents(PATH) == [Extent(MIB, 4 * MIB)]
        assert starts(wal_input, wal_input.extents(PATH)) == [record.start_lsn for record in wal.records]
    key, content = next(TOOLS[tool].objects(wal, "gz"))
    archive.write(key, content[:-8])
    with pytest.raises(SourceCorrupt, match=f"{archive.place.url}/{key} cannot be decompressed"):
        opened(archive).read(PATH, MIB, MIB + 16)


def test_plain_segments_in_a_store_are_an_archive_too(archive: Archive) -> None:
    wal = whole_log()
    for key, content in TOOLS["walg"].objects(wal, ""):
        archive.write(key.removeprefix("wal_005/"), content)
    assert starts(opened(archive), [Extent(MIB, 4 * MIB)]) == [record.start_lsn for record in wal.records]


def test_a_place_without_an_archive_is_refused(archive: Archive) -> None:
    archive.write("x/y", b"z")
    with pytest.raises((ArchiveRefused, ConfigurationError), match=r"has (no|neither a) manifest\.json"):
        opened(archive).log_path()


def test_a_store_that_is_gone_is_unavailable_and_not_empty() -> None:
    with credentials():
        wal_input = open_input("s3://bucket/archive", {"endpoint": "http://127.0.0.1:1", "region": "x"})
        with pytest.raises(SourceUnavailable, match=r"could not get s3://bucket/archive/manifest\.json"):
            wal_input.origin()
