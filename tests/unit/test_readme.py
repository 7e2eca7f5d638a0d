"""The README's commands are those of the programs and of the Makefile, and its figures those of the guide."""

import re
import shlex
from pathlib import Path

import click
import pytest

import safekeeper.cli
import walproxy.cli
from tests.readme_walk import STEPS, WalkFailed, blocks_of

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PROGRAMS = {"safekeeper": safekeeper.cli.cli, "walproxy": walproxy.cli.cli}

_CODE = re.compile(r"^ *```\w*\n(.*?)^ *```$|`([^`\n]+)`", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"(?:^ *|[;&] *|/)((?:safekeeper|walproxy|make) [a-z-]+[^;|\n]*)", re.MULTILINE)


def commands_of(text: str) -> list[list[str]]:
    """Return the commands in the code of a document, as words."""
    code = "\n".join(block or span for block, span in _CODE.findall(text)).replace("\\\n", " ")
    return [shlex.split(command, comments=True) for command in _COMMAND.findall(code)]


def problem_of(command: list[str]) -> str | None:
    """Return what is wrong with a command, None if nothing is."""
    program, name, *words = command
    if program == "make":
        targets = re.findall(r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
        return None if name in targets else f"make has no target {name}"
    group = PROGRAMS[program]
    found = group.get_command(click.Context(group), name)
    if found is None:
        return f"{program} has no command {name}"
    options = {option for parameter in found.params for option in parameter.opts}
    unknown = [word for word in words if word.startswith("--") and word.partition("=")[0] not in options]
    return f"{program} {name} has no {unknown}" if unknown else None


def test_every_command_of_the_readme_is_one_that_there_is() -> None:
    commands = commands_of(README)
    assert {(program, name) for program, name, *_ in commands} >= {
        ("safekeeper", "run"),
        ("walproxy", "run"),
        ("walproxy", "status"),
        ("make", "demo"),
        ("make", "test"),
    }
    assert not [problem for command in commands if (problem := problem_of(command))]


@pytest.mark.parametrize(
    "text",
    [
        "`walproxy demo --slowly`",
        "`make tea`",
        "```sh\nx; safekeeper walk --id 1\n```",
        "```\nwalproxy run \\\n  --a b\n```",
    ],
)
def test_a_command_that_there_is_not_is_found(text: str) -> None:
    [command] = commands_of(text)
    assert problem_of(command)


def test_the_readme_shows_its_pictures_and_says_in_words_what_is_on_them() -> None:
    pictures = dict(re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", README))
    assert sorted(pictures.values()) == ["docs/architecture.svg", "docs/demo.svg", "docs/page.png"]
    assert all((ROOT / path).exists() for path in pictures.values())
    assert all(len(words) > 40 for words in pictures)


def test_the_code_blocks_of_the_five_minutes_are_those_that_are_followed() -> None:
    blocks = blocks_of(README)
    assert list(blocks) == [name for _, name in STEPS]
    with pytest.raises(WalkFailed):
        blocks_of(README.replace("```sh\n   kill -9 %2", "```\n   kill -9 %2"))


def test_the_figures_of_the_readme_are_those_of_the_guide() -> None:
    costs = (ROOT / "docs" / "guide" / "costs.md").read_text()
    # client, arm, transactions a second, milliseconds, ratio, range
    row = re.compile(r"^\| (\d+) \| `([\w-]+)` \| (\d+) \| ([\d.]+) \| ([\d.]+) \| ([\d.-]+) \|", re.MULTILINE)
    rows = {(clients, arm): rest for clients, arm, *rest in row.findall(costs.partition("\n## Bulk")[0])}
    shown = re.findall(r"^\| (\d+) \| (\d+) \| (\d+) \| (\d+) \| ([\d.]+) \(([\d.-]+)\) \|$", README, re.MULTILINE)
    assert [clients for clients, *_ in shown] == ["1", "8", "32"]
    for clients, local, native, ours, ratio, spread in shown:
        tps, _, *to_native = rows[clients, "walproxy"]
        assert [local, native, ours] == [rows[clients, "local"][0], rows[clients, "native-quorum"][0], tps]
        assert [ratio, spread] == to_native
    others = re.findall(r"0\.\d\d \([\d.-]+\)", README.partition("Another series")[2].partition("\n\n")[0])
    assert len(others) == 3
    assert not [each for each in others if each not in " ".join(costs.split())]
