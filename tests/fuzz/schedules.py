"""Scenarios that any bytes stand for, so that coverage leads a fuzzer through schedules: `make fuzz TARGET=schedule`.

Theory of operation. A fuzzer that edits the text of a scenario mostly writes nonsense. Here each byte is a choice: of
the next command, of the proxy, safekeeper or primary that it concerns, of how long the world runs after it. So all
inputs are scenarios (tests/simulation/scenarios/scenario.py), a small change of an input is a small change of its
scenario, and an input that reached a new branch of acceptor or proposer is a schedule to go on from. The random runs of
the simulator have no record of the branches that they have taken.

Each scenario ends without faults, with one primary whose log goes on from the newest one, and all members must then
converge. What an operator must never do is left out: data folders that are copied, commits that are given up, primaries
that are vouched for, disks lost on more than one member.

`python -m tests.fuzz.schedules FILE` prints the scenario of an input, to be kept in tests/simulation/scenarios.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from random import Random

from tests.simulation.checks.violation import Violation
from tests.simulation.model.primary import VirtualPrimary
from tests.simulation.scenarios.scenario import SLOW_FLUSH_S, ScenarioFailed, Stage, perform
from tests.simulation.world.world import SimulationFailed, World

_STEPS_MAX = 24
_SLOW_FLUSHES_END = f"run {SLOW_FLUSH_S + 1} s"
_PRIMARIES, _PROXIES = "ABCDE", ("P1", "P2", "P3")
_WAITS_S = ("0.003", "0.01", "0.05", "0.2", "0.6", "2")
_SIZES = ("100", "3000", "70000")
_EFFECTS = ("Persist", "WriteWal", "FlushWal", "TruncateWal", "ResetWal", "TrimWal", "Send")


class _Choices:
    """Takes choices from bytes; when they are used up, the first of each."""

    def __init__(self, data: bytes) -> None:
        self._rest = iter(data)

    def of(self, options: "tuple[str, ...] | list[str] | str") -> str:
        return options[next(self._rest, 0) % len(options)]

    def some_safekeepers(self) -> str:
        chosen = 1 + next(self._rest, 0) % 6  # never all three
        return " ".join(f"S{i + 1}" for i in range(3) if chosen & 1 << i)

    def next_command(self) -> int | None:
        return next(self._rest, None)


class _Plot:
    """What a scenario has so far, so that its next command names things that exist."""

    def __init__(self, choices: _Choices) -> None:
        self.choices = choices
        self.proxies: list[str] = []
        self.primaries = ["A"]
        self.standbys: list[str] = []
        # Another primary may begin beside one of these: they are whole on the disk of the one that wrote them.
        self.records: list[str] = []
        self._written = 0
        self._settings = [
            "the safekeepers archive",
            "histories keep 2 terms",
            "members pull WAL from each other",
            "proxies win tail terms after 0.2 s",
        ]

    def proxy(self) -> str:
        return self.choices.of(self.proxies or list(_PROXIES[:1]))

    def starts(self) -> str:
        name = self.choices.of(_PROXIES)
        if name not in self.proxies:
            self.proxies.append(name)
        return f"{name} starts on {self.choices.of(self.primaries)}{self.choices.of(('', ' and takes over'))}"

    def stops(self) -> str:
        return f"{self.proxy()} {self.choices.of(('stops', 'loses its primary'))}"

    def uses(self) -> str:
        return f"{self.proxy()} now uses {self.choices.of(self.primaries)}"

    def parts(self) -> str:
        name, safekeepers = self.proxy(), self.choices.some_safekeepers()
        return self.choices.of(
            (
                f"{name} and {safekeepers} are apart",
                f"{name} cannot send to {safekeepers}",
                f"{name} cannot receive from {safekeepers}",
            )
        )

    def meets(self) -> str:
        return f"{self.proxy()} and S1 S2 S3 meet again"

    def writes(self) -> str:
        primary, size = self.choices.of(self.primaries), self.choices.of(_SIZES)
        rest = self.choices.of(("", "", " without a time", " and flushes 40 bytes of it"))
        self._written += 1
        record = f"r{self._written}"
        if "flushes" not in rest:
            self.records.append(record)
        return f"{primary} writes {record} of {size} bytes{rest}"

    def keeps_wal(self) -> str:
        return self.choices.of(self.primaries) + self.choices.of(
            (" switches its segment", " recycles what its slot does not hold", " stops", " starts")
        )

    def forks(self) -> str:
        if len(self.primaries) == len(_PRIMARIES) or not self.records:
            return self.writes()
        source, how = self.choices.of(self.primaries), self.choices.of(("promoted", "restored"))
        side, record = self.choices.of(("after", "before")), self.choices.of(self.records)
        name = _PRIMARIES[len(self.primaries)]
        self.primaries.append(name)
        return f"{name} is {source} {how} {side} {record}"

    def crashes(self) -> str:
        return self.choices.of(("S1", "S2", "S3")) + self.choices.of((" crashes", " loses power"))

    def loses_disk(self) -> str:
        return "S3 loses its disk"

    def dies(self) -> str:
        return f"{self.choices.of(('S1', 'S2', 'S3'))} dies after {self.choices.of(_EFFECTS)}"

    def begins(self) -> str:
        return self.choices.of(("S1", "S2", "S3")) + " starts"

    def flushes(self) -> str:
        return self.choices.of(("S1", "S2", "S3")) + self.choices.of((" flushes slowly", " flushes quickly"))

    def streams(self) -> str:
        if self.standbys and self.choices.of("ny") == "y":
            return "R1 leaves"
        self.standbys = ["R1"]
        return f"R1 streams from {self.choices.of(('S1', 'S2', 'S3'))}"

    def removes(self) -> str:
        return f"{self.choices.some_safekeepers()} remove old WAL"

    def settings(self) -> str:
        if not self._settings:
            return self.writes()
        setting = self.choices.of(self._settings)
        self._settings.remove(setting)
        return setting


# What comes more often in scenarios is here more often.
_COMMANDS: tuple[Callable[[_Plot], str], ...] = (
    *(_Plot.starts, _Plot.starts, _Plot.writes, _Plot.writes, _Plot.writes, _Plot.parts, _Plot.parts, _Plot.meets),
    *(_Plot.stops, _Plot.uses, _Plot.crashes, _Plot.crashes, _Plot.begins, _Plot.begins, _Plot.dies, _Plot.flushes),
    *(_Plot.forks, _Plot.forks, _Plot.keeps_wal, _Plot.streams, _Plot.removes, _Plot.settings, _Plot.loses_disk),
)


def commands(data: bytes) -> Iterator[str]:
    """Yield the lines of the scenario that bytes stand for, but for the last one."""
    choices = _Choices(data)
    plot = _Plot(choices)
    yield plot.starts()
    is_slow = False
    for _ in range(_STEPS_MAX):
        chosen = choices.next_command()
        if chosen is None:
            break
        command = _COMMANDS[chosen % len(_COMMANDS)](plot)
        is_slow = is_slow or command.endswith("slowly")
        yield command
        yield f"run {choices.of(_WAITS_S)} s"
    if is_slow:
        # What is newest is only known when nothing is under way.
        yield from (f"{name} stops" for name in plot.proxies)
        yield _SLOW_FLUSHES_END


class _Ending(Stage):
    """A stage whose end chooses the primary as the simulator does: one that the newest log came from."""

    def best_primary(self, without: frozenset[int] = frozenset()) -> VirtualPrimary:
        return World.best_primary(self, without)


def play(data: bytes) -> list[str]:
    """Play the scenario that bytes stand for; return the lines that could be carried out.

    Raises:
        SimulationFailed: an invariant does not hold, or the members do not converge.
    """
    stage, played = _Ending(), list[str]()
    try:
        for command in commands(data):
            try:
                perform(stage, command)
            except ScenarioFailed:
                continue  # It cannot be carried out now.
            played.append(command)
        # A primary that has recycled what it is compared with is refused, rightly: nothing converges then.
        if not stage.is_log_recycled():
            perform(stage, "everything converges on A")
    except Violation as violation:
        raise SimulationFailed(violation, stage.trace()) from violation
    return played


def seeds() -> Iterable[bytes]:
    """A few scenarios to begin with."""
    return [Random(seed).randbytes(20 + 4 * seed) for seed in range(8)]


if __name__ == "__main__":
    print("\n".join([*commands(Path(sys.argv[1]).read_bytes()), "everything converges on A"]))
