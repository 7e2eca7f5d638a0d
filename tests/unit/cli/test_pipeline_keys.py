"""Keys of the pipeline's jobs: where their values come from, and what is said about wrong ones."""

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from safekeeper.base.errors import ConfigurationError
from walproxy.cli.configuration import APPLY, PIPELINE
from walproxy.cli.pipeline import pipeline
from walproxy.cli.pipeline_commands.keys import KeyedCommand, key, keys_options
from walproxy.cli.pipeline_commands.maintain import maintain

taken: dict[str, Any] = {}


@click.command(cls=KeyedCommand, role=APPLY)
@click.option("--once", is_flag=True)
@key("copy_sessions", type=click.IntRange(1, 64), default=2, help="Sessions.")
@key("text_column", multiple=True, help="Columns.")
@key("memory", help="Memory.")
@keys_options
def job(**values: Any) -> None:
    taken.clear()
    taken.update(values)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "walproxy.toml"
    path.write_text('[apply]\ncopy_sessions = 3\ntext_column = ["a.b.c", "d.e.f"]\n')
    return path


def invoke(*words: str) -> Result:
    return CliRunner().invoke(job, words)


def refusal(*words: str) -> str:
    error = invoke(*words).exception
    assert isinstance(error, ConfigurationError)
    return str(error)


def test_a_key_is_taken_from_the_command_line_then_the_file_then_its_default(file: Path) -> None:
    assert invoke().exit_code == 0
    assert taken == {"once": False, "copy_sessions": 2, "text_column": (), "memory": None}
    assert invoke("--config", str(file), "-c", "memory=1MB", "--once").exit_code == 0
    assert taken == {"once": True, "copy_sessions": 3, "text_column": ("a.b.c", "d.e.f"), "memory": "1MB"}
    for words in (("--config", str(file), "-c", "copy_sessions=4"), ("-c", "copy_sessions=4", "--config", str(file))):
        assert invoke(*words, "-c", "text_column=x.y.z", "-c", "text_column=u.v.w").exit_code == 0
        assert (taken["copy_sessions"], taken["text_column"]) == (4, ("x.y.z", "u.v.w"))


def test_a_wrong_value_is_one_line_with_its_place(file: Path) -> None:
    assert refusal("-c", "copy_sessions=0") == "-c copy_sessions: 0 is not in the range 1<=x<=64."
    file.write_text("[apply]\ncopy_sessions = 65\n")
    assert refusal("--config", str(file)) == f"{file}: apply.copy_sessions: 65 is not in the range 1<=x<=64."


def test_what_is_not_a_key_is_refused(file: Path) -> None:
    assert refusal("-c", "once=true") == "-c: once is not a key; the keys are copy_sessions, text_column, memory"
    assert refusal("-c", "memory").startswith("-c: 'memory' is not KEY=VALUE; the keys are ")
    assert invoke("--copy-sessions", "3").exit_code == 2
    file.write_text("[apply]\ncores = 3\n")
    assert refusal("--config", str(file)) == f"{file}: [apply] has cores, which is a key of [pipeline]"


def test_the_help_has_the_keys_after_the_options() -> None:
    text = invoke("--help").output
    assert "Keys of [apply] in the cluster's file:" in text
    assert "copy_sessions INTEGER RANGE  Sessions.  [default: 2]" in text


def test_the_keys_that_the_file_accepts_are_those_of_the_commands() -> None:
    found: dict[str, set[str | None]] = {}
    for name in pipeline.list_commands(click.Context(pipeline)):
        command = pipeline.get_command(click.Context(pipeline), name)
        for each in command.commands.values() if isinstance(command, click.Group) else [command]:
            if isinstance(each, KeyedCommand):
                found.setdefault(each.role.section, set()).update(key.name for key in each.keys)
    assert found == {role.section: set(role.names()) for role in (APPLY, PIPELINE)}


def test_settings_of_the_store_are_taken_from_the_top_of_the_file_too(file: Path) -> None:
    file.write_text('lake_options = {region = "eu", hosts = "a=1,b", port = 9000}\n[pipeline]\ntarget_size = "much"\n')
    refused = CliRunner().invoke(pipeline, ["maintain", "/tables", "--config", str(file)]).exception
    assert f"{file}: pipeline.target_size: " in str(refused)
    with click.Context(maintain, info_name="maintain") as context:
        maintain.parse_args(context, ["/tables", "--config", str(file), "-c", "target_size=1MB"])
    assert context.params["lake_options"] == {"region": "eu", "hosts": "a=1,b", "port": "9000"}
    assert context.params["target_size"] == 1 << 20
