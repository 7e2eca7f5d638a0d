"""Describe what is wrong with a primary: one line with the remedy, and whether waiting can help.

Every failure of a connection to PostgreSQL becomes one `PrimaryProblem`. Its kind fixes the rest: most problems
pass by themselves or with a command in PostgreSQL, and the proxy waits; some need another configuration of the
proxy or of the server (exit code 3); some mean that this server's WAL must not be trusted (S10, exit code 4).

The kind comes from the SQLSTATE, the server's function that refused, and names such as max_wal_senders: PostgreSQL's
messages can be in any language. Only what libpq itself reports is recognised by its text. Pure.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from safekeeper.base.errors import EXIT_CONFIGURATION, EXIT_PRIMARY_REFUSED, EXIT_UNEXPECTED, WalproxyError
from walproxy.postgres.replication import PrimaryFacts


class ProblemKind(Enum):
    """Each kind: (name, waiting can help, exit code of a process that does not wait)."""

    UNREACHABLE = ("unreachable", True, EXIT_UNEXPECTED)  # no server listens, or the host cannot be found
    STARTING = ("starting", True, EXIT_UNEXPECTED)  # starts, stops or recovers from a crash (57P03)
    LOST = ("lost", True, EXIT_UNEXPECTED)  # the connection ended without a reason given
    SHUT_DOWN = ("shut_down", True, EXIT_UNEXPECTED)  # it stopped cleanly: all that it had is acknowledged
    ENDED = ("ended", True, EXIT_UNEXPECTED)  # an administrator ended our walsender
    IN_RECOVERY = ("in_recovery", True, EXIT_UNEXPECTED)  # a standby, which may be promoted
    NO_FREE_WALSENDER = ("no_free_walsender", True, EXIT_UNEXPECTED)
    NO_FREE_SLOT = ("no_free_slot", True, EXIT_UNEXPECTED)
    SLOT_MISSING = ("slot_missing", True, EXIT_UNEXPECTED)  # dropped meanwhile; it is created again at the next connect
    SLOT_IN_USE = ("slot_in_use", True, EXIT_UNEXPECTED)  # by another proxy, perhaps a deposed one
    OTHER = ("other", True, EXIT_UNEXPECTED)  # something that this list does not foresee
    NOT_POSTGRES = ("not_postgres", False, EXIT_CONFIGURATION)  # a pooler
    WRONG_CONNINFO = ("wrong_conninfo", False, EXIT_CONFIGURATION)
    NO_LOGIN = ("no_login", False, EXIT_CONFIGURATION)  # password, role, pg_hba.conf or TLS
    NO_REPLICATION_RIGHT = ("no_replication_right", False, EXIT_CONFIGURATION)
    NO_REPLICATION = ("no_replication", False, EXIT_CONFIGURATION)  # wal_level, max_wal_senders, ...
    WRONG_SLOT = ("wrong_slot", False, EXIT_CONFIGURATION)  # a logical one, or a name that no slot can have
    SLOT_INVALIDATED = ("slot_invalidated", False, EXIT_PRIMARY_REFUSED)
    WAL_REMOVED = ("wal_removed", False, EXIT_PRIMARY_REFUSED)  # the requested WAL is recycled (58P01)
    WRONG_POSITION = ("wrong_position", False, EXIT_PRIMARY_REFUSED)  # ahead of it, or not in its history
    FSYNC_OFF = ("fsync_off", False, EXIT_PRIMARY_REFUSED)

    def __init__(self, label: str, retry: bool, exit_code: int) -> None:
        self.label = label
        self.retry = retry
        self.exit_code = exit_code


class ServerProblem(WalproxyError):
    """A server did not do what was requested, or not in time. The message is one line."""


class ServerHangs(ServerProblem):
    """The server accepts the connection and does not reply in time."""


class PrimaryProblem(WalproxyError):
    """Something is wrong with the primary or with the way to it.

    `message` is one line; `plain` is the same without the advice, which is for a proxy; `retry`: it may pass without
    another configuration; `exit_code` is that of a process that gives up; `sqlstate` is PostgreSQL's, if it sent one.
    """

    def __init__(self, kind: ProblemKind, message: str, sqlstate: str | None = None, plain: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.plain = plain or message
        self.sqlstate = sqlstate
        self.retry = kind.retry
        self.exit_code = kind.exit_code


# What a failed connection means, by its SQLSTATE and by names in its text, which no language translates: the first rule
# that fits decides. The advice follows the text.
_CONNECT_RULES: tuple[tuple[str, str, ProblemKind, str], ...] = (
    (
        r"53300",
        r"max_wal_senders.*\D0\)",
        ProblemKind.NO_REPLICATION,
        "set wal_level = replica and max_wal_senders = 10, and restart PostgreSQL",
    ),
    (r"53300", r"max_wal_senders", ProblemKind.NO_FREE_WALSENDER, "raise max_wal_senders or end a walsender"),
    (r"53300", r"", ProblemKind.NO_FREE_WALSENDER, "raise max_connections"),
    # A verbose message ends with the function of the server that has sent it.
    (r"42501", r"CheckMyDatabase", ProblemKind.NO_LOGIN, "GRANT CONNECT ON DATABASE ... TO the role"),
    (r"42501", r"", ProblemKind.NO_REPLICATION_RIGHT, "ALTER ROLE ... REPLICATION"),
    (
        r"3D000",
        r"",
        ProblemKind.WRONG_CONNINFO,
        "name an existing one: dbname=... in the connection string; without it, it is postgres",
    ),
    (r"28000", r"pg_hba\.conf", ProblemKind.NO_LOGIN, ""),  # the line to add: `_hba_advice`
    (r"28...", r"", ProblemKind.NO_LOGIN, "check user and password (.pgpass, PGPASSWORD) and pg_hba.conf"),
    (r"57P03", r"", ProblemKind.STARTING, "waiting for it"),
    # A program that is between speaks English only.
    (
        r"08P01",
        r"unsupported startup parameter",
        ProblemKind.NOT_POSTGRES,
        "pgbouncer, or another pooler, listens there: --primary must name PostgreSQL's own port",
    ),
)
# The same for failures that libpq itself reports: in English, as this process sets no locale for messages.
_LIBPQ_RULES: tuple[tuple[str, ProblemKind, str], ...] = (
    (
        r"no password supplied|authentication method|SCRAM",
        ProblemKind.NO_LOGIN,
        "check user and password (.pgpass, PGPASSWORD) and pg_hba.conf",
    ),
    (
        r"does not support SSL|certificate|SSL error",
        ProblemKind.NO_LOGIN,
        "check sslmode, sslrootcert and the server's certificate",
    ),
    (
        r"^invalid |invalid (port number|integer value|\S+ value)|definition of service|not supported when"
        r"|missing \"=\"",
        ProblemKind.WRONG_CONNINFO,
        "correct the connection string",
    ),
    (r"session is read-only|hot standby mode", ProblemKind.IN_RECOVERY, "promote it, or connect to the primary"),
    (
        r"Connection refused|No such file or directory|could not translate host name|[Nn]ame or service not known"
        r"|timeout|timed out|No route to host|unreachable|failed to resolve host",
        ProblemKind.UNREACHABLE,
        "waiting for it",
    ),
)

# SQLSTATE of a refused command: https://www.postgresql.org/docs/current/errcodes-appendix.html
_SQLSTATE_RULES: dict[str, tuple[ProblemKind, str]] = {
    "57P03": (ProblemKind.STARTING, "waiting for it"),
    "57P01": (ProblemKind.ENDED, "reconnecting"),
    "53300": (ProblemKind.NO_FREE_WALSENDER, "raise max_wal_senders or end a walsender"),
    "53400": (ProblemKind.NO_FREE_SLOT, "raise max_replication_slots or drop a slot"),
    "42501": (ProblemKind.NO_REPLICATION_RIGHT, "ALTER ROLE ... REPLICATION"),
    "28000": (ProblemKind.NO_LOGIN, "check the role and pg_hba.conf"),
    "28P01": (ProblemKind.NO_LOGIN, "check user and password"),
    "55006": (ProblemKind.SLOT_IN_USE, "end that walsender, or let its proxy continue"),
    "42704": (ProblemKind.SLOT_MISSING, "creating it again"),
    "42602": (ProblemKind.WRONG_SLOT, "use lower-case letters, digits and underscores, at most 63"),
    "0A000": (ProblemKind.WRONG_SLOT, "name another slot, or drop this one"),
    "58P01": (ProblemKind.WAL_REMOVED, "see walproxy rebootstrap --help"),
}
_WRONG_POSITION = (ProblemKind.WRONG_POSITION, "this is not the primary that wrote the safekeepers' WAL")
_INVALIDATED = (ProblemKind.SLOT_INVALIDATED, "drop the slot, and see walproxy rebootstrap --help")
# 55000, object_not_in_prerequisite_state, and XX000, an error without a code of its own, have many meanings: the
# function of the server that refused decides.
_ROUTINE_RULES: dict[tuple[str, str], tuple[ProblemKind, str]] = {
    ("XX000", "StartReplication"): _WRONG_POSITION,
    ("XX000", "tliSwitchPoint"): _WRONG_POSITION,
    ("55000", "StartReplication"): (ProblemKind.WRONG_SLOT, "name another slot"),
    ("55000", "ReplicationSlotAcquire"): _INVALIDATED,
    ("55000", "CheckSlotRequirements"): (
        ProblemKind.NO_REPLICATION,
        "set wal_level = replica and max_replication_slots = 10, and restart PostgreSQL",
    ),
}
# The severity, in the server's language, and the SQLSTATE, as libpq writes them.
_SQLSTATE = re.compile(r"\S+:  ([0-9A-Z]{5}): ")
_SLOTS_SHOWN_MAX = 5
_HBA_REFUSAL = re.compile(
    r'for (replication connection from )?host "(?P<host>[^"]+)", user "(?P<user>[^"]+)"'
    r'(, database "(?P<database>[^"]+)")?'
)


def one_line(text: str) -> str:
    """Return the essence of a message of libpq or PostgreSQL: the first line, without hints, severity and full stop."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("\t")]
    line = next((line for line in lines if not line.startswith(("DETAIL:", "HINT:"))), "no reason given")
    line = re.sub(r"\b(FATAL|ERROR):\s+(?=\S)(?![0-9A-Z]{5}: )", "", line)
    return line.rstrip(".")


