"""Parses the commands of replication clients.

There are two grammars. Clients of PostgreSQL 13 and 14, and newer ones connected to an older server, send
`CREATE_REPLICATION_SLOT s PHYSICAL RESERVE_WAL`; from 15 on they send `(RESERVE_WAL)` or `(RESERVE_WAL true)`. Names
are unquoted, and then folded to lower case, or quoted. Keywords are case-insensitive, and one `;` may end a command.
Source: https://www.postgresql.org/docs/current/protocol-replication.html

Text whose first word is not a keyword of the streaming protocol is SQL. Two SQL statements are parsed, for tools that
check their slot before they stream: `Select`, one row of one relation, and `SetName`. All other SQL, and the commands
that need a database, are `Unsupported`, each with the server to use instead. Text that begins as a replication command
but is not a valid one raises RemoteProtocolError (S11).

Pure: no I/O.
"""

import re
from dataclasses import dataclass
from typing import NamedTuple, NoReturn, TypeAlias

from safekeeper.base.errors import RemoteProtocolError
from safekeeper.base.lsn import Lsn, parse_lsn
from safekeeper.base.timelines import TLI_MAX


@dataclass(frozen=True, slots=True)
class IdentifySystem:
    """Request the system, its TLI and the end of its WAL: (systemid, timeline, xlogpos, dbname)."""


@dataclass(frozen=True, slots=True)
class Show:
    """Request the value of a setting: one column of its name."""

    name: str


@dataclass(frozen=True, slots=True)
class TimelineHistory:
    """Request the history file of a TLI: (filename, content)."""

    tli: int


@dataclass(frozen=True, slots=True)
class CreateSlot:
    """Create a physical slot: (slot_name, consistent_point, snapshot_name, output_plugin).

    `reserve_wal` retains WAL from now on, not only from the first status update on.
    """

    name: str
    temporary: bool
    reserve_wal: bool


@dataclass(frozen=True, slots=True)
class ReadSlot:
    """Request a slot's fields: (slot_type, restart_lsn, restart_tli), all NULL if the slot does not exist."""

    name: str


@dataclass(frozen=True, slots=True)
class DropSlot:
    """Drop a slot; `wait` until it is no longer used."""

    name: str
    wait: bool


@dataclass(frozen=True, slots=True)
class StartReplication:
    """Stream WAL from `begin_lsn` on, of the given TLI or else the newest; `slot` retains what is not flushed."""

    slot: str | None
    begin_lsn: Lsn
    tli: int | None


@dataclass(frozen=True, slots=True)
class Select:
    """Request at most one row of a relation: `SELECT active FROM pg_replication_slots WHERE slot_name = 's'`.

    Args:
        columns: names of columns; of functions without arguments, as `version()`; or numbers.
        relation: empty without FROM.
        where: (column, its value), combined with AND; the value None is CURRENT_USER.
    """

    columns: tuple[str, ...]
    relation: str = ""
    where: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True, slots=True)
