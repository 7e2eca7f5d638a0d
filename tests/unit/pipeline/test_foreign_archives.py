"""Archives of WAL-G, pgBackRest and Barman: read as they were written, or refused with the reason."""

import gzip
import pickle
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from click.testing import CliRunner

from safekeeper.archive.store import ObjectStore
from safekeeper.base.errors import ConfigurationError, WalproxyError
from tests.unit.pipeline.foreign_archives import (
    COMPRESS,
    KINDS,
    TOOLS,
    forked_log,
    segment,
    whole_log,
)
from tests.unit.wal_builder import MIB, WalBuilder
from tests.unit.wal_places import fork, make_log, write_segments
from walproxy.cli.pipeline import pipeline
from walproxy.pipeline.input.foreign.archive import ForeignArchive, Segments
from walproxy.pipeline.input.foreign.codecs import SUFFIXES, read_plain
from walproxy.pipeline.input.foreign.roots import segment_of
from walproxy.pipeline.input.opening import open_input
from walproxy.pipeline.input.pieces import decode_piece, plan_pieces
from walproxy.pipeline.input.wal_input import WalInput
from walproxy.pipeline.source.batch import PgwalReader
from walproxy.pipeline.source.options import SourceOptions
from walproxy.wal_sources.source import Extent, LogPath, Origin, SourceCorrupt, SourceUnavailable, WalMissing

PATH = LogPath(1, (), MIB)
NAMES = [f"{1:08X}{number:016X}" for number in range(1, 4)]


@pytest.fixture(scope="module")
def wal() -> WalBuilder:
    return whole_log()


def store(folder: Path, objects: Iterable[tuple[str, bytes]]) -> str:
    """Write objects as files; return the folder."""
    for key, content in objects:
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return str(folder)


def starts(wal_input: WalInput, path: LogPath) -> list[int]:
    """Return where the records begin that are there."""
    return [
        int(lsn)
        for piece in plan_pieces(path, wal_input.extents(path))
        for lsn in decode_piece(wal_input, path, piece).lsn
    ]


@pytest.mark.parametrize(("tool", "suffix"), KINDS, ids="-".join)
def test_an_archive_is_read_as_it_was_written(tmp_path: Path, wal: WalBuilder, tool: str, suffix: str) -> None:
    wal_input = pickle.loads(pickle.dumps(open_input(store(tmp_path, TOOLS[tool].objects(wal, suffix)))))
    assert wal_input.name == f"the archive {tmp_path}"
    assert wal_input.origin() == Origin(7, MIB)
    assert wal_input.log_path() == PATH
    assert wal_input.extents(PATH) == [Extent(MIB, 4 * MIB)]
    assert starts(wal_input, PATH) == [record.start_lsn for record in wal.records]
    for begin_lsn, end_lsn in ((MIB, 3 * MIB), (2 * MIB - 5, 2 * MIB + 9), (3 * MIB + 8192, 3 * MIB + 16384)):
        assert wal_input.read(PATH, begin_lsn, end_lsn).tobytes() == wal.read(begin_lsn, end_lsn)


@pytest.mark.parametrize(("tool", "below"), [(tool, below) for tool in TOOLS for below in TOOLS[tool].ancestors])
def test_each_folder_of_an_archive_names_it(tmp_path: Path, wal: WalBuilder, tool: str, below: str) -> None:
    store(tmp_path, TOOLS[tool].objects(wal, "gz"))
    if below == "archive":
        with pytest.raises(ConfigurationError, match=r"has neither a manifest\.json nor segments of WAL"):
            open_input(str(tmp_path / below)).origin()
    else:
        assert open_input(f"file://{tmp_path / below}").extents(PATH) == [Extent(MIB, 4 * MIB)]


