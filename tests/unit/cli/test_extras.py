"""What a command answers when the libraries of its extra are not installed."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

from safekeeper.base.errors import ConfigurationError
from walproxy.cli.extras import MODULES, missing_extra_is_one_line
from walproxy.installation import pip_install

ROOT = Path(__file__).parents[3]


def without(*libraries: str, commands: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    """Run command lines of walproxy where these libraries cannot be found, up to the first that fails."""
    program = f"""
import sys
from walproxy.cli import main

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {libraries!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
for command in {commands!r}:
    sys.argv = ["walproxy", *command.split()]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
"""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("command", ["demo", "demo --quick", "demo --help", "bench", "torture --minutes 1"])
def test_a_command_of_the_lab_without_its_extra_is_one_line(command: str) -> None:
    done = without(*MODULES["lab"], commands=[command])
    name = command.split()[0]
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == (f"walproxy: walproxy {name} needs asyncpg, which is not installed: {pip_install('lab')}\n")


def test_the_list_of_commands_and_an_operators_command_need_no_extra() -> None:
    everything = {module for modules in MODULES.values() for module in modules}
    listed = without(*everything, commands=["--help"])
    assert (listed.returncode, listed.stderr) == (0, "")
    assert "\n  run  " in listed.stdout
    assert re.search(r"\n  demo +walproxy demo needs asyncpg, which\s+is not installed", listed.stdout)
    of_production = ("run", "status", "check", "archive list", "restore", "wal-fetch", "recovery-end", "rebootstrap")
    of_failover = ("failover", "switchover", "ready-to-promote", "discarded", "agent", "cluster show")
    helped = without(*everything, commands=[f"{command} --help" for command in of_production + of_failover])
    assert (helped.returncode, helped.stderr) == (0, ""), helped.stdout
    shown = re.findall(r"^Usage: walproxy ([a-z-]+(?: list| show)?)", helped.stdout, re.MULTILINE)
    assert tuple(shown) == of_production + of_failover


def test_a_missing_library_is_one_line() -> None:
    needs = rf"^the pipeline needs numba, .*: {re.escape(pip_install('pipeline'))}$"
    with pytest.raises(ConfigurationError, match=needs), missing_extra_is_one_line("the pipeline", "pipeline"):
        raise ModuleNotFoundError("No module named 'numba.core'", name="numba.core")
    with pytest.raises(ModuleNotFoundError), missing_extra_is_one_line("the pipeline", "pipeline"):
        raise ModuleNotFoundError("No module named 'walproxy.nothing'", name="walproxy.nothing")


def test_the_extras_that_are_named_are_those_of_the_package() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert MODULES.keys() <= extras.keys()
