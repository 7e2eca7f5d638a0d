"""Verifying an archive: what is not a receipt is a problem of that object, and not the end of the survey."""

from pathlib import Path

import pytest

from safekeeper.archive.objects import ArchivedObject, history_file
from safekeeper.archive.store import ObjectStore
from walproxy.recovery.survey import Origin, _is_lost, _problem_of


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
def test_a_receipt_that_is_not_understood_is_named(receipt: bytes, tmp_path: Path) -> None:
    archived = ArchivedObject(history_file(2), "history/00000002.history", 1, 7, False)
    problem = _problem_of(Reader(receipt), archived, Origin(5, 1 << 20), tmp_path / "x")  # type: ignore[arg-type]
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
