"""`walproxy ready-to-promote`: what ends it before it has connected to anything."""

from pathlib import Path

import pytest

from safekeeper.base.errors import EXIT_CONFIGURATION, EXIT_USAGE
from tests.unit.cli.test_walproxy_cli import MEMBERS, Here


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    return Here(monkeypatch, capsys)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), EXIT_USAGE, "give --pgdata or --conninfo"),
        (("--conninfo", "host=pg2,pg3"), EXIT_USAGE, "names 2 hosts: give that of the standby only"),
        (("--conninfo", "host=pg2", "--timeout", "0"), EXIT_USAGE, "0.0 is not in the range x>0.0"),
        (("--conninfo", "pg2"), EXIT_CONFIGURATION, "the standby's connection string is wrong"),
        (("--pgdata", "missing"), EXIT_CONFIGURATION, "--pgdata is the standby's data folder"),
    ],
)
def test_bad_input_is_one_line(
    here: Here, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], code: int, said: str
) -> None:
    monkeypatch.setenv("WALPROXY_SAFEKEEPERS", MEMBERS)
    ended = here("ready-to-promote", *arguments)
    assert ended.returncode == code
    assert said in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr


def test_a_list_of_safekeepers_is_needed(here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WALPROXY_SAFEKEEPERS", raising=False)
    ended = here("ready-to-promote", "--pgdata", str(tmp_path))
    assert (ended.returncode, ended.stderr.count("\n")) == (EXIT_CONFIGURATION, 1)
    assert "no safekeepers: write [safekeepers] into the cluster's file" in ended.stderr
