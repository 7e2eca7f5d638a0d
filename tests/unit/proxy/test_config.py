"""The proxy's settings: what is taken from where, and what is refused with which words."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.settings import Address, yes_or_no
from walproxy.cli.configuration import load_proxy
from walproxy.proxy.config import ProxyConfig, safekeeper_addresses

PRIMARY = "host=db1 user=walproxy"
MEMBERS = "1=sk1:5454,2=sk2:5454,3=[::1]:5455"


def read(
    command_line: dict[str, Any] | None = None, environment: dict[str, str] | None = None, file: Path | None = None
) -> ProxyConfig:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("walproxy.cli.configuration.os.environ", environment or {})
        return load_proxy(command_line or {}, file)


def test_the_members_are_read_in_any_order_and_spacing() -> None:
    members = (1, Address("sk1", 5454)), (2, Address("sk2", 5454)), (3, Address("::1", 5455))
    assert safekeeper_addresses(MEMBERS) == members
    assert safekeeper_addresses("3=[::1]:5455, 1=sk1:5454 ,2=sk2:5454") == members
    assert safekeeper_addresses({"2": "sk2:5454", "1": "sk1:5454", "3": "[::1]:5455"}) == members


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("sk1:5454", "'sk1:5454' is not ID=HOST:PORT"),
        ("1=sk1:5454,", "'' is not ID=HOST:PORT"),
        ("1=sk1", "not an address"),
        ("1=sk1:70000", "not an address"),
        ("1=::1:5454", "not an address"),
        ("0=sk1:5454", "not a whole number above 0"),
        ("one=sk1:5454", "not a number"),
        ("1=sk1:5454,1=sk2:5454", "safekeeper 1 is listed twice"),
        ("1=sk1:5454,2=sk1:5454", "sk1:5454 is the address of two safekeepers"),
        ("", "not a string"),
        ({"1": 5454}, "not a string"),
        (["sk1:5454"], "not a string"),
    ],
)
def test_members_that_cannot_be_are_refused(written: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason.replace("(", r"\(")):
        safekeeper_addresses(written)


@pytest.mark.parametrize("written", [True, "true", "YES", "on", "1"])
def test_ways_to_say_yes(written: Any) -> None:
    assert yes_or_no(written) is True


@pytest.mark.parametrize("written", [False, "False", "no", "off", "0"])
def test_ways_to_say_no(written: Any) -> None:
    assert yes_or_no(written) is False


@pytest.mark.parametrize("written", ["", "perhaps", 1, None])
def test_what_is_neither_yes_nor_no_is_refused(written: Any) -> None:
    with pytest.raises(ValueError, match="not true or false"):
        yes_or_no(written)


def test_every_option_but_two_has_a_default_and_the_dangerous_ones_are_off() -> None:
    config = read({"primary": PRIMARY, "safekeepers": MEMBERS})
    assert (config.slot, config.application_name) == ("walproxy", "walproxy")
    assert config.window_size == 64 << 20
    assert config.takeover is False and config.allow_data_loss is False
    assert config.allow_unverified_primary is False
    for name in ("primary", "safekeepers"):
        with pytest.raises(ConfigurationError, match=f"--{name} is missing"):
            read({key: value for key, value in {"primary": PRIMARY, "safekeepers": MEMBERS}.items() if key != name})


def test_command_line_goes_before_environment_and_environment_before_file(tmp_path: Path) -> None:
    file = tmp_path / "walproxy.toml"
    file.write_text(
        f'slot = "file"\n[proxy]\nprimary = "{PRIMARY}"\nwindow_size = "1MiB"\ntakeover = true\n'
        '[safekeepers]\n1 = "a:1"\n'
    )
    assert read(file=file).safekeepers == ((1, Address("a", 1)),)
    config = read({"slot": "line"}, {"WALPROXY_SLOT": "environment", "WALPROXY_WINDOW_SIZE": "2MiB"}, file)
    assert (config.slot, config.window_size, config.takeover) == ("line", 2 << 20, True)


@pytest.mark.parametrize(
    ("option", "written", "place"),
    [
        ("window_size", "64 pounds", "WALPROXY_WINDOW_SIZE"),
        ("window_size", "0", "WALPROXY_WINDOW_SIZE"),
        ("catchup_rate", "1000", "WALPROXY_CATCHUP_RATE"),
        ("heartbeat_interval", "0", "WALPROXY_HEARTBEAT_INTERVAL"),
        ("heartbeat_interval", "0.9", "WALPROXY_HEARTBEAT_INTERVAL"),
        ("log_level", "loud", "WALPROXY_LOG_LEVEL"),
        ("takeover", "maybe", "WALPROXY_TAKEOVER"),
        ("http", "7667", "WALPROXY_HTTP"),
        ("primary", "host=a\0b", "WALPROXY_PRIMARY"),
    ],
)
def test_a_wrong_value_is_refused_with_the_place_where_it_stands(option: str, written: str, place: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{place}: "):
        read({"primary": PRIMARY, "safekeepers": MEMBERS} | {option: None}, {place: written})


def test_a_key_that_no_option_has_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "walproxy.toml"
    file.write_text('slots = "walproxy"\n')
    with pytest.raises(ConfigurationError, match="the top has the unknown key slots; the keys are secret_file, tls_ca"):
        read(file=file)


def test_settings_are_frozen() -> None:
    config = read({"primary": PRIMARY, "safekeepers": MEMBERS})
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.slot = "other"  # type: ignore[misc]