def problem_of_connect(text: str) -> PrimaryProblem:
    """Return what the text of a failed connection means; of a verbose one (verbose_connect.py), as it has SQLSTATEs."""
    line = one_line(text)
    refused = _SQLSTATE.search(line)
    if refused is None:
        plain = f"cannot connect to PostgreSQL: {line}"
        for pattern, kind, advice in _LIBPQ_RULES:
            if re.search(pattern, line):
                return PrimaryProblem(kind, f"{plain}; {advice}", plain=plain)
        return PrimaryProblem(ProblemKind.OTHER, plain)
    sqlstate = refused[1]
    line = _SQLSTATE.sub("", line, count=1)
    plain = f"cannot connect to PostgreSQL: {line}"
    for state, pattern, kind, advice in _CONNECT_RULES:
        if re.fullmatch(state, sqlstate) and re.search(pattern, text):
            return PrimaryProblem(kind, f"{plain}; {advice or _hba_advice(line)}", sqlstate, plain)
    return PrimaryProblem(ProblemKind.OTHER, plain, sqlstate)


def _hba_advice(line: str) -> str:
    """Return the line of pg_hba.conf that a refused connection needs."""
    found = _HBA_REFUSAL.search(line)
    if found is None:
        return "add a line for the database and the role to pg_hba.conf, and reload PostgreSQL"
    host, user, database = found["host"], found["user"], found["database"] or "replication"
    words = [_hba_word(database) if found["database"] else database, _hba_word(user)]
    if host == "[local]":
        words = ["local", *words]
    else:
        words = ["host", *words, f"{host}/{128 if ':' in host else 32}"]
    return f"add the line `{' '.join(words)} scram-sha-256` to pg_hba.conf, and reload PostgreSQL"


