"""The command with which a line says how to get the packages of an extra."""

import importlib.metadata
from pathlib import Path

import pytest

from walproxy.installation import pip_install


@pytest.mark.parametrize(
    ("record", "command"),
    [
        ('{"url": "file:///home/ann/my%20code", "dir_info": {}}', "pip install '/home/ann/my code[lab]'"),
        ('{"url": "https://host/walproxy.whl", "archive_info": {}}', "pip install 'walproxy[lab]'"),
        (None, "pip install 'walproxy[lab]'"),
    ],
)
def test_an_extra_comes_from_where_walproxy_came_from(
    record: str | None, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "METADATA").write_text("Name: walproxy\n")
    if record is not None:
        (tmp_path / "direct_url.json").write_text(record)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _: importlib.metadata.PathDistribution(tmp_path))
    assert pip_install("lab") == command