@pytest.mark.parametrize("tool", TOOLS)
def test_other_files_of_the_tools_are_not_segments(tmp_path: Path, wal: WalBuilder, tool: str) -> None:
    objects = dict(TOOLS[tool].objects(wal, "gz"))
    beside = next(iter(objects)).rpartition("/")[0]
    for name in (
        f"{NAMES[2]}.00000028.backup.gz",
        f"{NAMES[2]}.00000028.backup",
        f"{NAMES[2]}.00000028.backup.lz4.gpg",
        f"{1:08X}{4:016X}.partial",
        f"{1:08X}{4:016X}.partial.gz",
        f"{1:08X}{4:016X}.partial-{'0' * 40}.gz",
        f"{1:08X}{4:016X}.json",
        f"{1:08X}{4:016X}_delta.lz4",
        f"{1:08X}{4:016X}-{'0' * 40}.gz.pgbackrest.tmp",
        "xlog.db",
        "archive.info",
        f"{1:08X}.history",
        f"elsewhere/{1:08X}{4:016X}.gz",
    ):
        objects[f"{beside}/{name}"] = b"x"
    wal_input = open_input(store(tmp_path, objects.items()))
    assert wal_input.extents(PATH) == [Extent(MIB, 4 * MIB)]
    assert wal_input.read(PATH, MIB, 4 * MIB).tobytes() == wal.read(MIB, wal.position).ljust(3 * MIB, b"\0")


def test_waldump_shows_an_archive_and_one_segment_of_it(tmp_path: Path, wal: WalBuilder) -> None:
    folder = Path(store(tmp_path / "archive", TOOLS["pgbackrest"].objects(wal, "zst")))
    write_segments(tmp_path, wal)
    for ours, theirs in ((folder, tmp_path), (next(folder.rglob(f"{NAMES[1]}*")), tmp_path / NAMES[1])):
        results = [CliRunner().invoke(pipeline, ["waldump", str(path)]) for path in (ours, theirs)]
        assert results[0].output == results[1].output
        assert len(results[0].output.splitlines()) > 50


def test_tasks_of_spark_read_an_archive(tmp_path: Path, wal: WalBuilder) -> None:
    options = SourceOptions.parse({"path": store(tmp_path, TOOLS["barman"].objects(wal, "gz")), "columns": "lsn"})
    reader = PgwalReader(options)
    batches = [batch for part in reader.partitions() for batch in reader.read(pickle.loads(pickle.dumps(part)))]
    lsns = [lsn for batch in batches for lsn in batch.column("lsn").to_pylist()]
    assert lsns == [record.start_lsn for record in wal.records]


def test_a_hole_is_one_and_what_is_archived_later_is_seen(tmp_path: Path, wal: WalBuilder) -> None:
    now = [0.0]
    tool = TOOLS["walg"]
    store(tmp_path, tool.objects(wal, "zst", (MIB, 3 * MIB)))
    archive = ForeignArchive(str(tmp_path), clock=lambda: now[0])
    assert archive.extents(PATH) == [Extent(MIB, 2 * MIB), Extent(3 * MIB, 4 * MIB)]
    with pytest.raises(WalMissing, match=f"has no {NAMES[1]} with the WAL from 0/200000 to 0/200010"):
        archive.read_into(PATH, 2 * MIB, memoryview(bytearray(16)))
    store(tmp_path, tool.objects(wal, "zst", (2 * MIB,)))
    now[0] += 1
    assert archive.extents(PATH) == [Extent(MIB, 4 * MIB)]


def test_listing_takes_a_small_part_of_the_time(tmp_path: Path, wal: WalBuilder) -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += 1.0
        return now[0]

    store(tmp_path, TOOLS["walg"].objects(wal, "zst", (MIB,)))
    archive = ForeignArchive(str(tmp_path), clock=clock)
    assert archive.extents(PATH) == [Extent(MIB, 2 * MIB)]
    listed_at = now[0]
    store(tmp_path, TOOLS["walg"].objects(wal, "zst", (2 * MIB,)))
    while archive.extents(PATH) == [Extent(MIB, 2 * MIB)]:
        assert now[0] < 1000
    assert now[0] - listed_at > 20