def _hba_word(name: str) -> str:
    is_plain = re.fullmatch(r"\w+", name) and name not in ("all", "sameuser", "samerole", "replication")
    return name if is_plain else f'"{name}"'


def problem_of_error(doing: str, sqlstate: str | None, text: str, routine: str | None = None) -> PrimaryProblem:
    """Return what an error of PostgreSQL to a command means.

    Args:
        doing: what was tried, to follow "cannot", e.g. 'use slot "walproxy"'.
        sqlstate: its code; None if the connection broke.
        text: its message.
        routine: the function of the server that refused, if it sent one.
    """
    line = one_line(text)
    if sqlstate is None:
        return PrimaryProblem(
            ProblemKind.LOST, f"cannot {doing}: {line}; reconnecting", plain=f"cannot {doing}: {line}"
        )
    by_code = _SQLSTATE_RULES.get(sqlstate, (ProblemKind.OTHER, ""))
    kind, advice = _ROUTINE_RULES.get((sqlstate, routine or ""), by_code)
    plain = f"cannot {doing}: {line}"
    return PrimaryProblem(kind, plain + (f"; {advice}" if advice else ""), sqlstate, plain)


def problem_of_identity(identity: PrimaryFacts) -> PrimaryProblem | None:
    """Return why a primary that answers must not be streamed, or None. full_page_writes = off is fine."""
    if identity.in_recovery:
        return PrimaryProblem(
            ProblemKind.IN_RECOVERY, "PostgreSQL is a standby in recovery; promote it, or connect to the primary"
        )
    if not identity.fsync:
        return PrimaryProblem(
            ProblemKind.FSYNC_OFF,
            "PostgreSQL runs with fsync = off: a crash may rewrite WAL that was sent; set fsync = on and restart it",
        )
    if identity.wal_level == "minimal":
        return PrimaryProblem(
            ProblemKind.NO_REPLICATION, "wal_level is minimal: set wal_level = replica and restart PostgreSQL"
        )
    return None


