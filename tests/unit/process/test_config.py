"""Where settings come from, and what is said about wrong ones."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.networks import Networks
from safekeeper.base.settings import Address, address, changed_options, options_of, size_bytes
from safekeeper.process.config import SafekeeperConfig, load_config


def read(file: Path | None = None, environment: dict[str, str] | None = None, **written: Any) -> SafekeeperConfig:
    given = {"id": "1", "data_dir": "sk"} | written
    return load_config(given, environment or {}, file)


def test_defaults_are_filled_in() -> None:
    config = read()
    assert (config.id, config.data_dir) == (1, Path("sk"))
    assert config.proposer_listen == Address("127.0.0.1", 5454)
    assert config.http_listen == Address("127.0.0.1", 7676)


def test_the_command_line_goes_before_the_environment_before_the_file_before_the_default(tmp_path: Path) -> None:
    file = tmp_path / "sk.toml"
    file.write_text(
        'log_level = "debug"\n'
        '[safekeeper]\nproposer_listen = "1.1.1.1:1"\nhttp_listen = "1.1.1.1:1"\nconnections_max = 3\nslots_max = 4\n'
    )
    environment = {
        "SAFEKEEPER_PROPOSER_LISTEN": "2.2.2.2:2",
        "SAFEKEEPER_HTTP_LISTEN": "2.2.2.2:2",
        "OTHER_LOG_LEVEL": "error",
    }
    config = read(file, environment, proposer_listen="3.3.3.3:3", http_listen=None, assignments=("slots_max=5",))
    assert str(config.proposer_listen) == "3.3.3.3:3"
    assert str(config.http_listen) == "2.2.2.2:2"
    assert (config.log_level, config.connections_max, config.slots_max) == ("debug", 3, 5)
    assert config.idle_timeout == 60


def test_a_shorter_name_is_accepted_on_the_command_line_and_in_the_environment() -> None:
    assert str(read(environment={"SAFEKEEPER_LISTEN": "2.2.2.2:2"}).proposer_listen) == "2.2.2.2:2"
    assert str(read(listen="3.3.3.3:3").proposer_listen) == "3.3.3.3:3"


def test_the_place_decides_and_not_the_name() -> None:
    environment = {"SAFEKEEPER_PROPOSER_LISTEN": "2.2.2.2:2", "SAFEKEEPER_HTTP_LISTEN": "2.2.2.2:2"}
    config = read(None, environment, http="3.3.3.3:3")
    assert str(config.proposer_listen) == "2.2.2.2:2"
    assert str(config.http_listen) == "3.3.3.3:3"


@pytest.mark.parametrize(
    ("environment", "written", "places"),
    [
        ({}, {"http": "h:1", "http_listen": "h:2"}, "--http-listen and --http"),
        (
            {"SAFEKEEPER_HTTP": "h:1", "SAFEKEEPER_HTTP_LISTEN": "h:2"},
            {},
            "SAFEKEEPER_HTTP_LISTEN and SAFEKEEPER_HTTP",
        ),
    ],
)
def test_two_values_under_the_two_names_are_refused(
    environment: dict[str, str], written: dict[str, str], places: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(None, environment, **written)
    assert str(caught.value) == (f"{places} are two names of one option and have different values: keep the first only")


def test_one_value_under_both_names_is_accepted() -> None:
    assert str(read(http="h:1", http_listen="h:1").http_listen) == "h:1"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("lisen = 'x'", "the top has the unknown key lisen"),
        ("[safekeeper]\nlisen = 'x'", "[safekeeper] has the unknown key lisen"),
        ("[safekeeper]\npg_listen = 'nowhere'", "sk.toml: safekeeper.pg_listen: 'nowhere' is not an address"),
        ("[safekeeper]\npg_listen = 5", "is not a string"),
        ("id = = 1", "is not TOML"),
        ("\xff", "is not TOML"),
        ("[safekeeper]\nconnections_max = true", "is not a number"),
        ("[safekeeper]\nconnections_max = 1.5", "is not a number"),
        ("[safekeeper]\nidle_timeout = -1", "is not a number of seconds above 0"),
        ("[safekeeper]\nidle_timeout = nan", "is not a number of seconds above 0"),
        ("log_level = 'loud'", "is not one of debug, info, warning, error"),
    ],
)
def test_a_wrong_file_is_refused_with_one_line_that_names_the_place(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "sk.toml"
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(ConfigurationError) as caught:
        read(file)
    assert message in str(caught.value)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"could not read .*No such file"):
        read(tmp_path / "missing.toml")


def test_wrong_values_name_the_variable_or_the_option() -> None:
    with pytest.raises(ConfigurationError, match=r"^SAFEKEEPER_CONNECTIONS_MAX: 'many' is not a number"):
        read(environment={"SAFEKEEPER_CONNECTIONS_MAX": "many"})
    with pytest.raises(ConfigurationError, match=r"^--id: '0' is not a whole number above 0"):
        read(id="0")
    with pytest.raises(ConfigurationError, match=r"^--id: '9223372036854775808' is too large"):
        read(id=str(2**63))
    with pytest.raises(ConfigurationError, match=r"^SAFEKEEPER_CONNECTIONS_MAX: .* is not a number"):
        read(environment={"SAFEKEEPER_CONNECTIONS_MAX": "9" * 5000})


def test_a_missing_option_says_where_it_can_stand() -> None:
    with pytest.raises(ConfigurationError, match="--data-dir is missing: give it, or set SAFEKEEPER_DATA_DIR"):
        read(data_dir=None)


@given(st.text())
def test_no_text_breaks_a_parser(text: str) -> None:
    for option in options_of(SafekeeperConfig).values():
        try:
            option.parse(text)
        except ValueError as error:
            assert str(error)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("5", 5),
        (7, 7),
        ("64MiB", 64 << 20),
        ("1 GiB", 1 << 30),
        ("2tib", 2 << 40),
        ("10B", 10),
        ("0", 0),
        ("1 kB", 1024),
        ("256MB", 256 << 20),
    ],
)
def test_sizes_have_units(written: object, expected: int) -> None:
    assert size_bytes(written) == expected


@pytest.mark.parametrize("written", ["", "MiB", "-1", "1.5GiB", "1XB", "1BMi", -1, True, None, "٣"])
def test_what_is_no_size_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        size_bytes(written)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("localhost:80", Address("localhost", 80)),
        ("[::1]:0", Address("::1", 0)),
        ("0.0.0.0:65535", Address("0.0.0.0", 65535)),
    ],
)
def test_addresses_are_read_and_written_alike(written: str, expected: Address) -> None:
    assert address(written) == expected
    assert str(expected) == written


@pytest.mark.parametrize(
    "written", ["localhost", ":80", "x:", "x:-1", "x:65536", "x:8o", "::1:80", "[]:80", "x:²", "a..b:80"]
)
def test_what_is_no_address_is_refused(written: str) -> None:
    with pytest.raises(ValueError, match="is not an address"):
        address(written)


def test_networks_are_a_text_or_a_list(tmp_path: Path) -> None:
    file = tmp_path / "sk.toml"
    file.write_text('[safekeeper]\nallow = ["10.0.0.0/8", "::1"]\n')
    assert read(file).allow == read(allow="10.0.0.0/8, ::1/128").allow == Networks.parse("10.0.0.0/8,::1")
    for wrong in ("[]", "[1]", "7"):
        file.write_text(f"[safekeeper]\nallow = {wrong}\n")
        with pytest.raises(ConfigurationError, match="allow: "):
            read(file)


def test_changes_that_need_a_restart_are_distinguished_from_those_that_do_not() -> None:
    old = read()
    new = dataclasses.replace(old, log_level="debug", proposer_listen=Address("x", 1))
    assert changed_options(old, new) == (["log_level"], ["proposer_listen"])


def test_settings_of_a_store_are_pairs_on_the_command_line_and_a_table_in_the_file(tmp_path: Path) -> None:
    assert read().archive_options == {}
    assert read(archive_options="endpoint=http://127.0.0.1:9000, region=eu=1,").archive_options == {
        "endpoint": "http://127.0.0.1:9000",
        "region": "eu=1",
    }
    file = tmp_path / "sk.toml"
    file.write_text('archive = "s3://wal/one"\n[archive_options]\nregion = "eu"\n[safekeeper]\nwal_limit = "500MiB"\n')
    config = read(file)
    assert (config.archive, config.archive_options) == ("s3://wal/one", {"region": "eu"})
    assert (config.wal_limit, read().wal_limit, read().archive) == (500 << 20, 16 << 30, None)


@pytest.mark.parametrize("written", ["secret", "=secret", "a=1,secret", {"a": 1}, 5])
def test_settings_of_a_store_that_are_no_pairs_are_refused_and_not_quoted(written: object) -> None:
    with pytest.raises(ConfigurationError, match="KEY=VALUE") as caught:
        read(archive_options=written)
    assert "secret" not in str(caught.value)
