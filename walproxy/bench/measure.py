"""One turn of one arm: pgbench, and what it printed."""

import os
import re
import statistics
import subprocess
from collections.abc import Iterable
from pathlib import Path

import msgspec

from safekeeper.errors import WalproxyError
from walproxy.bench.arms import Arm

_TPS = re.compile(r"^tps = ([0-9.]+) \(without initial connection time\)", re.MULTILINE)
_LATENCY = re.compile(r"^latency average = ([0-9.]+) ms", re.MULTILINE)


class Turn(msgspec.Struct, frozen=True):
    """What one run of pgbench measured.

    Attributes:
        round, arm, clients: which turn it was.
        tps: transactions a second.
        latency_ms: average, of a transaction.
        cpu_s: CPU time that the arm's receivers (or proxy and safekeepers) used.
        seconds: how long it ran.
    """

    round: int
    arm: str
    clients: int
    tps: float
    latency_ms: float
    cpu_s: float
    seconds: float


class Comparison(msgspec.Struct, frozen=True):
    """The medians of one arm at one number of clients.

    Attributes:
        to_local, to_native: median over the rounds of (tps of the arm / tps of that arm in the same round).
        spread: the lowest and the highest of `to_native`, or of `to_local` where native-quorum was not run.
        cpu_us: CPU time of the arm's own processes for a transaction, in microseconds.
    """

    arm: str
    clients: int
    tps: float
    latency_ms: float
    cpu_us: float
    to_local: float | None
    to_native: float | None
    spread: tuple[float, float] | None


def prepare(arm: Arm, scale: int) -> None:
    """Make pgbench's tables; its own commits need not wait for anybody."""
    _pgbench(arm, ["--initialize", "--quiet", "--scale", str(scale)], {"PGOPTIONS": "-c synchronous_commit=local"})
    arm.postgres.execute("CHECKPOINT")


def take_turn(arm: Arm, number: int, clients: int, seconds: int) -> Turn:
    """Run pgbench -N and return what it measured.

    Raises:
        WalproxyError: it failed, or printed what is not understood.
    """
    cpu_before_s = _cpu_seconds(arm.process_ids())
    threads = str(min(clients, os.cpu_count() or 1))
    output = _pgbench(
        arm,
        ["-N", "--no-vacuum", "--client", str(clients), "--jobs", threads, "--time", str(seconds)],
        {},
    )
    cpu_s = _cpu_seconds(arm.process_ids()) - cpu_before_s
    tps, latency = _TPS.search(output), _LATENCY.search(output)
    if tps is None or latency is None:
        raise WalproxyError(f"pgbench printed no tps for {arm.name}: {output[-300:]!r}")
    return Turn(number, arm.name, clients, float(tps[1]), float(latency[1]), cpu_s, float(seconds))


def compare(turns: Iterable[Turn]) -> list[Comparison]:
    """Return the medians, in the order in which arms and numbers of clients first came."""
    by_place = {(turn.round, turn.arm, turn.clients): turn for turn in turns}
    places = dict.fromkeys((turn.arm, turn.clients) for turn in by_place.values())
    result = []
    for arm, clients in sorted(places, key=lambda place: place[1]):
        mine = [turn for turn in by_place.values() if (turn.arm, turn.clients) == (arm, clients)]
        to_local = _ratios(mine, by_place, "local")
        to_native = _ratios(mine, by_place, "native-quorum")
        shown = to_native or to_local
        result.append(
            Comparison(
                arm,
                clients,
                statistics.median(turn.tps for turn in mine),
                statistics.median(turn.latency_ms for turn in mine),
                statistics.median(1e6 * turn.cpu_s / (turn.tps * turn.seconds) for turn in mine),
                statistics.median(to_local) if to_local else None,
                statistics.median(to_native) if to_native else None,
                (min(shown), max(shown)) if shown else None,
            )
        )
    return result


def _ratios(mine: list[Turn], by_place: dict[tuple[int, str, int], Turn], base: str) -> list[float]:
    pairs = ((turn, by_place.get((turn.round, base, turn.clients))) for turn in mine)
    return [turn.tps / other.tps for turn, other in pairs if other is not None]


def _pgbench(arm: Arm, arguments: list[str], environment: dict[str, str]) -> str:
    command = [str(arm.postgres.binaries.path("pgbench")), *arguments, arm.postgres.conninfo()]
    answer = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C", **environment}
    )
    if answer.returncode != 0:
        raise WalproxyError(f"pgbench failed against {arm.name}: {answer.stderr.strip()[-300:]!r}")
    return answer.stdout


def _cpu_seconds(process_ids: list[int]) -> float:
    """Return the user and system time that the processes have used; 0 where /proc is not there to tell."""
    if not Path("/proc/self/stat").exists():
        return 0.0
    ticks = 0
    for pid in process_ids:
        # pid (name) state ...: utime and stime are fields 14 and 15.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
