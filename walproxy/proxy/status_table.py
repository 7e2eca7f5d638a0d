"""Format the /status of a proxy: tables for a terminal, or one line for a log."""

from typing import Any, Final

from rich.console import Group
from rich.text import Text

from walproxy.proxy.levels import slowest_first
from walproxy.terminal import Fit, FittedTable, TableColumn

_POSITIONS: Final = (
    TableColumn("received", leaves=2),
    TableColumn("write", leaves=1),
    TableColumn("flush", leaves=4),
    TableColumn("apply", leaves=3),
    TableColumn("commit"),
)
_SAFEKEEPERS: Final = (
    TableColumn("safekeeper"),
    TableColumn("state"),
    TableColumn("write", leaves=1),
    TableColumn("flush", leaves=4),
    TableColumn("lag", is_right=True),
    TableColumn("answered", leaves=2, is_right=True),
    TableColumn("p50/p99", leaves=3, is_right=True),
)
_STANDBYS: Final = (
    TableColumn("standby", fit=Fit.SHORTEN),
    TableColumn("from", leaves=1),
    TableColumn("apply lag", leaves=2, is_right=True),
    TableColumn("if promoted now", fit=Fit.WRAP),
)
_GATE_WORDS = {"not gated": "NOT GATED", "unknown": "gate unknown"}
_GATE_STYLE = {"gated": "green", "gated with others": "yellow", "not gated": "red", "unknown": "yellow"}
_STATE_STYLE = {
    "streaming": "green",
    "recovering": "yellow",
    "electing": "yellow",
    "connecting": "yellow",
    "waiting": "yellow",
    "greeting": "yellow",
    "catching_up": "yellow",
    "learner": "cyan",
}


def render(content: dict[str, Any], *, by_urgency: bool = False) -> Group:
    """Return the status as lines and a table.

    Args:
        by_urgency: what blocks commits is first: problems, then safekeepers that do not stream, then the slowest one.
    """
    state = content["state"] + (" (spare)" if content.get("spare") else "")
    gate = content.get("gate")
    head = Text.assemble(
        (state, "bold " + _STATE_STYLE.get(content["state"], "red")),
        _gate_word(gate),
        f"  term {content['term']}  timeline {content['tli'] or '-'}  {_quorum(content)}",
    )
    positions = FittedTable(_POSITIONS)
    positions.add_row(*(content[f"{column.name}_lsn"] for column in _POSITIONS))
    table = FittedTable(_SAFEKEEPERS)
    problems = []
    missing = {each["id"] for each in (content.get("quorum_lost") or {}).get("missing", ())}
    times = content["times"]
    safekeepers = content["safekeepers"]
    for each in slowest_first(safekeepers, times) if by_urgency else safekeepers:
        answered_s = each["last_response_s"]
        table.add_row(
            str(each["id"]),
            Text(each["state"], style=_STATE_STYLE.get(each["state"], "red")),
            each["write_lsn"],
            each["flush_lsn"],
            format_bytes(each["lag_bytes"]),
            "-" if answered_s is None else f"{answered_s:.1f} s ago",
            _percentiles(times["members"].get(str(each["id"]))),
        )
        who, what = f"safekeeper {each['id']}", each.get("problem")
        if what and each["id"] not in missing:
            problems.append(Text(what if who in what else f"{who}: {what}", style="red"))
    problems[:0] = _primary_problems(content.get("primary") or {})
    effect = "" if gate is not None and gate["state"] == "not gated" else ": commits wait"
    lost = [*_gate_problems(gate), *_quorum_lost(content.get("quorum_lost"), effect)]
    commit = Text(f"commit latency until a quorum has the WAL on disk: p50/p99 {_percentiles(times['quorum'])}")
    rest = [*_standbys(content), *_archive(content.get("archive"))]
    if by_urgency:
        return Group(*lost, *problems, head, commit, table, positions, *rest)
    return Group(*lost, head, commit, positions, table, *rest, *problems)