def test_a_segment_that_was_removed_is_missing_and_the_next_look_shows_it(tmp_path: Path, wal: WalBuilder) -> None:
    store(tmp_path, TOOLS["walg"].objects(wal, "zst"))
    archive = ForeignArchive(str(tmp_path), clock=lambda: 0.0)
    archive._list_at = 0.0
    archive.extents(PATH)
    archive._list_at = 1.0
    (tmp_path / "wal_005" / f"{NAMES[2]}.zst").unlink()
    assert archive.extents(PATH) == [Extent(MIB, 4 * MIB)]
    with pytest.raises(WalMissing, match=f"wal_005/{NAMES[2]}"):
        archive.read_into(PATH, 3 * MIB, memoryview(bytearray(16)))
    assert archive.extents(PATH) == [Extent(MIB, 3 * MIB)]


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("suffix", ["", "lz4"])
def test_a_promotion_is_followed(tmp_path: Path, tool: str, suffix: str) -> None:
    old = make_log(3 * MIB + 200_000)
    child = forked_log(fork(old, 2))
    fork_lsn = old.position + -old.position % 8
    old.add(bytes(30))
    old.switch()
    lineage = ((1, fork_lsn),)
    objects = [*TOOLS[tool].objects(old, "gz"), *TOOLS[tool].objects(child, "gz", (3 * MIB,))]
    folder = store(tmp_path, objects)
    with pytest.raises(SourceUnavailable, match=r"has WAL of timeline 2, but no 00000002\.history yet"):
        open_input(folder).log_path()
    assert open_input(folder).log_path(1) == PATH
    store(tmp_path, [TOOLS[tool].history(2, lineage, suffix)])
    wal_input = open_input(folder)
    path = wal_input.log_path()
    assert path == LogPath(2, lineage, MIB)
    assert wal_input.extents(path) == [Extent(MIB, 4 * MIB)]
    assert starts(wal_input, path) == [record.start_lsn for record in child.records]
    with pytest.raises(WalMissing, match="has no timeline 5: it has 1, 2"):
        wal_input.log_path(5)


def test_a_repository_with_several_stanzas_is_refused_and_the_newest_database_of_one_is_read(
    tmp_path: Path, wal: WalBuilder
) -> None:
    tool = TOOLS["pgbackrest"]
    store(tmp_path, tool.objects(wal, "gz", (MIB,)))
    store(tmp_path, tool._replace(root="archive/main/18-2").objects(wal, "gz", (2 * MIB,)))
    (tmp_path / "archive" / "no-stanza").mkdir()
    assert open_input(str(tmp_path)).extents(PATH) == [Extent(2 * MIB, 3 * MIB)]
    assert open_input(str(tmp_path / "archive/main/17-1")).extents(PATH) == [Extent(MIB, 2 * MIB)]
    store(tmp_path, tool._replace(root="archive/other/17-1").objects(wal, "gz", (MIB,)))
    with pytest.raises(ConfigurationError) as caught:
        open_input(str(tmp_path))
    example = f"{tmp_path}/archive/main"
    assert str(caught.value) == f"{tmp_path} has the stanzas main, other: name one of them, for example {example}"


def test_plain_segments_in_one_folder_are_a_folder_of_segments_and_compressed_ones_an_archive(
    tmp_path: Path, wal: WalBuilder
) -> None:
    write_segments(tmp_path, wal)
    assert open_input(str(tmp_path)).name == f"the folder {tmp_path}"
    for name in NAMES[:2]:
        path = tmp_path / name
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert open_input(str(tmp_path)).name == f"the archive {tmp_path}"
    assert starts(open_input(str(tmp_path)), PATH) == [record.start_lsn for record in wal.records]


def encrypted(content: bytes) -> bytes:
    return bytes(byte ^ 0x5A for byte in content)


