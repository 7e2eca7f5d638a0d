"""Format GET /limbo for a terminal: a table, or one line for a log.

Names and queries come from clients: control characters are shown as escapes, so that they cannot write to the terminal.
"""

from typing import Any, Final

from rich.console import Group
from rich.text import Text

from walproxy.terminal import Fit, FittedTable, TableColumn

_COLUMNS: Final = (
    TableColumn("xid", is_right=True),
    TableColumn("pid", is_right=True),
    TableColumn("waits", is_right=True),
    TableColumn("end"),
    TableColumn("state", leaves=4),
    TableColumn("missing", leaves=3),
    TableColumn("kind", leaves=2, fit=Fit.SHORTEN),
    TableColumn("session", leaves=1, fit=Fit.SHORTEN),
    TableColumn("query", leaves=5, fit=Fit.SHORTEN),
)
_STATE_STYLE: Final = {"waiting": "yellow", "confirmed": "green", "detached": "red", "discarded": "red"}


def printable(text: str) -> str:
    """Return a text in one line, with escapes for characters that are not printable."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def render(content: dict[str, Any]) -> Group:
    """Return the limbo as lines and a table."""
    table = FittedTable(_COLUMNS)
    for each in content["transactions"]:
        session = each["session"]
        table.add_row(
            str(each["xid"] or "-"),
            str(session["pid"]) if session is not None else "-",
            _seconds(each["waits_s"]),
            each["end_lsn"] or "-",
            Text(each["state"], style=_STATE_STYLE.get(each["state"], "")),
            ",".join(map(str, each["missing"])) or "-",
            printable(each["kind"] + (f" {each['gid']}" if each["gid"] else "")),
            _session(session),
            printable(session["query"]) if session is not None else "-",
        )
    lines = [Text(_head(content), style="bold" if content["entries"] else "green")]
    more = content["entries"] - content["listed"]
    if more > 0:
        lines.append(Text(f"the oldest {content['listed']} are listed; {more} more wait"))
    if content["problem"]:
        lines.append(Text(printable(content["problem"]), style="red"))
    return Group(*lines, *([table] if content["transactions"] else []))


def summarise(content: dict[str, Any]) -> str:
    """Return the limbo as one line, for a log."""
    problem = f" problem: {printable(content['problem'])}" if content["problem"] else ""
    return _head(content) + problem


def _head(content: dict[str, Any]) -> str:
    owner = content["owner"]
    term = f"term {owner['term']}" if owner is not None else "no term"
    rate = "-" if content["confirms_per_s"] is None else f"{content['confirms_per_s']:g}"
    return (
        f"{content['entries']} transactions, {content['bytes']} bytes, oldest {_seconds(content['oldest_s'])}, "
        f"{content['state']}, {term}, quorum {content['quorum']}, commit {content['commit_lsn']}, {rate} commits/s"
    )


def _session(session: dict[str, Any] | None) -> str:
    if session is None:
        return "-"
    place = f" {session['client']}" if session["client"] else ""
    return printable(f"{session['user']} {session['application']}{place}")


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"
