"""Refusals that are repeated without a term: how long a refused primary waits."""

import msgspec
import pytest

from safekeeper.consensus.membership import Member, Membership
from walproxy.proposer.primary import PrimaryIdentity
from walproxy.proposer.refusals import Refusals
from walproxy.proposer.roster import Cluster

PRIMARY = PrimaryIdentity(system_id=7, tli=1, flush_lsn=1 << 24, segment_size=1 << 24, server_version=150018)
MEMBERSHIP = Membership(1, tuple(Member(i, f"{i}" * 32) for i in (1, 2, 3)), author=4)


@pytest.mark.parametrize(
    ("cluster", "wait_s"),
    [
        (Cluster("c", msgspec.structs.replace(MEMBERSHIP, author=5)), 20.0),
        (Cluster("c", msgspec.structs.replace(MEMBERSHIP, generation=2, members=MEMBERSHIP.members[:2])), 10.0),
        (Cluster("d", MEMBERSHIP), 10.0),
    ],
)
def test_a_primary_waits_twice_as_long_if_the_same_members_refuse_it_again_in_whatever_term(
    cluster: Cluster, wait_s: float
) -> None:
    refusals = Refusals(10.0, 300.0)
    refusals.remember(PRIMARY, "other bytes", Cluster("c", MEMBERSHIP), {}, by_bytes=True, now=0.0)
    assert refusals.may_be_repeated(PRIMARY, 9.9)
    assert not refusals.may_be_repeated(PRIMARY, 10.1)
    refusals.remember(PRIMARY, "other bytes", cluster, {}, by_bytes=True, now=20.0)
    assert refusals.may_be_repeated(PRIMARY, 19.9 + wait_s)
    assert not refusals.may_be_repeated(PRIMARY, 20.1 + wait_s)
