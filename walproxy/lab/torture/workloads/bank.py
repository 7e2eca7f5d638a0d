"""Transfers between accounts: the balance of each account follows from the book of transfers, and none is forgotten.

The bank is the demo's (walproxy/lab/demo/bank.py).
"""

import re
from collections import Counter
from collections.abc import Iterable
from random import Random
from typing import NamedTuple

import asyncpg

from safekeeper.base.errors import ConfigurationError
from walproxy.lab.demo.bank import ACCOUNTS, CREATE, OPENING_BALANCE, Transfer
from walproxy.lab.torture.record import Operation, Violation
from walproxy.lab.torture.workloads.interface import BALANCE, CHANGED, LOST, STRANGER, Attempt, shortened

_AMOUNT_MAX = 100
_WHAT = re.compile(r"transfer (\d+): (\d+) -> (\d+), (\d+)")


class Books(NamedTuple):
    """The tables' content: balances by account, and the transfers in its book."""

    balances: dict[int, int]
    transfers: list[Transfer]


class Bank:
    """Money goes from account to account."""

    name = "bank"
    tables = CREATE

    def attempt(self, number: int, chance: Random) -> Attempt:
        source, target = chance.sample(range(1, ACCOUNTS + 1), 2)
        return Transfer(number, source, target, chance.randint(1, _AMOUNT_MAX))

    async def read(self, connection: asyncpg.Connection) -> Books:
        accounts = await connection.fetch("SELECT id, balance FROM account")
        transfers = await connection.fetch("SELECT id, source, target, amount FROM transfer")
        return Books({row["id"]: row["balance"] for row in accounts}, [Transfer(*row) for row in transfers])

    def check(self, state: Books, operations: Iterable[Operation]) -> list[Violation]:
        tried = {
            transfer.id: (transfer, operation)
            for operation in operations
            if operation.workload == self.name
            for transfer in [parse_transfer(operation.what)]
        }
        booked = {transfer.id: transfer for transfer in state.transfers}
        lost = [
            f"{operation.what}: acknowledged at {operation.ended_s:.3f} s, and not in the book"
            for number, (_, operation) in tried.items()
            if operation.outcome == "ok" and number not in booked
        ]
        changed = [
            f"{tried[number][1].what}: the book has {transfer}"
            for number, transfer in booked.items()
            if number in tried and tried[number][0] != transfer
        ]
        strangers = [
            f"{transfer}: in the book, and {'it had failed' if number in tried else 'no client tried it'}"
            for number, transfer in booked.items()
            if number not in tried or tried[number][1].outcome == "fail"
        ]
        return [
            *shortened(LOST, lost),
            *shortened(CHANGED, changed),
            *shortened(STRANGER, strangers),
            *shortened(BALANCE, _wrong_balances(state)),
        ]


def parse_transfer(what: str) -> Transfer:
    """Return the transfer of a line of the history.

    Raises:
        ConfigurationError: it has none.
    """
    match = _WHAT.fullmatch(what)
    if match is None:
        raise ConfigurationError(f"{what!r} in the history is not a transfer")
    return Transfer(*(int(group) for group in match.groups()))


def _wrong_balances(state: Books) -> Iterable[str]:
    """Check each account against the book; then the total is right, too."""
    expected = Counter(dict.fromkeys(range(1, ACCOUNTS + 1), OPENING_BALANCE))
    for transfer in state.transfers:
        expected[transfer.source] -= transfer.amount
        expected[transfer.target] += transfer.amount
    for account in sorted(expected.keys() | state.balances.keys()):
        balance = state.balances.get(account)
        if balance != expected[account]:
            yield f"account {account} has {balance}, and by the book {expected[account]}"
