"""The options of `pgcdc`, parsed once. Spark hands them over as text, their names in lower case.

| option | meaning |
|---|---|
| conninfo | the primary and the database, as libpq writes it; passwords belong into .pgpass |
| slot | a logical slot of the plugin pgoutput, for this query alone |
| publication | one, or several separated by commas |
| table | schema.name: the changes of this table only, with typed columns |
| textColumns | columns of that table to be read as text, separated by commas |
| arrays | of that table: text (default), or list: arrays of built-in types are lists |
| status | where the quorum's commit position is read: a URL of walproxy, standby:NAME or none (safe_lsn.py) |
| startLsn | where a stream or a batch begins; at the slot's confirmed position by default, which it cannot be below |
| endLsn | where a batch ends; at the last change that is on a quorum by default |
| maxBytesPerTrigger | how much WAL a batch of a stream decodes at most; a transaction is never divided |
| streaming | true: large transactions are sent before they are committed |
| memoryBytes | how much of those is held in memory, the rest on disk; 64 MB by default |
| quorumTimeout | seconds to wait for the quorum when the last transaction of a batch is not on it yet; 300 by default |
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.lsn import Lsn, parse_lsn
from safekeeper.base.settings import positive_size
from walproxy.pipeline.cdc.publication import TableName, parse_table
from walproxy.pipeline.cdc.safe_lsn import SafeLsn
from walproxy.pipeline.cdc.spool import MEMORY_BYTES
from walproxy.pipeline.choices import ARRAY_COLUMNS
from walproxy.postgres.conninfo import parse_conninfo

_KNOWN: Final = (
    "conninfo",
    "slot",
    "publication",
    "table",
    "textColumns",
    "arrays",
    "status",
    "startLsn",
    "endLsn",
    "maxBytesPerTrigger",
    "streaming",
    "memoryBytes",
    "quorumTimeout",
)
_QUORUM_TIMEOUT_S: Final = 300.0


class CdcOptions(NamedTuple):
    """The changes to read. Can be pickled.

    Attributes:
        table: None for all tables, as text.
        lists: its arrays of built-in types are lists.
        status: None if it was not given.
    """

    conninfo: str
    slot: str
    publications: tuple[str, ...]
    table: TableName | None = None
    text_columns: frozenset[str] = frozenset()
    lists: bool = False
    status: str | None = None
    start_lsn: Lsn | None = None
    end_lsn: Lsn | None = None
    max_bytes_per_trigger: int | None = None
    stream: bool = False
    memory_bytes: int = MEMORY_BYTES
    quorum_timeout_s: float = _QUORUM_TIMEOUT_S

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "CdcOptions":
        """Return the options that Spark hands over.

        Raises:
            ConfigurationError: there is no such option, one is missing, or it cannot have this value.
        """
        given = {name.lower(): value for name, value in options.items()}
        known = {name.lower(): name for name in _KNOWN}
        unknown = [name for name in given if name not in known]
        if unknown:
            raise ConfigurationError(f"pgcdc has no option {unknown[0]!r}: it has {', '.join(_KNOWN)}")
        for name in ("conninfo", "slot", "publication"):
            if not given.get(name):
                raise ConfigurationError(f"pgcdc needs the option {name}")
        parse_conninfo(given["conninfo"])
        SafeLsn(given.get("status"))
        start, end = given.get("startlsn"), given.get("endlsn")
        return cls(
            given["conninfo"],
            given["slot"],
            _list(given["publication"]),
            parse_table(given["table"]) if "table" in given else None,
            frozenset(_list(given.get("textcolumns", ""))),
            _lists(given.get("arrays", "text")),
            given.get("status"),
            parse_lsn(start) if start is not None else None,
            parse_lsn(end) if end is not None else None,
            _size(given, "maxBytesPerTrigger"),
            _flag(given, "streaming"),
            _size(given, "memoryBytes") or MEMORY_BYTES,
            _seconds(given, "quorumTimeout"),
        )


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _lists(value: str) -> bool:
    if value not in ARRAY_COLUMNS:
        raise ConfigurationError(f"arrays cannot be {value!r}: write {' or '.join(ARRAY_COLUMNS)}")
    return value == "list"


def _size(given: Mapping[str, str], name: str) -> int | None:
    value = given.get(name.lower())
    try:
        return None if value is None else positive_size(value)
    except ValueError:
        raise ConfigurationError(f"{name} cannot be {value!r}: write a size like 256MB") from None


def _flag(given: Mapping[str, str], name: str) -> bool:
    value = given.get(name.lower(), "false").lower()
    if value not in ("true", "false"):
        raise ConfigurationError(f"{name} cannot be {value!r}: write true or false")
    return value == "true"


def _seconds(given: Mapping[str, str], name: str) -> float:
    value = given.get(name.lower())
    if value is None:
        return _QUORUM_TIMEOUT_S
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise ConfigurationError(f"{name} cannot be {value!r}: write a number of seconds above zero")
    return seconds