def flipped(content: bytes) -> bytes:
    return content[: len(content) // 2] + bytes([content[len(content) // 2] ^ 1]) + content[len(content) // 2 + 1 :]


Damage = Callable[[bytes], bytes]
BAD: list[tuple[str, str, Damage, str]] = [
    (
        "walg",
        "lz4",
        lambda content: content[:-100],
        "cannot be decompressed (Truncated compressed stream): it is truncated",
    ),
    (
        "walg",
        "br",
        lambda content: content[:100],
        "cannot be decompressed (Truncated compressed stream): it is truncated",
    ),
    ("walg", "lzma", lambda content: content[:-100], "cannot be decompressed (Compressed file ended before the end"),
    (
        "walg",
        "",
        lambda content: content[:-100],
        "has 1048476 bytes where a segment has 1048576 bytes: it is",
    ),
    ("walg", "", lambda content: content + b"x", "has more where a segment has 1048576 bytes"),
    ("walg", "zst", lambda content: COMPRESS["zst"](bytes(MIB)), "does not contain WAL: it is encrypted or damaged"),
    ("walg", "zst", lambda content: b"", "is empty"),
    ("walg", "lz4", encrypted, "does not begin as a .lz4 file does: it is encrypted or damaged"),
    ("walg", "lz4", lambda content: b"\x85" + content, "is encrypted: decrypt the archive first"),
    ("walg", "br", encrypted, "encrypted"),
    ("pgbackrest", "gz", lambda content: b"Salted__" + content, "is encrypted: decrypt the archive first"),
    ("pgbackrest", "", lambda content: b"Salted__" + content, "is encrypted: decrypt the archive first"),
    ("pgbackrest", "gz", flipped, "it is truncated or damaged"),
    ("pgbackrest", "", flipped, "but another one in its name: it is damaged"),
    ("barman", "gz", encrypted, "is neither WAL nor compressed with gzip, bzip2, xz, zstd or lz4: it is encrypted or"),
    ("barman", "", lambda content: b"\xff\x06\x00\x00sNaPpY" + content, "is compressed with snappy: gzip, bzip2"),
    ("barman", "xz", lambda content: content[:-8], "cannot be decompressed (Compressed file ended before the end"),
]


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize(("tool", "suffix", "damage", "problem"), BAD)
def test_a_file_that_cannot_be_read_is_refused_in_one_line_that_names_it(
    tmp_path: Path, wal: WalBuilder, tool: str, suffix: str, damage: Damage, problem: str, number: int
) -> None:
    objects = list(TOOLS[tool].objects(wal, suffix))
    key, content = objects[number]
    objects[number] = key, damage(content)
    wal_input = open_input(store(tmp_path, objects))
    with pytest.raises(WalproxyError) as caught:
        wal_input.read(wal_input.log_path(), (number + 1) * MIB, (number + 1) * MIB + 100)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path}/{key} ")
    assert problem in message
    assert "\n" not in message
    assert isinstance(
        caught.value, ConfigurationError if "decrypt" in problem or "snappy" in problem else SourceCorrupt
    )


@pytest.mark.parametrize(
    ("suffix", "problem"),
    [
        ("lz4.gpg", "is encrypted (.gpg): decrypt the archive first"),
        ("age", "is encrypted (.age): decrypt the archive first"),
        ("snappy", "is compressed in an unknown way (.snappy): gzip, bzip2, xz, zstd, lz4 and brotli are supported"),
        ("lzo", "is compressed in an unknown way (.lzo)"),
    ],
)
def test_a_suffix_that_is_not_supported_is_refused(tmp_path: Path, suffix: str, problem: str) -> None:
    folder = store(tmp_path, [(f"wal_005/{name}.{suffix}", b"x") for name in NAMES])
    with pytest.raises(ConfigurationError, match=re.escape(f"{NAMES[0]}.{suffix} {problem}")):
        open_input(folder).log_path()


