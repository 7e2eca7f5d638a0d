"""Lists of networks, and which addresses are this machine's own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safekeeper.base.networks import Networks, is_loopback, loopback_instead_of


@pytest.mark.parametrize(
    ("written", "host", "admitted"),
    [
        ("10.0.0.0/8", "10.255.0.1", True),
        ("10.0.0.0/8", "11.0.0.1", False),
        ("10.0.0.0/8, ::1/128", "::1", True),
        ("10.0.0.0/8,::1/128", "::2", False),
        ("192.0.2.7", "192.0.2.7", True),
        ("192.0.2.7", "192.0.2.8", False),
        ("192.0.2.0/24", "::ffff:192.0.2.9", True),
        ("192.0.2.0/24", "::ffff:192.0.3.9", False),
        ("fe80::/10", "fe80::1%eth0", True),
        ("0.0.0.0/0", "::1", False),
        ("0.0.0.0/0", "", False),
        ("0.0.0.0/0", "localhost", False),
    ],
)
def test_an_address_is_admitted_if_it_lies_in_one_of_the_networks(written: str, host: str, admitted: bool) -> None:
    assert Networks.parse(written).admits(host) is admitted


@pytest.mark.parametrize(
    ("written", "advice"),
    [
        ("10.0.0.1/8", "write 10.0.0.0/8 for the whole network"),
        ("localhost", "for example 10.0.0.0/8"),
        ("10.0.0.0/33", "for example 10.0.0.0/8"),
        ("10.0.0.0/8,", "'' is not a network"),
        ("", "'' is not a network"),
    ],
)
def test_what_is_no_network_is_refused_with_what_to_write(written: str, advice: str) -> None:
    with pytest.raises(ValueError, match=advice):
        Networks.parse(written)


def test_the_same_networks_are_equal_and_print_as_they_are_written() -> None:
    assert Networks.parse("10.0.0.0/8,::1") == Networks.parse(" 10.0.0.0/8 , ::1/128")
    assert str(Networks.parse("10.0.0.0/8,192.0.2.7")) == "10.0.0.0/8, 192.0.2.7/32"


@given(st.text(max_size=50))
def test_a_text_is_a_list_of_networks_or_a_value_error(written: str) -> None:
    try:
        networks = Networks.parse(written)
    except ValueError:
        return
    assert Networks.parse(str(networks)) == networks


@given(st.text(max_size=50))
def test_any_text_can_be_asked_for(host: str) -> None:
    Networks.parse("10.0.0.0/8").admits(host)
    is_loopback(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost", "LOCALHOST", "::ffff:127.0.0.1"])
def test_what_only_this_machine_reaches_is_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "sk1", "localhost.example.org", "", "128.0.0.1"])
def test_everything_else_is_not(host: str) -> None:
    assert not is_loopback(host)
    assert is_loopback(loopback_instead_of(host))


def test_the_loopback_address_is_of_the_same_family() -> None:
    assert (loopback_instead_of("::"), loopback_instead_of("0.0.0.0"), loopback_instead_of("sk1")) == (
        "::1",
        "127.0.0.1",
        "127.0.0.1",
    )
