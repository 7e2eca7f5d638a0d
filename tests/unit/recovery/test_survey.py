"""Verifying an archive: what is not a receipt is a problem of that object, and not the end of the survey."""

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

from safekeeper.archive.catalog import Catalog
from safekeeper.archive.objects import ArchivedObject, Listing, Manifest, history_file, segment_file
from safekeeper.archive.store import ObjectStore
from safekeeper.waldecode.format import LONG_HEADER, LONG_PAGE_HEADER_TAIL, PAGE_HEADER, PAGE_SIZE
from walproxy.recovery.survey import Origin, _is_lost, _problem_of, verify

MIB = 1 << 20
FILLER = bytes(MIB - PAGE_SIZE)  # The pages after a switch record.


class Reader:
    """An archive whose every object has the same bytes."""

    def __init__(self, content: bytes) -> None:
        self.store = self
        self._content = content

    def get(self, key: str) -> bytes:
        return self._content


@pytest.mark.parametrize(
    "receipt", [b"", b"[1]", b'{"system_id": "\xff"}', b'{"a":' + b"[" * 100_000, b'{"a": ' + b"9" * 5000 + b"}"]
)
def test_a_receipt_that_is_not_understood_is_named(receipt: bytes) -> None:
    archived = ArchivedObject(history_file(2), "history/00000002.history", 1, 7, False)
    problem = _problem_of(Reader(receipt), archived, Origin(5, 1 << 20))  # type: ignore[arg-type]
    assert problem.startswith(f"{archived.receipt_key} is not a receipt: ")


@pytest.mark.parametrize(
    ("there", "is_lost"),
    [((), False), (("object", "receipt"), False), (("object",), False), (("receipt",), True)],
    ids=["removed_since", "added_since", "not_confirmed_yet", "lost"],
)
def test_an_object_is_lost_if_its_receipt_is_still_there_alone(
    there: tuple[str, ...], is_lost: bool, tmp_path: Path
) -> None:
    store = ObjectStore.open(str(tmp_path))
    archived = ArchivedObject(history_file(2), "history/00000002.history", 1, 7, False)
    for name, key in (("object", archived.key), ("receipt", archived.receipt_key)):
        if name in there:
            store.put(key, b"content", absent=True)
    assert _is_lost(store, archived) is is_lost


class ManySegments:
    """An archive of whole segments without records, as a reader and as its store."""

    def __init__(self, count: int) -> None:
        self.store = self
        self.url = "many"
        self.files = {
            file.key(False): file for file in (segment_file(1, lsn, MIB) for lsn in range(0, count * MIB, MIB))
        }

    def manifest(self) -> Manifest:
        return Manifest(5, MIB, ("5e1f0c3a9b7d2486",), "")

    def catalog(self) -> Catalog:
        crcs = {key: google_crc32c.value(b"".join(self.pieces(key))) for key in self.files}
        objects = [ArchivedObject(file, key, crcs[key], MIB, False) for key, file in self.files.items()]
        return Catalog(Listing(objects, [], [], [], []), MIB, {})

    folder = None

    def get(self, key: str) -> bytes:
        return b'{"system_id": 5}'

    def pieces(self, key: str) -> Iterator[bytes]:
        lsn = self.files[key].begin_lsn
        header = PAGE_HEADER.pack(0xD110, LONG_HEADER, 1, lsn, 0) + LONG_PAGE_HEADER_TAIL.pack(5, MIB, PAGE_SIZE)
        yield header.ljust(PAGE_SIZE, b"\0")
        yield FILLER


def test_a_verification_of_many_segments_needs_no_more_memory_than_one_of_few() -> None:
    few: Any = ManySegments(10)
    verify(few, few.catalog())  # What is imported and compiled at the first use is not counted.
    reader: Any = ManySegments(1500)
    catalog = reader.catalog()
    shown: list[tuple[int, int]] = []
    tracemalloc.start()
    try:
        verdict = verify(reader, catalog, progress=lambda done, total: shown.append((done, total)))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (verdict.checked, verdict.problems) == (1500, [])
    assert shown[0][0] < shown[-1][0] == shown[-1][1] == 1500 * MIB
    # The list of the objects, what was shown, and the pages that the threads check.
    assert peak_bytes < 3 << 20