def test_two_contents_of_a_segment_are_refused_and_one_content_twice_is_not(tmp_path: Path, wal: WalBuilder) -> None:
    tool = TOOLS["pgbackrest"]
    folder = store(tmp_path, [*tool.objects(wal, "gz"), *tool.objects(wal, "zst")])
    assert starts(open_input(folder), PATH) == [record.start_lsn for record in wal.records]
    other = make_log(4 * MIB - 100_000, seed=9)
    other.switch()
    store(tmp_path, tool.objects(other, "gz", (2 * MIB,)))
    with pytest.raises(SourceCorrupt, match=f"{NAMES[1]}.* are different contents of one segment: remove"):
        open_input(folder).read(PATH, 2 * MIB, 2 * MIB + 16)


def test_contents_of_a_segment_are_compared_where_names_have_no_sha1(tmp_path: Path, wal: WalBuilder) -> None:
    tool = TOOLS["walg"]
    folder = store(tmp_path, [*tool.objects(wal, "gz"), *tool.objects(wal, "zst"), *tool.objects(wal, "")])
    assert starts(open_input(folder), PATH) == [record.start_lsn for record in wal.records]
    other = make_log(4 * MIB - 100_000, seed=9)
    other.switch()
    store(tmp_path, tool.objects(other, "zst", (2 * MIB,)))
    with pytest.raises(SourceCorrupt, match=f"{NAMES[1]} and .*{NAMES[1]}.gz and .*{NAMES[1]}.zst are different"):
        open_input(folder).read(PATH, 2 * MIB, 2 * MIB + 16)
    assert open_input(folder).read(PATH, MIB, 2 * MIB).tobytes() == wal.read(MIB, 2 * MIB)


def test_wal_of_another_server_and_a_segment_of_another_name_are_refused(tmp_path: Path, wal: WalBuilder) -> None:
    tool = TOOLS["walg"]
    other = make_log(4 * MIB - 100_000, system_id=8)
    other.switch()
    folder = store(tmp_path, [*tool.objects(wal, "gz", (MIB,)), *tool.objects(other, "gz", (2 * MIB,))])
    with pytest.raises(SourceCorrupt, match="is WAL of the system 8, not of 7"):
        open_input(folder).read(PATH, 2 * MIB, 2 * MIB + 16)
    store(tmp_path, [(f"wal_005/{NAMES[1]}.gz", gzip.compress(segment(wal, 3 * MIB)))])
    with pytest.raises(SourceCorrupt, match="has at 0/200000 a page of 0/300000 on timeline 1"):
        open_input(folder).read(PATH, 2 * MIB, 2 * MIB + 16)


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("number", [0, 1])
def test_a_file_that_is_larger_than_a_segment_can_be_is_refused_before_it_is_read(
    tmp_path: Path, wal: WalBuilder, monkeypatch: pytest.MonkeyPatch, number: int, suffix: str
) -> None:
    store(tmp_path, TOOLS["walg"].objects(wal, "zst"))
    (tmp_path / "wal_005" / f"{NAMES[number]}.zst").unlink()
    large = tmp_path / "wal_005" / f"{NAMES[number]}{suffix}"
    size = 200 << 30 if number == 0 else 2 * MIB
    with large.open("wb") as file:
        file.truncate(size)
    fetched: list[str] = []
    get = ObjectStore.get

    def small(opened: ObjectStore, key: str) -> bytes:
        fetched.append(key)
        return b"" if key.startswith(f"wal_005/{NAMES[number]}") else get(opened, key)

    monkeypatch.setattr(ObjectStore, "get", small)
    with pytest.raises(SourceCorrupt, match=f"^{large} has {size} bytes, more than a segment can have"):
        open_input(str(tmp_path)).read(PATH, (number + 1) * MIB, (number + 1) * MIB + 16)
    assert not any(key.startswith(f"wal_005/{NAMES[number]}") for key in fetched)


def test_a_history_file_that_is_too_large_is_refused_before_it_is_read(tmp_path: Path, wal: WalBuilder) -> None:
    store(tmp_path, TOOLS["walg"].objects(wal, "zst"))
    child = forked_log(fork(wal, 2))
    store(tmp_path, TOOLS["walg"].objects(child, "zst", (4 * MIB,)))
    with (tmp_path / "wal_005" / "00000002.history").open("wb") as file:
        file.truncate(2 << 20)
    with pytest.raises(SourceCorrupt, match=r"00000002\.history has 2097152 bytes, more than a history file"):
        open_input(str(tmp_path)).log_path()


