"""Commits that may have to wait, seen from the client's side and from PostgreSQL's."""

from itertools import count

from psycopg.pq import ExecStatus

from tests.e2e.deployment import Deployment, Session, wait_until
from walproxy.lab.demo import bank
from walproxy.lab.demo.workload import transfer_clients
from walproxy.lab.load.clients import Clients
from walproxy.lab.load.history import History

COMMIT_S = 60


class SentStatement:
    """A statement that PostgreSQL was sent and may not have answered yet: a commit that waits blocks no caller."""

    def __init__(self, session: Session, sql: str) -> None:
        self._session = session
        self._sql = sql
        session.pgconn.send_query(sql.encode())

    def answered(self) -> bool:
        self._session.pgconn.consume_input()
        return not self._session.pgconn.is_busy()

    def finish(self) -> None:
        """Waits, with a deadline, for PostgreSQL to report that the statement is committed, and for nothing less."""
        wait_until(self.answered, f"{self._sql!r} is acknowledged", COMMIT_S)
        while result := self._session.pgconn.get_result():
            assert result.status == ExecStatus.COMMAND_OK, result.get_error_message()


def commit(session: Session, sql: str) -> None:
    """Has a statement committed within COMMIT_S."""
    SentStatement(session, sql).finish()


def waits_for_standby(observer: Session, session: Session) -> bool:
    """Whether the backend of `session` waits for a synchronous standby, as PostgreSQL itself sees it."""
    query = "SELECT wait_event FROM pg_stat_activity WHERE pid = %s"
    return observer.execute(query, [session.info.backend_pid]).fetchone() == ("SyncRep",)


def transfers(deployment: Deployment) -> Clients[bank.Transfer]:
    """Two clients that transfer money at the primary of a deployment, not started; PGPASSWORD must be set."""
    conninfo = f"host=127.0.0.1 port={deployment.ports['postgres']} user=postgres dbname=postgres"
    return transfer_clients(lambda: conninfo, 2, History(), count(1))


def assert_books_hold(session: Session, history: History[bank.Transfer]) -> None:
    """Every transfer that was acknowledged is in the books, and nothing else but what is in doubt."""
    acknowledged, in_doubt = (
        {operation.transaction for operation in operations} for operations in (history.acknowledged, history.in_doubt)
    )
    audit = bank.audit(session, acknowledged, in_doubt)
    assert (audit.missing, audit.strangers, audit.wrong_accounts) == ([], [], 0)
    assert audit.transfers >= len(acknowledged)
