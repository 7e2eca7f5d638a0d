"""Archives are unpacked on each Python, and what would leave the folder is not, where Python can check it."""

import io
import tarfile
from pathlib import Path

import pytest

from walproxy.lab.unpacking import unpack


def _archive(*names: str) -> tarfile.TarFile:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for name in names:
            about = tarfile.TarInfo(name)
            about.size = 4
            tar.addfile(about, io.BytesIO(b"text"))
    content.seek(0)
    return tarfile.open(fileobj=content)


@pytest.mark.parametrize("can_filter", [True, False])
def test_an_archive_is_unpacked_whether_or_not_python_can_filter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_filter: bool
) -> None:
    if not can_filter:
        extractall = tarfile.TarFile.extractall
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
        # As Python 3.11.2 has it: without `filter`.
        monkeypatch.setattr(tarfile.TarFile, "extractall", lambda tar, path, members: extractall(tar, path, members))
    with _archive("a", "b/c") as archive:
        unpack(archive, tmp_path, [each for each in archive if each.name != "a"])
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()] == ["b/c"]


def test_a_member_that_would_leave_the_folder_is_refused(tmp_path: Path) -> None:
    if not hasattr(tarfile, "data_filter"):
        return  # Before Python 3.11.4 nothing checks it.
    with _archive("../outside") as archive, pytest.raises(tarfile.FilterError):
        unpack(archive, tmp_path / "in")
    assert not (tmp_path / "outside").exists()