class SetName:
    """Set the client's application_name: `SET application_name TO name`."""

    name: str


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A PostgreSQL command that a safekeeper does not support (0A000); `hint` names the server to use instead."""

    what: str
    hint: str


@dataclass(frozen=True, slots=True)
class EmptyQuery:
    """An empty command, to which PostgreSQL replies too."""


Command: TypeAlias = (
    IdentifySystem
    | Show
    | TimelineHistory
    | CreateSlot
    | ReadSlot
    | DropSlot
    | StartReplication
    | Select
    | SetName
    | Unsupported
    | EmptyQuery
)

# Maximum length of a quotation in a message, which must stay one line.
_QUOTED_CHARACTERS_MAX = 60

_DATABASE_HINT = "connect to the primary or to a standby"
_UNSUPPORTED = {
    "BASE_BACKUP": ("a base backup", "take it from the primary or a standby, then stream the WAL from here"),
    "UPLOAD_MANIFEST": ("an incremental backup", "take it from the primary or a standby"),
    "ALTER_REPLICATION_SLOT": ("changing a slot", "its options belong to logical slots: connect to the primary"),
}
_SQL = Unsupported("SQL", _DATABASE_HINT)
_LOGICAL = Unsupported(
    "logical replication", "a safekeeper does not decode WAL: connect to the primary or to a standby"
)
_TRUE = {"true", "on", "1"}
_FALSE = {"false", "off", "0"}

_BLANKS = " \t\r\n\f\v"
_TOKEN = re.compile(
    rf"""[{_BLANKS}]*(?:
        (?P<lsn>[0-9A-Fa-f]+/[0-9A-Fa-f]+)
      | (?P<number>[0-9]+)
      | (?P<word>[A-Za-z_\x80-\U0010ffff][A-Za-z_\x80-\U0010ffff0-9$]*)
      | "(?P<quoted>(?:[^"]|"")+)"
      | '(?P<literal>(?:[^']|'')*)'
      | (?P<mark>[(),;.=])
    )""",
    re.VERBOSE,
)
_WORD = re.compile(rf"[{_BLANKS}]*([A-Za-z_]\w*)", re.ASCII)


class _Token(NamedTuple):
    kind: str
    text: str


_END = _Token("end", "")


def parse_command(text: str) -> Command:
    """Return the command in `text`.

    Raises:
        RemoteProtocolError: it is not a command, or not in the form that PostgreSQL's clients send.
    """
    if not text.strip(_BLANKS + ";"):
        return EmptyQuery()
    first = _WORD.match(text)
    if first is None:
        raise RemoteProtocolError(f"not a replication command: {text[:_QUOTED_CHARACTERS_MAX]!r}")
    word = first[1].upper()
    if word in _UNSUPPORTED:
        return Unsupported(*_UNSUPPORTED[word])
    if word in _SQL_PARSERS:
        return _parse_sql(word, text, first.end())
    if word not in _PARSERS:
        return _SQL
    words = _Words(text, first.end())
    command = _PARSERS[word](words)
    # What follows LOGICAL belongs to the decoder plugin and is not checked.
    if not isinstance(command, Unsupported):
        words.end()
    return command


class _Words:
    """The tokens of a command, read from left to right."""

    def __init__(self, text: str, position: int) -> None:
        self._text = text
        self._position = position
        self._token = self._scan()

    def keyword(self, word: str) -> bool:
        """Consume the keyword `word` if it is next; return whether it was."""
        if self._token.kind != "word" or self._token.text.upper() != word:
            return False
        self._token = self._scan()
        return True

    def mark(self, mark: str) -> bool:
        """Consume the punctuation `mark` if it is next; return whether it was."""
        if self._token != ("mark", mark):
            return False
        self._token = self._scan()
        return True

    def name(self) -> str:
        """Consume a name: unquoted ones are folded to lower case, as in PostgreSQL."""
        token = self._take("word", "quoted", expected="a name")
        return token.text.lower() if token.kind == "word" else token.text.replace('""', '"')

    def literal(self) -> str:
        """Consume a string in single quotes."""
        return self._take("literal", expected="a string").text.replace("''", "'")

    def number(self) -> str:
        """Consume a number if it is next; else return an empty string."""
        return self._take("number", expected="a number").text if self._token.kind == "number" else ""

    def is_name(self) -> bool:
        """Return whether a name is next."""
        return self._token.kind in ("word", "quoted")

    def lsn(self) -> Lsn:
        """Consume an LSN."""
        token = self._take("lsn", expected="an LSN")
        if any(len(half) > 8 for half in token.text.split("/")):
            self.refuse("an LSN", token)
        return parse_lsn(token.text)

    def tli(self) -> int:
        """Consume a TLI."""
        token = self._take("number", expected="a timeline")
        if len(token.text) > len(str(TLI_MAX)) or not 0 < int(token.text) <= TLI_MAX:
            self.refuse("a timeline of 1 or higher", token)
        return int(token.text)

    def boolean(self) -> bool:
        """Consume the value of an option; without one it is true."""
        if self._token.kind not in ("word", "quoted", "literal", "number"):
            return True
        token = self._take("word", "quoted", "literal", "number", expected="true or false")
        value = token.text.lower()
        if value not in _TRUE | _FALSE:
            self.refuse("true or false", token)
        return value in _TRUE

    def end(self) -> None:
        """Require the end of the command, after at most one semicolon."""
        self.mark(";")
        if self._token != _END:
            self.refuse("nothing more", self._token)

    def expect_mark(self, mark: str) -> None:
        """Consume the punctuation `mark`, which must be next."""
        if not self.mark(mark):
            self.refuse(f'"{mark}"', self._token)

    def refuse_next(self, expected: str) -> NoReturn:
        """Raise a syntax error at the next token."""
        self.refuse(expected, self._token)

    def refuse(self, expected: str, found: _Token) -> NoReturn:
        """Raise a syntax error at `found`."""
        where = f"at {found.text[:_QUOTED_CHARACTERS_MAX]!r}" if found != _END else "at its end"
        command = self._text[:_QUOTED_CHARACTERS_MAX]
        raise RemoteProtocolError(f"syntax error {where}: expected {expected} in {command!r}")

    def _take(self, *kinds: str, expected: str) -> _Token:
        token = self._token
        if token.kind not in kinds:
            self.refuse(expected, token)
        self._token = self._scan()
        return token

    def _scan(self) -> _Token:
        match = _TOKEN.match(self._text, self._position)
        if match is None:
            rest = self._text[self._position :].strip(_BLANKS)
            if rest:
                self.refuse("a replication command", _Token("unknown", rest))
            return _END
        self._position = match.end()
        kind = match.lastgroup or ""
        return _Token(kind, match[kind])


def _parse_identify_system(words: _Words) -> Command:
    return IdentifySystem()


def _parse_show(words: _Words) -> Command:
    name = words.name()
    while words.mark("."):
        name += f".{words.name()}"
    return Show(name)


def _parse_timeline_history(words: _Words) -> Command:
    return TimelineHistory(words.tli())


def _parse_read_slot(words: _Words) -> Command:
    return ReadSlot(words.name())


def _parse_drop_slot(words: _Words) -> Command:
    return DropSlot(words.name(), wait=words.keyword("WAIT"))


def _parse_create_slot(words: _Words) -> Command:
    name = words.name()
    temporary = words.keyword("TEMPORARY")
    if words.keyword("LOGICAL"):
        return _LOGICAL
    if not words.keyword("PHYSICAL"):
        words.refuse_next("PHYSICAL")
    if words.mark("("):
        reserve_wal = _parse_reserve_wal(words)
    else:
        reserve_wal = words.keyword("RESERVE_WAL")
    return CreateSlot(name, temporary, reserve_wal)


def _parse_reserve_wal(words: _Words) -> bool:
    """Return the only option of a physical slot. The parenthesis before it was consumed."""
    if not words.keyword("RESERVE_WAL"):
        words.refuse_next("RESERVE_WAL, the only option of a physical slot")
    reserve_wal = words.boolean()
    words.expect_mark(")")
    return reserve_wal


def _parse_start_replication(words: _Words) -> Command:
    slot = words.name() if words.keyword("SLOT") else None
    if words.keyword("LOGICAL"):
        return _LOGICAL
    words.keyword("PHYSICAL")
    begin_lsn = words.lsn()
    return StartReplication(slot, begin_lsn, words.tli() if words.keyword("TIMELINE") else None)


def _parse_sql(word: str, text: str, position: int) -> Command:
    try:
        words = _Words(text, position)
        command = _SQL_PARSERS[word](words)
        words.end()
    except RemoteProtocolError:
        # It may nevertheless be valid SQL.
        return _SQL
    return command


def _parse_select(words: _Words) -> Command:
    columns = [_parse_column(words)]
    while words.mark(","):
        columns.append(_parse_column(words))
    relation, where = "", []
    if words.keyword("FROM"):
        relation = words.name()
        if words.keyword("WHERE"):
            where.append(_parse_condition(words))
            while words.keyword("AND"):
                where.append(_parse_condition(words))
    return Select(tuple(columns), relation, tuple(where))


def _parse_column(words: _Words) -> str:
    number = words.number()
    if number:
        return number
    name = words.name()
    if words.mark("("):
        words.expect_mark(")")
        name += "()"
    return name


def _parse_condition(words: _Words) -> tuple[str, str | None]:
    name = words.name()
    words.expect_mark("=")
    return name, None if words.keyword("CURRENT_USER") else words.literal()


def _parse_set(words: _Words) -> Command:
    if not words.keyword("APPLICATION_NAME"):
        words.refuse_next("application_name")
    if not words.keyword("TO"):
        words.expect_mark("=")
    return SetName(words.name() if words.is_name() else words.literal())


_SQL_PARSERS = {"SELECT": _parse_select, "SET": _parse_set}
_PARSERS = {
    "IDENTIFY_SYSTEM": _parse_identify_system,
    "SHOW": _parse_show,
    "TIMELINE_HISTORY": _parse_timeline_history,
    "CREATE_REPLICATION_SLOT": _parse_create_slot,
    "READ_REPLICATION_SLOT": _parse_read_slot,
    "DROP_REPLICATION_SLOT": _parse_drop_slot,
    "START_REPLICATION": _parse_start_replication,
}
