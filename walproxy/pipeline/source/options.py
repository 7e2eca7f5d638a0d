"""The options of `pgwal`, parsed once. Spark hands them over as text, their names in lower case.

| option | meaning |
|---|---|
| path | an archive, safekeepers or a folder of segments: walproxy/pipeline/input |
| view | which rows: walproxy/pipeline/schemas.py; `records` by default |
| columns | only these, separated by commas; Spark does not pass a Python source the columns that a query needs |
| timeline | which one, with its ancestors; the newest by default, and then a stream follows a promotion |
| startLsn, endLsn | the records that begin in [startLsn, endLsn) |
| startTime, endTime | the same, from the first commit at or after a time on, up to it |
| segmentsPerTask | how many segments a task reads, instead of a number that keeps every core busy |
| maxBytesPerTrigger | how much WAL a batch of a stream has at most |
| allowGaps | pass over WAL that is missing |
| checkCrc | compare each record's checksum; true by default |
| cores | how many tasks run at once; the cores of the machine that plans by default |
| archive.NAME | an option of the archive's store |
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Final, NamedTuple

import pyarrow as pa

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.lsn import Lsn, parse_lsn
from safekeeper.base.settings import positive_size
from walproxy.pipeline.schemas import arrow_schema, spark_ddl

PIECES: Final = "pieces"
"""A view of the source's own: which pieces of WAL there are. Its reader reads and decodes them itself."""

PIECES_SCHEMA: Final = pa.schema(
    [pa.field(name, pa.int64(), False) for name in ("begin_lsn", "end_lsn", "available_lsn", "tli")]
)

_ARCHIVE_PREFIX: Final = "archive."
_KNOWN: Final = (
    "path",
    "view",
    "columns",
    "timeline",
    "startLsn",
    "endLsn",
    "startTime",
    "endTime",
    "segmentsPerTask",
    "maxBytesPerTrigger",
    "allowGaps",
    "checkCrc",
    "cores",
)


class SourceOptions(NamedTuple):
    """The WAL to read. Can be pickled.

    Attributes:
        columns: in the order of the view; None for all.
        tli: None for the newest.
        max_bytes_per_trigger, segments_per_task, cores: None if not given.
        archive_options: of the input, in a fixed order.
    """

    path: str
    view: str
    columns: tuple[str, ...] | None
    tli: int | None
    start_lsn: Lsn | None
    end_lsn: Lsn | None
    start_time: datetime | None
    end_time: datetime | None
    segments_per_task: int | None
    max_bytes_per_trigger: int | None
    allow_gaps: bool
    check_crc: bool
    cores: int | None
    archive_options: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "SourceOptions":
        """Return the options that Spark hands over.

        Raises:
            ConfigurationError: there is no such option, or it cannot have this value.
        """
        given = {name.lower(): value for name, value in options.items()}
        known = {name.lower(): name for name in _KNOWN}
        unknown = [name for name in given if name not in known and not name.startswith(_ARCHIVE_PREFIX)]
        if unknown:
            raise ConfigurationError(f"pgwal has no option {unknown[0]!r}: it has {', '.join(_KNOWN)} and archive.NAME")
        if not given.get("path"):
            raise ConfigurationError("pgwal needs a path: load(PATH), of an archive, safekeepers or a folder")
        read = _Reader(given)
        view = given.get("view", "records")
        columns = given.get("columns")
        names = tuple(name.strip() for name in columns.split(",")) if columns is not None else None
        if view != PIECES:
            in_order = tuple(arrow_schema(view, names).names)
            names = in_order if names is not None else None
        elif names is not None:
            raise ConfigurationError(f"the view {PIECES} has no choice of columns")
        for kind in ("start", "end"):
            if f"{kind}lsn" in given and f"{kind}time" in given:
                raise ConfigurationError(f"{kind}Lsn and {kind}Time exclude each other: give one of them")
        return cls(
            path=given["path"],
            view=view,
            columns=names,
            tli=read.number("timeline"),
            start_lsn=read.lsn("startLsn"),
            end_lsn=read.lsn("endLsn"),
            start_time=read.time("startTime"),
            end_time=read.time("endTime"),
            segments_per_task=read.number("segmentsPerTask"),
            max_bytes_per_trigger=read.size("maxBytesPerTrigger"),
            allow_gaps=read.flag("allowGaps", False),
            check_crc=read.flag("checkCrc", True),
            cores=read.number("cores"),
            archive_options=tuple(
                sorted(
                    (name.removeprefix(_ARCHIVE_PREFIX), value)
                    for name, value in given.items()
                    if name.startswith(_ARCHIVE_PREFIX)
                )
            ),
        )

    def schema(self) -> pa.Schema:
        """Return the schema of the rows."""
        return PIECES_SCHEMA if self.view == PIECES else arrow_schema(self.view, self.columns)

    def ddl(self) -> str:
        """Return the schema as Spark writes it."""
        return spark_ddl(self.schema())


class _Reader(NamedTuple):
    """Reads the values of options, each by its own name, and reports what is wrong with one."""

    given: Mapping[str, str]

    def _refuse(self, name: str, wanted: str) -> ConfigurationError:
        return ConfigurationError(f"{name} cannot be {self.given[name.lower()]!r}: write {wanted}")

    def lsn(self, name: str) -> Lsn | None:
        value = self.given.get(name.lower())
        if value is None:
            return None
        try:
            return parse_lsn(value)
        except ConfigurationError:
            raise self._refuse(name, "an LSN as PostgreSQL does, for example 0/16B3748") from None

    def time(self, name: str) -> datetime | None:
        value = self.given.get(name.lower())
        if value is None:
            return None
        try:
            time = datetime.fromisoformat(value)
        except ValueError:
            raise self._refuse(name, "a time like 2026-11-21T14:16:05+01:00") from None
        return time.astimezone()  # One without a zone is of this machine's.

    def number(self, name: str) -> int | None:
        value = self.given.get(name.lower())
        if value is None:
            return None
        if not (value.isascii() and value.isdecimal() and int(value) > 0):
            raise self._refuse(name, "a number above zero")
        return int(value)

    def size(self, name: str) -> int | None:
        value = self.given.get(name.lower())
        if value is None:
            return None
        try:
            return positive_size(value)
        except ValueError:
            raise self._refuse(name, "a size like 256MB") from None

    def flag(self, name: str, default: bool) -> bool:
        value = self.given.get(name.lower())
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise self._refuse(name, "true or false")
        return value.lower() == "true"
