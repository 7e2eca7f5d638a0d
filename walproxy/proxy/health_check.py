"""The result of `walproxy check` for a monitoring system: a level, one line, and figures with their thresholds.

It is derived from /status. Pure. Levels are the exit codes of monitoring
plugins. Source: https://www.monitoring-plugins.org/doc/guidelines.html
"""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from walproxy.proxy.status_fields import GateStatus, ProxyStatus

# A conflict with a query may last for max_standby_streaming_delay, by default 30 s.
STALLED_WARNING_S = 60.0


class CheckLevel(IntEnum):
    """The severity; the value is the exit code."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


Problem = tuple[CheckLevel, str]


@dataclass(frozen=True)
class Threshold:
    """The values from which on a figure is a warning, or critical; None: never."""

    warning: float | None = None
    critical: float | None = None

    def level(self, value: float) -> CheckLevel:
        """Return the level of this value."""
        if self.critical is not None and value >= self.critical:
            return CheckLevel.CRITICAL
        if self.warning is not None and value >= self.warning:
            return CheckLevel.WARNING
        return CheckLevel.OK


@dataclass(frozen=True)
class Thresholds:
    """The limits of a check.

    Attributes:
        wait_s: for how many seconds commits have waited.
        missing: members that do not stream.
        lag_bytes: WAL that is not durable on the slowest streaming member.
        archive_lag_bytes: committed WAL that is not archived.
    """

    wait_s: Threshold = Threshold(0.0, 10.0)
    missing: Threshold = Threshold(1)
    lag_bytes: Threshold = Threshold(64 << 20)
    archive_lag_bytes: Threshold = Threshold(1 << 30)


@dataclass
class CheckResult:
    """The result of a check.

    Attributes:
        summary: the state of the proxy, in a few words.
        problems: (level, text) of each problem.
        figures: name -> (value, unit, threshold).
    """

    summary: str
    problems: list[Problem] = field(default_factory=list)
    figures: dict[str, tuple[float, str, Threshold]] = field(default_factory=dict)

    @property
    def level(self) -> CheckLevel:
        """The highest level of all problems and figures."""
        return max((level for level, _ in self.problems), default=CheckLevel.OK)

    def line(self) -> str:
        """Return it as the one line that a monitoring plugin prints."""
        worst_first = sorted(self.problems, key=lambda each: -each[0])
        text = "; ".join(part for part in (self.summary, *(problem for _, problem in worst_first)) if part)
        # A vertical bar would end the text.
        line = f"WALPROXY {self.level.name} - {text.replace('|', '/')}"
        figures = " ".join(_figure(name, *figure) for name, figure in self.figures.items())
        return f"{line} | {figures}" if figures else line

    def content(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "level": self.level.name,
            "exit_code": self.level.value,
            "summary": self.summary,
            "problems": [{"level": level.name, "problem": problem} for level, problem in self.problems],
            "figures": {name: value for name, (value, _, _) in self.figures.items()},
        }

    def note(self, name: str, value: float, unit: str, threshold: Threshold, problem: str) -> None:
        """Add a figure; add `problem` if it reaches a threshold."""
        self.figures[name] = (value, unit, threshold)
        level = threshold.level(value)
        if level:
            self.problems.append((level, problem))


def _figure(name: str, value: float, unit: str, threshold: Threshold) -> str:
    """Return a figure in the format of plugins: value, the ranges without a warning and without an alert, minimum."""
    # A threshold of 2 reports a count of 2, and plugins write the range that is still fine.
    limits = (limit if limit is None or unit else limit - 1 for limit in (threshold.warning, threshold.critical))
    return f"{name}={value:.15g}{unit};" + ";".join("" if limit is None else f"{limit:.15g}" for limit in limits) + ";0"


def judge(status: ProxyStatus, thresholds: Thresholds) -> CheckResult:
    """Return the result of the check of a proxy, from its /status."""
    if status.spare:
        return CheckResult("spare: another proxy serves", sql_problems(status))
    members = status.members
    verdict = CheckResult(status.state, gate_problems(status.gate))
    _judge_commits(status, thresholds, verdict)
    if members is not None:
        streaming = status.members_streaming
        verdict.summary = f"{status.state}, {streaming} of {len(members)} members streaming"
        verdict.note("members_missing", len(members) - streaming, "", thresholds.missing, _missing(status, members))
    lags = [each.lag_bytes for each in status.safekeepers if each.state == "streaming"]
    lag = max((lag for lag in lags if lag is not None), default=0)
    verdict.note("lag", lag, "B", thresholds.lag_bytes, f"a streaming safekeeper lacks {lag} bytes")
    archive = status.archive
    if archive is not None:
        if archive.problem:
            verdict.problems.append((CheckLevel.WARNING, f"cannot archive: {archive.problem}"))
        if archive.lag_bytes is not None:
            lag = archive.lag_bytes
            verdict.note("archive_lag", lag, "B", thresholds.archive_lag_bytes, f"{lag} bytes are not archived")
    if status.apply_problem:
        verdict.problems.append((CheckLevel.WARNING, f"remote_apply is blocked: {status.apply_problem}"))
    verdict.problems += sql_problems(status)
    verdict.problems += [
        (
            CheckLevel.WARNING,
            f"standby {each.name} has replayed nothing for {each.stalled_s:.0f} s although it receives WAL: a failover "
            "may not be able to promote it; its log states why",
        )
        for each in status.standbys
        if each.stalled_s is not None and each.stalled_s >= STALLED_WARNING_S
    ]
    verdict.problems += [
        (CheckLevel.WARNING, f"primary {each.host} is refused: {each.problem}")
        for each in status.primary.hosts
        if each.state == "refused"
    ]
    return verdict


def gate_problems(gate: GateStatus | None) -> list[Problem]:
    """Return why commits do not wait for the quorum, or wait for something else; none while no primary is known."""
    if gate is None:
        return []
    problems = []
    if gate.state == "not gated":
        problems.append((CheckLevel.CRITICAL, f"commits do not wait for the quorum: {gate.reason}"))
    elif gate.hangs:
        problems.append((CheckLevel.CRITICAL, f"commits wait for another standby: {gate.reason}"))
    elif gate.state == "unknown":
        problems.append((CheckLevel.WARNING, f"whether commits wait for the quorum is unknown: {gate.reason}"))
    elif gate.reason:
        problems.append((CheckLevel.WARNING, f"commits may return without the quorum: {gate.reason}"))
    if gate.exempt:
        problems.append((CheckLevel.WARNING, gate.exempt))
    return problems


def sql_problems(status: ProxyStatus) -> list[Problem]:
    """Return why a takeover from a proxy that hangs would not be possible, if it would not."""
    problem = status.primary.sql_problem
    return [(CheckLevel.WARNING, f"SQL on the primary is not possible: {problem}")] if problem else []


def commits_wait(status: ProxyStatus) -> str:
    """Return what follows for commits from a lost quorum, to end a line: nothing where they do not wait for one."""
    return "" if status.gate is not None and status.gate.state == "not gated" else ": commits wait"


def _judge_commits(status: ProxyStatus, thresholds: Thresholds, verdict: CheckResult) -> None:
    """Add the time for which commits have waited."""
    lost, state = status.quorum_lost, status.state
    if lost is not None:
        wait_s = lost.for_s
        problem = f"no quorum for {wait_s:.0f} s{commits_wait(status)}"
    else:
        wait_s = status.not_ready_s or 0.0
        reason = status.primary.problem if state == "waiting_for_primary" else ""
        problem = f"not ready for {wait_s:.0f} s{commits_wait(status)}" + (f": {reason}" if reason else "")
    verdict.figures["waiting"] = (wait_s, "s", thresholds.wait_s)
    is_fine = state == "streaming" and lost is None and status.not_ready_s is None
    level = CheckLevel.OK if is_fine else thresholds.wait_s.level(wait_s)
    if level:
        verdict.problems.append((level, problem))
    if lost is not None and lost.waiting_sessions is not None:
        verdict.figures["waiting_sessions"] = (lost.waiting_sessions, "", Threshold())


def _missing(status: ProxyStatus, members: list[int]) -> str:
    """Return which members do not stream, and why."""
    listed = {each.id: each for each in status.safekeepers}
    found = []
    for member in members:
        each = listed.get(member)
        if each is None:
            found.append(f"safekeeper {member}: not listed in --safekeepers")
        elif each.state != "streaming":
            found.append(f"safekeeper {member}: {each.problem or each.state}")
    return "; ".join(found)
