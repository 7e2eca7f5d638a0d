"""Format the /status of a proxy: tables for a terminal, or one line for a log."""

from typing import Final

from rich.console import Group
from rich.text import Text

from safekeeper.base.status_fields import RecentTimes
from walproxy.proxy.health_check import CheckLevel, commits_wait, gate_problems, sql_problems
from walproxy.proxy.levels import slowest_first
from walproxy.proxy.status_fields import ArchiveProgress, GateStatus, ListedHost, ListedStandby, ProxyStatus
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


def render(status: ProxyStatus, *, by_urgency: bool = False) -> Group:
    """Return the status as lines and a table.

    Args:
        by_urgency: what blocks commits is first: problems, then safekeepers that do not stream, then the slowest one.
    """
    head = Text.assemble(
        (status.state + (" (spare)" if status.spare else ""), "bold " + _STATE_STYLE.get(status.state, "red")),
        _gate_word(status.gate),
        f"  term {status.term}  timeline {status.tli or '-'}  {_quorum(status)}",
    )
    positions = FittedTable(_POSITIONS)
    positions.add_row(*(getattr(status, f"{column.name}_lsn") for column in _POSITIONS))
    table = FittedTable(_SAFEKEEPERS)
    problems = _primary_problems(status)
    missing = {each.id for each in status.quorum_lost.missing} if status.quorum_lost is not None else set()
    times = status.times
    for each in slowest_first(status.safekeepers, times) if by_urgency else status.safekeepers:
        table.add_row(
            str(each.id),
            Text(each.state, style=_STATE_STYLE.get(each.state, "red")),
            each.write_lsn,
            each.flush_lsn,
            format_bytes(each.lag_bytes),
            "-" if each.last_response_s is None else f"{each.last_response_s:.1f} s ago",
            _percentiles(times.members.get(str(each.id))),
        )
        if each.problem and each.id not in missing:
            name = f"safekeeper {each.id}"
            problems.append(Text(each.problem if name in each.problem else f"{name}: {each.problem}", style="red"))
    lost = [*_gate_problems(status.gate), *_quorum_lost(status)]
    commit = Text(f"commit latency until a quorum has the WAL on disk: p50/p99 {_percentiles(times.quorum)}")
    rest = [*_standbys(status), *_archive(status.archive)]
    if by_urgency:
        return Group(*lost, *problems, head, commit, table, positions, *rest)
    return Group(*lost, head, commit, positions, table, *rest, *problems)


def _percentiles(times: RecentTimes | None) -> str:
    if times is None or times.p50_s is None:
        return "-"
    p50, p99 = format_seconds(times.p50_s), format_seconds(times.p99_s)
    (value, unit), other_unit = p50.split(), p99.split()[1]
    return f"{value if unit == other_unit else p50}/{p99}"


def _gate_word(gate: GateStatus | None) -> Text:
    """Return whether commits wait, to follow the state; empty if nothing is known."""
    if gate is None:
        return Text()
    return Text("  " + _GATE_WORDS.get(gate.state, gate.state), "bold " + _GATE_STYLE.get(gate.state, "red"))


def _gate_problems(gate: GateStatus | None) -> list[Text]:
    """Return the lines about commits that do not wait for the quorum, or wait for something else."""
    word = "NOT GATED" if gate is not None and gate.state == "not gated" else "COMMITS HANG"
    return [
        Text(f"{word}: {problem}", style="bold red") if level is CheckLevel.CRITICAL else Text(problem, style="yellow")
        for level, problem in gate_problems(gate)
    ]


def _quorum_lost(status: ProxyStatus) -> list[Text]:
    """Return the lines about a lost quorum, none while there is a quorum."""
    lost = status.quorum_lost
    if lost is None:
        return []
    sessions = "unknown" if lost.waiting_sessions is None else lost.waiting_sessions
    lines = [
        f"NO QUORUM for {lost.for_s:.0f} s{commits_wait(status)}; waiting sessions: {sessions}; "
        f"members that take part: {lost.present}, needed: {lost.needed}",
        *(f"missing: safekeeper {each.id}: {each.problem}" for each in lost.missing),
    ]
    if lost.waiting_problem:
        lines.append(f"the waiting sessions could not be counted: {lost.waiting_problem}")
    return [Text(line, style="bold red") for line in lines]