def test_an_archive_without_segments_is_refused(tmp_path: Path) -> None:
    (tmp_path / "wal_005").mkdir()
    with pytest.raises(ConfigurationError, match="has no segments of WAL: correct the input's URL"):
        open_input(str(tmp_path)).log_path()
    with pytest.raises(ConfigurationError, match="takes no options: remove region"):
        open_input(str(tmp_path), {"region": "x"})


def test_what_decompresses_without_end_takes_no_more_than_was_asked_for() -> None:
    bomb = bytes(2 * MIB)
    for suffix in SUFFIXES:
        assert read_plain("x", suffix, COMPRESS[suffix](bomb), 100) == bytes(100)


def test_threads_that_ask_for_one_segment_fetch_it_once_and_the_last_ones_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wal = whole_log(segments=3)
    objects = dict(TOOLS["walg"].objects(wal, "gz"))
    opened = ObjectStore.open(store(tmp_path, objects.items()))
    fetched: list[str] = []
    waiting = threading.Barrier(4)
    get = opened.get

    def counted(key: str) -> bytes:
        fetched.append(key)
        return get(key)

    monkeypatch.setattr(opened, "get", counted)
    segments = Segments(opened)
    (first, *others) = [file for key in objects if (file := segment_of(key, "wal_005")) is not None]
    contents: list[bytes] = []

    def read() -> None:
        waiting.wait(60)
        contents.append(segments.read(first, 1, MIB, Origin(7, MIB)))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert contents == [segment(wal, MIB)] * 4
    assert fetched == [first.key]
    for number, file in enumerate(others):
        segments.read(file, 1, (number + 2) * MIB, Origin(7, MIB))
    segments.read(first, 1, MIB, Origin(7, MIB))
    assert len(fetched) == 3


def test_a_fetch_that_fails_is_tried_again(tmp_path: Path, wal: WalBuilder) -> None:
    objects = dict(TOOLS["walg"].objects(wal, "gz", (MIB,)))
    (key,) = objects
    file = segment_of(key, "wal_005")
    assert file is not None
    segments = Segments(ObjectStore.open(store(tmp_path, [(key, objects[key][:50])])))
    with pytest.raises(SourceCorrupt):
        segments.read(file, 1, MIB, Origin(7, MIB))
    store(tmp_path, objects.items())
    assert segments.read(file, 1, MIB, Origin(7, MIB)) == segment(wal, MIB)


BARMAN = Path(sys.executable).with_name("barman")
BARMAN_CONFIGURATION = """[barman]
barman_home = {home}
barman_user = {user}
log_file = {home}/log
[main]
description = no server is needed to archive what has arrived
conninfo = host=127.0.0.1 port=1 connect_timeout=1
backup_method = postgres
archiver = on
compression = {compression}
"""


@pytest.mark.parametrize(
    "compression",
    ["gzip", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("pybzip2", "xz", "zstd"))],
)
def test_what_barman_archives_is_read(tmp_path: Path, wal: WalBuilder, compression: str) -> None:
    if not BARMAN.exists():
        pytest.skip("there is no barman")
    incoming = tmp_path / "main" / "incoming"
    incoming.mkdir(parents=True)
    write_segments(incoming, wal)
    configuration = tmp_path / "barman.conf"
    configuration.write_text(BARMAN_CONFIGURATION.format(home=tmp_path, user=tmp_path.owner(), compression=compression))
    done = subprocess.run([BARMAN, "-c", configuration, "archive-wal", "main"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(incoming.iterdir()) == []
    wal_input = open_input(str(tmp_path / "main"))
    assert wal_input.extents(wal_input.log_path()) == [Extent(MIB, 4 * MIB)]
    assert starts(wal_input, PATH) == [record.start_lsn for record in wal.records]
