"""The rules of a partition."""

import pytest

from walproxy.lab.failover.network import LoopbackNetwork, rules


def test_a_partition_drops_what_is_received_or_sent_or_both() -> None:
    sent, received = "-A OUTPUT -d 10.0.0.2 -j DROP", "-A INPUT -s 10.0.0.2 -j DROP"
    assert rules(["10.0.0.2"], "to") == [sent]
    assert rules(["10.0.0.2"], "from") == [received]
    assert set(rules(["10.0.0.2", "10.0.0.3"], "both")) == {
        sent,
        received,
        "-A OUTPUT -d 10.0.0.3 -j DROP",
        "-A INPUT -s 10.0.0.3 -j DROP",
    }


def test_the_loopback_interface_has_no_partitions() -> None:
    network = LoopbackNetwork()
    assert not network.has_partitions
    assert network.add("pg1") == network.add("pg2") == "127.0.0.1"
    assert network.port(5432) != network.port(5432)
    with pytest.raises(NotImplementedError):
        network.cut("pg1", ["127.0.0.1"])