def _quorum(status: ProxyStatus) -> str:
    """Return the sizes of the quorums, the number of members, and the number of those that stream."""
    members, change, elect = status.members, status.members_change, status.elect_quorum
    if members is None:
        return f"quorum {status.quorum} of {len(status.safekeepers)}, no membership is known yet"
    to_elect = f" ({elect} to elect a leader)" if elect != status.quorum else ""
    learners = f", {status.learners} learning" if status.learners else ""
    changing = f"; members change to {', '.join(map(str, change.wanted))}" if change else ""
    streaming = f"{status.members_streaming} streaming"
    return f"quorum {status.quorum} of {len(members)} members{to_elect}, {streaming}{learners}{changing}"


def _standbys(status: ProxyStatus) -> list[FittedTable | Text]:
    """Return the table of standbys, if there are any, and the standbys that remote_apply waits for."""
    shown: list[FittedTable | Text] = []
    if status.standbys:
        table = FittedTable(_STANDBYS)
        for each in status.standbys:
            table.add_row(
                each.name,
                f"{each.safekeeper}" if each.connected else f"{each.safekeeper}, gone",
                format_bytes(each.apply_lag_bytes),
                _fitness(each),
            )
        shown.append(table)
    if status.apply_rule:
        shown.append(Text(f"remote_apply waits for {status.apply_rule}"))
    if status.apply_problem:
        shown.append(Text(f"remote_apply is blocked: {status.apply_problem}", style="red"))
    return shown


def _archive(archive: ArchiveProgress | None) -> list[Text]:
    """Return a line about the archive, if there is one."""
    if archive is None:
        return []
    if archive.archiver is None:
        return [Text("archive: no archiver", style="yellow")]
    line = f"archive: safekeeper {archive.archiver}"
    if archive.problem:
        return [Text(f"{line} cannot archive: {archive.problem}", style="red")]
    if archive.lag_bytes is None:
        return [Text(f"{line} has not reported its progress yet", style="yellow")]
    return [Text(f"{line}, up to {archive.archived_lsn}, lag {format_bytes(archive.lag_bytes)}")]


def _fitness(standby: ListedStandby) -> Text:
    """Return how much WAL would be lost if this standby were promoted now, and whether its replay stands still."""
    completeness = _completeness(standby)
    if standby.stalled_s is None:
        return completeness
    stalled = f"has replayed nothing for {format_seconds(standby.stalled_s)}"
    return Text(f"{completeness.plain}; {stalled}", style="red")


def _completeness(standby: ListedStandby) -> Text:
    """Return how much WAL would be lost if this standby were promoted now."""
    if standby.has_everything is None:
        return Text("unknown", style="yellow")
    if standby.apply_lsn == "0/0":
        return Text("does not replay: not a server")
    if standby.has_everything:
        return Text("has every acknowledged commit", style="green")
    return Text(f"lacks {standby.lag_bytes} bytes", style="red")


def _primary_problems(status: ProxyStatus) -> list[Text]:
    """Return a line for each host of several, or what is wrong with the only one."""
    primary = status.primary
    if len(primary.hosts) > 1:
        lines = [_host_line(each) for each in primary.hosts]
    else:
        lines = [Text(f"primary: {primary.problem}", style="red")] if primary.problem else []
    return lines + [Text(problem, style="red") for _, problem in sql_problems(status)]


def _host_line(host: ListedHost) -> Text:
    style = {"connected": "green", "standby": "cyan", "untried": "cyan"}.get(host.state, "red")
    # In these states the problem only repeats the name of the state.
    problem = f": {host.problem}" if host.problem and host.state not in ("untried", "standby") else ""
    return Text.assemble(f"primary {host.host} ", (host.state, style), problem)


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


def summarise(status: ProxyStatus) -> str:
    """Return the status as one line, for a log."""
    members = " ".join(
        f"{each.id}:{each.state}:{format_bytes(each.lag_bytes).replace(' ', '')}" for each in status.safekeepers
    )
    times, archive = status.times.quorum, status.archive
    p50, p99 = (format_seconds(seconds).replace(" ", "") for seconds in (times.p50_s, times.p99_s))
    gate = f" gate={status.gate.state.replace(' ', '_')}" if status.gate is not None else ""
    line = f"{status.state}{gate} term={status.term} commit={status.commit_lsn} p50={p50} p99={p99} {members}"
    if archive is None:
        return line
    lag = "problem" if archive.problem else format_bytes(archive.lag_bytes).replace(" ", "")
    return f"{line} archive={archive.archiver or 'none'}:{lag}"
