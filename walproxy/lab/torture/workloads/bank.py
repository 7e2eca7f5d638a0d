"""Transfers between accounts: the balance of each account follows from the book of transfers, and none is forgotten.

The bank is the demo's (walproxy/lab/demo/bank.py).
"""

from collections import Counter
from collections.abc import Iterable
from random import Random
from typing import NamedTuple

import asyncpg

from walproxy.lab.demo.bank import ACCOUNTS, CREATE, OPENING_BALANCE, Transfer
from walproxy.lab.torture.record import Violation
from walproxy.lab.torture.workloads.interface import (
    BALANCE,
    CHANGED,
    Attempt,
    Try,
    find_lost,
    find_strangers,
    shortened,
)

_AMOUNT_MAX = 100


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

    def check(self, state: Books, tries: Iterable[Try]) -> list[Violation]:
        tried = {each.attempt.id: each for each in tries}
        booked = {transfer.id: transfer for transfer in state.transfers}
        changed = (
            f"{tried[number].attempt}: the book has {transfer}"
            for number, transfer in booked.items()
            if number in tried and tried[number].attempt != transfer
        )
        return [
            *find_lost(tried, booked, "the book"),
            *shortened(CHANGED, changed),
            *find_strangers(tried, booked, "the book"),
            *shortened(BALANCE, _wrong_balances(state)),
        ]


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
