"""`walproxy pipeline page`: the restored page, described, written, or compared."""

from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console

from safekeeper.base.errors import EXIT_FINE, EXIT_UNEXPECTED, ConfigurationError
from safekeeper.base.lsn import Lsn, format_lsn
from walproxy.pipeline.pages.page import hex_dump
from walproxy.pipeline.pages.primary import PageVerdict, verify
from walproxy.pipeline.pages.relation import FORKS, parse_relation
from walproxy.pipeline.pages.restore import PageRequest, RestoredPage, restore_page
from walproxy.pipeline.pages.row import ShownRow

__all__ = ["PageRequest", "parse_relation", "restore_and_print"]


def restore_and_print(
    request: PageRequest, primary: str | None, output: Path | None, *, as_json: bool, as_hex: bool
) -> int:
    """Restore a page and print its description; return the exit code.

    Args:
        primary: the server whose page it is compared with, None for none.
        output: a file for the page's bytes.
    """
    restored = _restore(request)
    verdict = verify(restored.content, restored.page, primary) if primary is not None else None
    if output is not None:
        _write(output, restored.content)
    if as_json:
        click.echo(msgspec.json.encode(_as_json(restored, verdict)).decode())
    else:
        for line in _page_lines(restored, verdict):
            click.echo(line)
        for line in hex_dump(restored.content) if as_hex else ():
            click.echo(line)
    return EXIT_UNEXPECTED if verdict is not None and verdict.difference.ranges else EXIT_FINE


def _restore(request: PageRequest) -> RestoredPage:
    """Restore the page, and show the progress on a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        return restore_page(request)
    with console.status("") as status:
        return restore_page(request, status.update)


def _write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise ConfigurationError(f"could not write {path}: {error.strerror}; correct --output") from error


def _page_lines(restored: RestoredPage, verdict: PageVerdict | None) -> list[str]:
    header, history = restored.header, restored.history
    where = f"{restored.page.relation}, {FORKS[restored.page.fork]} fork"
    lines = [
        f"block {restored.page.block} of {where}, at {format_lsn(restored.at_lsn)} on timeline {restored.tli}: "
        f"changed last at {format_lsn(header.lsn)}",
        f"recovered by PostgreSQL {restored.major} over {restored.replayed_bytes} bytes of WAL, up to the record at "
        f"{format_lsn(restored.last_record.lsn)}",
    ]
    if history.last is None:
        lines.append("made by: the base backup; no record has changed the page since")
    else:
        last = history.last
        begin = "the base backup" if history.image_lsn is None else f"the image at {format_lsn(history.image_lsn)}"
        lines.append(
            f"made by: {begin} and {history.records_since_image} records since; the last one is {last.rmgr} "
            f"{last.operation} at {format_lsn(last.lsn)}, which ends at {format_lsn(last.end_lsn)}"
        )
    if header.is_regular:
        lines.append(
            f"header: checksum {header.checksum:#06x}, flags {header.flags:#06x}, lower {header.lower}, upper "
            f"{header.upper}, special {header.special}, layout {header.version}, {header.items} line pointers"
        )
    else:
        lines.append("header: none, the page was never used")
    lines += _row_lines(restored.row) if restored.row is not None else []
    return lines + (_verdict_lines(verdict) if verdict is not None else [])


def _row_lines(row: ShownRow) -> list[str]:
    version = row.version
    made = "a transaction that is frozen" if version.xmin is None else f"transaction {version.xmin} ({row.made})"
    who = f"multixact {version.xmax}" if version.is_multi else f"transaction {version.xmax} ({row.ended})"
    how = "locked" if version.is_locked_only else "deleted, updated or locked" if version.is_multi else "ended"
    ended = f"{how} by {who}" if version.xmax else "not ended"
    kind = "heap-only, " if version.is_heap_only else ""
    seen = "visible" if row.is_visible else "not visible"
    lines = [
        f"row at line pointer {row.line}: {seen} at this LSN, made by {made}, {ended}",
        f"version: {kind}{version.columns} columns stored in {version.length} bytes, next version at "
        f"({version.next_ctid[0]},{version.next_ctid[1]})",
    ]
    width = max((len(name) for name in row.content), default=0)
    return lines + [f"  {name:{width}}  {bytes(value).decode()}" for name, value in row.content.items()]


def _verdict_lines(verdict: PageVerdict) -> list[str]:
    excused = ", ".join(f"{count} of {kind}" for kind, count in verdict.difference.excused.items())
    but = f", except for bytes that redo does not restore: {excused}" if excused else " byte for byte"
    if not verdict.difference.ranges:
        return [f"the primary's page ({verdict.read_by}) is the same{but}"]
    ranges = ", ".join(f"{begin} to {end}" for begin, end in verdict.difference.ranges[:10])
    more = f" and {len(verdict.difference.ranges) - 10} more" if len(verdict.difference.ranges) > 10 else ""
    return [f"DIFFERENT: the primary's page ({verdict.read_by}) has other bytes from {ranges}{more}"]


def _as_json(restored: RestoredPage, verdict: PageVerdict | None) -> dict[str, Any]:
    def lsn(value: Lsn | None) -> str | None:
        return format_lsn(value) if value is not None else None

    history = restored.history
    content: dict[str, Any] = {
        **restored.page.relation._asdict(),
        "fork": FORKS[restored.page.fork],
        "block": restored.page.block,
        "at": lsn(restored.at_lsn),
        "tli": restored.tli,
        "page_lsn": lsn(restored.header.lsn),
        "header": {name: value for name, value in restored.header._asdict().items() if name != "lsn"},
        "recovered_to": lsn(restored.last_record.lsn),
        "image_lsn": lsn(history.image_lsn),
        "records_since_image": history.records_since_image,
        "last_record": None,
        "content": restored.content,
    }
    if history.last is not None:
        content["last_record"] = {
            "lsn": lsn(history.last.lsn),
            "end_lsn": lsn(history.last.end_lsn),
            "rmgr": history.last.rmgr,
            "operation": history.last.operation,
        }
    if restored.row is not None:
        row = restored.row
        content["row"] = {
            "line": row.line,
            "visible": row.is_visible,
            "made": row.made,
            "ended": row.ended,
            "version": row.version._asdict(),
            "content": row.content,
        }
    if verdict is not None:
        content["primary"] = {
            "read_by": verdict.read_by,
            "same": not verdict.difference.ranges,
            "excused": verdict.difference.excused,
            "different": verdict.difference.ranges,
        }
    return content
