"""A promotion comes to its end whatever state the sources of `walproxy wal-fetch` are in.

All states, on every major version, are in tests/torture/test_majors.py.
"""

import pytest

from tests.integration.conftest import NEWEST, OLDEST
from tests.integration.restore.promotion_matrix import ALIVE, FREE, HANGING, IN_USE, REFUSING, dynasty
from walproxy.postgres.local_server import ServerBinaries


@OLDEST
def test_a_promotion_ends_although_the_archive_refuses_connections(
    servers: dict[int, ServerBinaries], major: int
) -> None:
    with dynasty(servers[major]) as servers_in_turn:
        servers_in_turn.promote(REFUSING, FREE)


@pytest.mark.nightly
@NEWEST
def test_a_promotion_keeps_what_was_streamed_beyond_the_archive_s_part_of_the_open_segment(
    servers: dict[int, ServerBinaries], major: int
) -> None:
    with dynasty(servers[major]) as servers_in_turn:
        servers_in_turn.promote(ALIVE, FREE)
        servers_in_turn.promote(HANGING, IN_USE)
