"""Where recovery gets WAL from: what is written to a file is read again."""

from pathlib import Path

import pytest

from safekeeper.base.errors import ConfigurationError
from walproxy.recovery.config import FetchConfig, as_toml, load_sources, open_sources


def load(file: Path | None = None, environment: dict[str, str] | None = None, **command_line: object) -> FetchConfig:
    return load_sources(FetchConfig, command_line, environment or {}, file)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    written = load(
        archive='s3://bucket/with "quotes" \\ and \u00e9\U0001f418\x7f',
        archive_options="endpoint=http://127.0.0.1:1,region=x",
        safekeepers="host=a,b port=1,2 user='o''brien'",
        data_dir=("/a b", "/c"),
        uncommitted=True,
        timeout="2.5",
        prefetch="0",
        end_at_hole=True,
    )
    file = tmp_path / "fetch.toml"
    file.write_text(as_toml(written))
    assert load(file) == written


def test_folders_are_options_a_list_or_a_text() -> None:
    both = (Path("/a"), Path("/b"))
    assert load(data_dir=("/a", "/b")).data_dir == both
    assert load(environment={"WALPROXY_DATA_DIR": "/a, /b"}).data_dir == both
    assert load(data_dir=()).data_dir == ()
    assert load(data_dir=("a",)).data_dir == (Path.cwd() / "a",)


def test_a_folder_of_the_archive_means_the_same_in_every_folder() -> None:
    assert load(archive="a/b").archive == str(Path.cwd() / "a" / "b")
    assert load(archive="/a").archive == "/a"
    assert load(archive="s3://a/b").archive == "s3://a/b"


@pytest.mark.parametrize(
    "options", [{"prefetch": "65"}, {"prefetch": "-1"}, {"timeout": "0"}, {"uncommitted": "maybe"}]
)
def test_a_wrong_value_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError):
        load(**options)


def test_at_least_one_source_must_be_named() -> None:
    with pytest.raises(ConfigurationError, match="--archive, --safekeepers or --data-dir"):
        open_sources(load())


def test_a_password_in_the_safekeepers_connection_string_is_not_shown() -> None:
    with pytest.raises(ConfigurationError) as refused:
        open_sources(load(safekeepers="host=a password=se cret=1"))
    assert "cret" not in str(refused.value).replace("secret", "")
    assert "--pg-listen" in str(refused.value)
