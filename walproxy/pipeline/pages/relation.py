"""Names of relations, and where their pages are in a data folder. Pure, but for looking which files there are.

A name is SCHEMA.NAME or DATABASE.SCHEMA.NAME as SQL writes it, or the three numbers T/D/R that WAL has: tablespace,
database (0 for a shared relation) and file. https://www.postgresql.org/docs/current/storage-file-layout.html
"""

import re
from pathlib import Path
from typing import IO, Final, Literal, NamedTuple

from safekeeper.base.errors import ConfigurationError
from walproxy.pipeline.jobs.catalog import RelationId
from walproxy.pipeline.pages.page import PAGE_BYTES

DEFAULT_DATABASE: Final = "postgres"
FORKS: Final = ("main", "fsm", "vm", "init")
_SUFFIXES: Final = ("", "_fsm", "_vm", "_init")
_DEFAULT_TABLESPACE, _SHARED_TABLESPACE = 1663, 1664
_SEGMENT_BLOCKS: Final = (1 << 30) // PAGE_BYTES
_PART: Final = re.compile(r'"((?:[^"]|"")+)"|([^".]+)')


class RelationName(NamedTuple):
    """A relation by name. A shared one can be found from each database."""

    database: str
    schema: str
    name: str

    def __str__(self) -> str:
        return f"{self.database}.{self.schema}.{self.name}"


class PageId(NamedTuple):
    """A page, as WAL names it."""

    relation: RelationId
    fork: int
    block: int


def parse_relation(text: str) -> RelationName | RelationId:
    """Return what `text` names.

    Raises:
        ConfigurationError: it names nothing.
    """
    numbers = text.removeprefix("?").split("/")
    if len(numbers) == 3 and all(number.isascii() and number.isdecimal() for number in numbers):
        return RelationId(*map(int, numbers))
    parts = []
    place = 0
    while match := _PART.match(text, place):
        parts.append(match[1].replace('""', '"') if match[1] is not None else match[2].lower())
        place = match.end()
        if text[place : place + 1] != ".":
            break
        place += 1
    if place != len(text) or len(parts) not in (2, 3):
        raise ConfigurationError(
            f"{text!r} is not the name of a relation: write [DATABASE.]SCHEMA.NAME, or TABLESPACE/DATABASE/FILE as "
            "numbers"
        )
    return RelationName(*parts) if len(parts) == 3 else RelationName(DEFAULT_DATABASE, *parts)


def read_page(data_directory: Path, page: PageId) -> bytes:
    """Return a page of a server that is stopped.

    Raises:
        ConfigurationError: there is no such file, or the block is beyond its end.
    """
    path = _path(data_directory, page.relation, page.fork)
    blocks = 0
    segments = 0
    while (segment := _segment(path, segments)).is_file():
        blocks += segment.stat().st_size // PAGE_BYTES
        segments += 1
    if segments == 0:
        fork = "" if page.fork == 0 else f"the fork {FORKS[page.fork]} of "
        raise ConfigurationError(f"{fork}the relation {page.relation} has no file at that LSN: it did not exist")
    if page.block >= blocks:
        raise ConfigurationError(
            f"block {page.block} is beyond the end of the relation {page.relation}, which has {blocks} blocks at "
            "that LSN: correct --block"
        )
    with _file_of(path, page.block, "rb") as file:
        return file.read(PAGE_BYTES)


def write_page(data_directory: Path, page: PageId, content: bytes) -> None:
    """Replace a page of a server that is stopped, which exists. Its checksum is as it was."""
    with _file_of(_path(data_directory, page.relation, page.fork), page.block, "rb+") as file:
        file.write(content)


def _file_of(path: Path, block: int, mode: Literal["rb", "rb+"]) -> IO[bytes]:
    """Return the file that has a block, at its begin."""
    number, block_of_file = divmod(block, _SEGMENT_BLOCKS)
    file = _segment(path, number).open(mode)
    file.seek(block_of_file * PAGE_BYTES)
    return file


def _segment(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}") if number else path


def _path(data_directory: Path, relation: RelationId, fork: int) -> Path:
    """Return the first file of a fork."""
    name = f"{relation.relation}{_SUFFIXES[fork]}"
    if relation.tablespace == _SHARED_TABLESPACE:
        return data_directory / "global" / name
    if relation.tablespace == _DEFAULT_TABLESPACE:
        return data_directory / "base" / str(relation.database) / name
    versions = sorted((data_directory / "pg_tblspc" / str(relation.tablespace)).glob("PG_*"))
    folder = versions[-1] if versions else data_directory / "pg_tblspc" / str(relation.tablespace)
    return folder / str(relation.database) / name