@dataclass(frozen=True)
class LogicalSubscribers:
    """The settings that decide whether logical subscribers wait for the quorum.

    Attributes:
        slots: the slots from which logical walsenders stream, and whether each has the property `failover`.
        synchronized_standby_slots: the setting; None before PostgreSQL 17, which has none.
    """

    slots: Mapping[str, bool]
    synchronized_standby_slots: str | None


def warning_of_subscribers(subscribers: LogicalSubscribers, slot: str) -> str | None:
    """Return why logical subscribers can receive a commit that the quorum lacks, in one line, or None.

    Args:
        slot: the proxy's own, which holds them back if `synchronized_standby_slots` names it.
    """
    if not subscribers.slots:
        return None
    setting = subscribers.synchronized_standby_slots
    if setting is None:
        return (
            f"walsenders stream from {_quoted_slots(subscribers.slots)}, and PostgreSQL before 17 cannot hold "
            f"them back (see docs/safety)"
        )
    names = [name for name in (part.strip(' "') for part in setting.split(",")) if name]
    if slot not in names:
        wanted = ", ".join([*names, slot])
        return (
            f"walsenders stream from {_quoted_slots(subscribers.slots)}, and synchronized_standby_slots is "
            f"'{setting}'; run ALTER SYSTEM SET synchronized_standby_slots = '{wanted}' and SELECT pg_reload_conf()"
        )
    unheld = [name for name, failover in subscribers.slots.items() if not failover]
    if unheld:
        return (
            f"{_quoted_slots(unheld)} does not have failover = true; disable the subscription, run "
            f"ALTER SUBSCRIPTION ... SET (failover = true), and enable it again"
        )
    return None


def _quoted_slots(names: Iterable[str]) -> str:
    shown = [f'"{name}"' for name in names]
    more = f" and {len(shown) - _SLOTS_SHOWN_MAX} more" if len(shown) > _SLOTS_SHOWN_MAX else ""
    return f"slot {', '.join(shown[:_SLOTS_SHOWN_MAX])}{more}"
