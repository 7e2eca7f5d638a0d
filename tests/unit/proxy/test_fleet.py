"""The safekeepers of a command: one that does not reply takes no longer than the command allows."""

import socket
import time

from safekeeper.base.settings import Address
from safekeeper.net.safekeeper_connection import Credentials
from tests.unit.event_loop import on_the_loop
from walproxy.proxy.members import Fleet


@on_the_loop
async def test_one_that_is_silent_is_given_up_and_one_that_is_down_is_distinguished() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        places = ((1, Address("127.0.0.1", silent.getsockname()[1])), (2, Address("127.0.0.1", 1)))
        fleet = Fleet(places, Credentials(), timeout_s=0.1)
        began_at = time.monotonic()
        sight = await fleet.look()
        assert time.monotonic() - began_at < 5
        assert sight.problems[1].endswith("did not reply within 0.1 s") and not sight.greetings
        assert "cannot be reached" in sight.problems[2]
        # It is asked again on another connection: the answer to the first question must not be taken for another.
        assert isinstance(await fleet.see(1), str)
        assert await fleet.live_proposers() == {}
        await fleet.close()
        silent.settimeout(10)
        for _ in range(2):
            silent.accept()[0].close()
