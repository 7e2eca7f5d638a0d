"""The load of the demo: concurrent clients that transfer money as fast as they can."""

import random
from collections.abc import Callable, Iterator

from walproxy.lab.demo.bank import ACCOUNTS, Transfer
from walproxy.lab.load.clients import Clients
from walproxy.lab.load.history import History

APPLICATION_NAME = "walproxy demo"

_AMOUNT_MAX = 100


def transfer_clients(
    conninfo: Callable[[], str], count: int, history: History[Transfer], ids: Iterator[int]
) -> Clients[Transfer]:
    """Return `count` clients of the bank, not started.

    Args:
        conninfo: returns libpq's connection string of the server that is the primary now.
        history: of the replies to them.
        ids: of their transfers; none of them may be in the books.
    """

    def next_transfer(client: int) -> Transfer:
        source, target = random.sample(range(1, ACCOUNTS + 1), 2)
        return Transfer(next(ids), source, target, random.randint(1, _AMOUNT_MAX))

    return Clients(conninfo, count, next_transfer, history, application_name=APPLICATION_NAME)
