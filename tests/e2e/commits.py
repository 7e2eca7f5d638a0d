"""Commits that may have to wait, seen from the client's side and from PostgreSQL's."""

from psycopg.pq import ExecStatus

from tests.e2e.deployment import Session, wait_until

COMMIT_S = 60


class SentStatement:
    """A statement that PostgreSQL was sent and may not have answered yet: a commit that waits blocks nobody here."""

    def __init__(self, session: Session, sql: str) -> None:
        self._session = session
        self._sql = sql
        session.pgconn.send_query(sql.encode())

    def answered(self) -> bool:
        self._session.pgconn.consume_input()
        return not self._session.pgconn.is_busy()

    def finish(self) -> None:
        """Waits, with a deadline, for PostgreSQL to say that the statement is committed, and for nothing less."""
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