def _percentiles(times: dict[str, Any] | None) -> str:
    if times is None or times["p50_s"] is None:
        return "-"
    p50, p99 = format_seconds(times["p50_s"]), format_seconds(times["p99_s"])
    (value, unit), other_unit = p50.split(), p99.split()[1]
    return f"{value if unit == other_unit else p50}/{p99}"


def _gate_word(gate: dict[str, Any] | None) -> Text:
    """Return whether commits wait, to follow the state; empty if nothing is known."""
    if gate is None:
        return Text()
    state = gate["state"]
    return Text("  " + _GATE_WORDS.get(state, state), "bold " + _GATE_STYLE[state])


def _gate_problems(gate: dict[str, Any] | None) -> list[Text]:
    """Return the lines about commits that do not wait for the quorum, or wait for something else."""
    if gate is None:
        return []
    lines = []
    if gate["state"] == "not gated":
        lines.append(Text(f"NOT GATED: commits do not wait for the quorum: {gate['reason']}", style="bold red"))
    elif gate["hangs"]:
        lines.append(Text(f"COMMITS HANG: they wait for another standby: {gate['reason']}", style="bold red"))
    elif gate["state"] == "unknown":
        lines.append(Text(f"whether commits wait for the quorum is unknown: {gate['reason']}", style="yellow"))
    elif gate["reason"]:
        lines.append(Text(f"commits may return without the quorum: {gate['reason']}", style="yellow"))
    if gate["exempt"]:
        lines.append(Text(gate["exempt"], style="yellow"))
    return lines


def _quorum_lost(lost: dict[str, Any] | None, effect: str) -> list[Text]:
    """Return the lines about a lost quorum, none while there is a quorum."""
    if lost is None:
        return []
    sessions = "unknown" if lost["waiting_sessions"] is None else lost["waiting_sessions"]
    lines = [
        f"NO QUORUM for {lost['for_s']:.0f} s{effect}; waiting sessions: {sessions}; "
        f"members that take part: {lost['present']}, needed: {lost['needed']}",
        *(f"missing: safekeeper {each['id']}: {each['problem']}" for each in lost["missing"]),
    ]
    if lost["waiting_problem"]:
        lines.append(f"the waiting sessions could not be counted: {lost['waiting_problem']}")
    return [Text(line, style="bold red") for line in lines]


def _quorum(content: dict[str, Any]) -> str:
    """Return the sizes of the quorums, the number of members, and the number of those that stream."""
    members, change = content.get("members"), content.get("members_change")
    if members is None:
        return f"quorum {content['quorum']} of {len(content['safekeepers'])}, no membership is known yet"
    elect = content.get("elect_quorum", content["quorum"])
    to_elect = f" ({elect} to elect a leader)" if elect != content["quorum"] else ""
    learners = f", {content['learners']} learning" if content.get("learners") else ""
    changing = f"; members change to {', '.join(map(str, change['to']))}" if change else ""
    streaming = content["members_streaming"]
    return f"quorum {content['quorum']} of {len(members)} members{to_elect}, {streaming} streaming{learners}{changing}"


def _standbys(content: dict[str, Any]) -> list[FittedTable | Text]:
    """Return the table of standbys, if there are any, and the standbys that remote_apply waits for."""
    shown: list[FittedTable | Text] = []
    if content.get("standbys"):
        table = FittedTable(_STANDBYS)
        for each in content["standbys"]:
            table.add_row(
                each["name"],
                f"{each['safekeeper']}" if each["connected"] else f"{each['safekeeper']}, gone",
                format_bytes(each["apply_lag_bytes"]),
                _fitness(each),
            )
        shown.append(table)
    if content.get("apply_rule"):
        shown.append(Text(f"remote_apply waits for {content['apply_rule']}"))
    if content.get("apply_problem"):
        shown.append(Text(f"remote_apply is blocked: {content['apply_problem']}", style="red"))
    return shown


