"""A bank: accounts, and transfers of money between them. Its total balance never changes.

Every transfer has an id that its client chose, so that afterwards the bank's books can be compared with the replies
to its clients.
"""

from typing import NamedTuple, Protocol

import asyncpg

from walproxy.lab.load.transactions import commit_block

ACCOUNTS = 1000
OPENING_BALANCE = 10_000

CREATE = f"""
    CREATE TABLE account (id int PRIMARY KEY, balance bigint NOT NULL);
    CREATE TABLE transfer (id bigint PRIMARY KEY, source int NOT NULL, target int NOT NULL, amount int NOT NULL);
    INSERT INTO account SELECT n, {OPENING_BALANCE} FROM generate_series(1, {ACCOUNTS}) n
"""
# Money that an account has, but should not have, by the transfers that are in the book.
_WRONG_ACCOUNTS = f"""
    SELECT count(*) FROM account
    LEFT JOIN (
        SELECT id, sum(amount) AS amount
        FROM (SELECT source, -amount FROM transfer UNION ALL SELECT target, amount FROM transfer) AS move (id, amount)
        GROUP BY id
    ) AS moved USING (id)
    WHERE balance <> {OPENING_BALANCE} + coalesce(moved.amount, 0)
"""


class Transfer(NamedTuple):
    """`amount` goes from account `source` to account `target`."""

    id: int
    source: int
    target: int
    amount: int

    def __str__(self) -> str:
        return f"transfer {self.id}: {self.source} -> {self.target}, {self.amount}"

    async def carry_out(self, connection: asyncpg.Connection) -> None:
        """Send all but the COMMIT."""
        await connection.execute(self.statements())

    async def commit(self, connection: asyncpg.Connection) -> bool:
        """Send the COMMIT; return whether PostgreSQL has committed."""
        return await commit_block(connection)

    def statements(self) -> str:
        """Return the transaction without its COMMIT. Rows are locked in the order of their ids: no deadlocks."""
        changes = sorted([(self.source, -self.amount), (self.target, self.amount)])
        updates = "; ".join(f"UPDATE account SET balance = balance + {by} WHERE id = {id_}" for id_, by in changes)
        return f"BEGIN; {updates}; INSERT INTO transfer VALUES ({self.id}, {self.source}, {self.target}, {self.amount})"


class Executes(Protocol):
    """Something that runs SQL and returns the rows, as LocalPostgres does."""

    def execute(self, sql: str) -> list[tuple[int, ...]]:
        """Run `sql` and return the rows."""
        ...


class Audit(NamedTuple):
    """The books compared with the replies to clients.

    Attributes:
        transfers: how many are in the books.
        missing: ids that were acknowledged and are not in the books, or have other values there.
        strangers: ids in the books that no client ever tried to commit.
        in_doubt_found: how many transfers in doubt did happen.
        wrong_accounts: accounts whose balance does not follow from the transfers.
        total_balance: of all accounts.
    """

    transfers: int
    missing: list[int]
    strangers: list[int]
    in_doubt_found: int
    wrong_accounts: int
    total_balance: int


def audit(database: Executes, acknowledged: set[Transfer], in_doubt: set[Transfer]) -> Audit:
    """Compare the books in `database` with the replies to clients."""
    booked = {Transfer(*row) for row in database.execute("SELECT id, source, target, amount FROM transfer")}
    [(wrong_accounts,)] = database.execute(_WRONG_ACCOUNTS)
    [(total_balance,)] = database.execute("SELECT sum(balance)::bigint FROM account")
    return Audit(
        len(booked),
        sorted(transfer.id for transfer in acknowledged - booked),
        sorted(transfer.id for transfer in booked - acknowledged - in_doubt),
        len(in_doubt & booked),
        wrong_accounts,
        total_balance,
    )