def _archive(archive: dict[str, Any] | None) -> list[Text]:
    """Return a line about the archive, if there is one."""
    if archive is None:
        return []
    if archive["archiver"] is None:
        return [Text("archive: no archiver", style="yellow")]
    who = f"archive: safekeeper {archive['archiver']}"
    if archive["problem"]:
        return [Text(f"{who} cannot archive: {archive['problem']}", style="red")]
    if archive["lag_bytes"] is None:
        return [Text(f"{who} has not reported its progress yet", style="yellow")]
    return [Text(f"{who}, up to {archive['archived_lsn']}, lag {format_bytes(archive['lag_bytes'])}")]


def _fitness(standby: dict[str, Any]) -> Text:
    """Return how much WAL would be lost if this standby were promoted now, and whether its replay stands still."""
    completeness = _completeness(standby)
    if standby["stalled_s"] is None:
        return completeness
    stalled = f"has replayed nothing for {format_seconds(standby['stalled_s'])}"
    return Text(f"{completeness.plain}; {stalled}", style="red")


def _completeness(standby: dict[str, Any]) -> Text:
    """Return how much WAL would be lost if this standby were promoted now."""
    if standby["has_everything"] is None:
        return Text("unknown", style="yellow")
    if standby["apply_lsn"] == "0/0":
        return Text("does not replay: not a server")
    if standby["has_everything"]:
        return Text("has every acknowledged commit", style="green")
    return Text(f"lacks {standby['lag_bytes']} bytes", style="red")


def _primary_problems(primary: dict[str, Any]) -> list[Text]:
    """Return a line for each host of several, or what is wrong with the only one."""
    hosts = primary.get("hosts") or []
    if len(hosts) > 1:
        lines = [_host_line(each) for each in hosts]
    else:
        lines = [Text(f"primary: {primary['problem']}", style="red")] if primary.get("problem") else []
    if primary.get("sql_problem"):
        lines.append(Text(f"SQL on the primary is not possible: {primary['sql_problem']}", style="red"))
    return lines


def _host_line(host: dict[str, Any]) -> Text:
    style = {"connected": "green", "standby": "cyan", "untried": "cyan"}.get(host["state"], "red")
    # In these states the problem only repeats the name of the state.
    problem = f": {host['problem']}" if host.get("problem") and host["state"] not in ("untried", "standby") else ""
    return Text.assemble(f"primary {host['host']} ", (host["state"], style), problem)


def format_seconds(seconds: float | None) -> str:
    """Return a time in milliseconds or seconds, with two digits that count; `-` for None."""
    if seconds is None:
        return "-"
    value, unit = (seconds, "s") if seconds >= 1 else (seconds * 1000, "ms")
    return f"{value:.0f} {unit}" if value >= 10 else f"{value:.1f} {unit}" if value >= 1 else f"{value:.2f} {unit}"


def format_bytes(count: int | None) -> str:
    """Return a number of bytes in a suitable unit, `-` for None."""
    if count is None:
        return "-"
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("the last unit returns above")


def summarise(content: dict[str, Any]) -> str:
    """Return the status as one line, for a log."""
    members = " ".join(
        f"{each['id']}:{each['state']}:{format_bytes(each['lag_bytes']).replace(' ', '')}"
        for each in content["safekeepers"]
    )
    p50, p99 = (format_seconds(content["times"]["quorum"][name]).replace(" ", "") for name in ("p50_s", "p99_s"))
    gate = f" gate={content['gate']['state'].replace(' ', '_')}" if content.get("gate") else ""
    line = (
        f"{content['state']}{gate} term={content['term']} commit={content['commit_lsn']} p50={p50} p99={p99} {members}"
    )
    archive = content.get("archive")
    if archive is None:
        return line
    lag = "problem" if archive["problem"] else format_bytes(archive["lag_bytes"]).replace(" ", "")
    return f"{line} archive={archive['archiver'] or 'none'}:{lag}"
