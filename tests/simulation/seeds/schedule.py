"""A schedule: one run of the simulator as a short text, which replays it exactly.

A seed decides everything, but half of a seed cannot be left out. A schedule can be cut: it names the cluster, the
rates, and every fault with its time and with all that chance decided about it, in words. Whatever else chance decides
(delays of messages, sizes of records) still comes from its seed, and from nothing that the faults draw: a run and the
schedule that it was written down as are the same. A word that no longer means anything, since an earlier fault was
taken out, gives way to another one, always the same.

    seed 7                              chance, but for the faults
    bug no_truncate                     what is planted, or none
    safekeepers 3                       and so on: what the cluster is like, then the rates of `Profile`
    append_bytes 300                    the choices of the product that are bent (bends.py)
    ends_at_s 1.9                       the end of the first phase
    heals no                            whether the second phase follows
    at 0.8431 crash_safekeeper S2 0.417 0.733 5
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from zlib import crc32

from tests.simulation.model.bends import BEND_NAMES, Bends
from tests.simulation.model.network import Connection
from tests.simulation.seeds.counts import FAULT_KINDS
from tests.simulation.world.profiles import RATE_NAMES, Profile

_Option = TypeVar("_Option")
_STEPS = 1000


class Fault(NamedTuple):
    """A fault that was done: when, in virtual seconds, of which kind, and what chance decided about it."""

    at_s: float
    kind: str
    words: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join(("at", f"{self.at_s!r}", self.kind, *self.words))


class Draws(random.Random):
    """The chance of one fault: as in `planned`, and drawn where that has nothing. `words` is what came of it."""

    def __init__(self, seed: int, planned: Sequence[str] = ()) -> None:
        super().__init__(seed)
        self.words: list[str] = []
        self._planned = list(planned)

    def _next(self, drawn: str) -> str:
        word = self._planned.pop(0) if self._planned else drawn
        self.words.append(word)
        return word

    def random(self) -> float:
        """Return a number from [0, 1), of three digits: it is to be read."""
        number = self._number(self._next(str(int(super().random() * _STEPS) / _STEPS)))
        self.words[-1] = str(number)
        return number

    def randint(self, a: int, b: int) -> int:
        """Return a number from [a, b]."""
        number = self._number(self._next(str(a + int(super().random() * (b - a + 1)))))
        number = min(max(int(number), a), b)
        self.words[-1] = str(number)
        return number

    def choice(self, seq: Any) -> Any:
        """Return one of several things; its word is its name, where it has one."""
        options = list(seq)
        word = self._next(word_of(options[int(super().random() * len(options))]))
        chosen = _named(word, options)
        self.words[-1] = word_of(chosen)
        return chosen

    def _number(self, word: str) -> float:
        try:
            return float(word)
        except ValueError:
            return crc32(word.encode()) % _STEPS / _STEPS


def word_of(option: Any) -> str:
    """Return what stands for something that can be chosen: no word is shared by two that differ."""
    if isinstance(option, Connection):
        return f"{option.proxy.name}-{option.safekeeper.name}#{option.number}"
    return str(getattr(option, "name", None) or repr(option)).replace(" ", "")


def _named(word: str, options: list[_Option]) -> _Option:
    """Return what a word stands for: just that, else the newest of that beginning, else any, always the same."""
    words = [word_of(option) for option in options]
    if word in words:
        return options[words.index(word)]
    alike = [option for option, other in zip(options, words, strict=True) if other.split("#")[0] == word.split("#")[0]]
    return alike[-1] if alike else options[crc32(word.encode()) % len(options)]


@dataclass(frozen=True)
class Schedule:
    """All that a run depends on.

    Attributes:
        seed: of whatever is not written here.
        rates: rates and sizes; the weights are of no use where the faults are named.
        bug: what is planted, empty for nothing.
        ends_at_s: when the first phase ends, in virtual seconds.
        heals: whether the second phase follows.
        faults: what goes wrong, None to draw it by the weights.
    """

    seed: int
    rates: Profile
    bug: str = ""
    safekeepers: int = 3
    standbys: int = 0
    apply_rule: str = ""
    real_storage: bool = False
    real_shells: bool = False
    real_proxies: bool = False
    uses_wire: bool = False
    ends_at_s: float = 7.0
    heals: bool = True
    faults: tuple[Fault, ...] | None = None

    def with_faults(self, faults: Sequence[Fault]) -> "Schedule":
        """Return it with these faults, and without what they would be drawn by."""
        nothing_drawn = {name: getattr(Profile, name) for name in ("faults_s", "fault_every_s")}
        return replace(self, rates=replace(self.rates, weights={}, **nothing_drawn), faults=tuple(faults))

    def __str__(self) -> str:
        """Return it as a text that `parse` understands."""
        lines = [f"{name} {_written(getattr(self, name))}".rstrip() for name in _OWN]
        lines += [f"{name} {_written(getattr(self.rates, name))}" for name in _RATES]
        lines += [f"{name} {number}" for name, number in self.rates.bends.bent().items()]
        return "\n".join([*lines, *map(str, self.faults or ()), ""])


class ScheduleUnreadable(Exception):
    """A text is not a schedule. The message is one line."""


def read(path: Path) -> Schedule:
    """Read a schedule.

    Raises:
        ScheduleUnreadable: it is none, or cannot be read.
    """
    try:
        return parse(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ScheduleUnreadable(f"could not read {path}: {error}") from error
    except ScheduleUnreadable as error:
        raise ScheduleUnreadable(f"{path}, {error}") from error


def parse(text: str) -> Schedule:
    """Return the schedule that a text is; `#` at the beginning of a line makes it a comment.

    Raises:
        ScheduleUnreadable: it is none.
    """
    own: dict[str, Any] = {}
    rates: dict[str, Any] = {}
    bends: dict[str, float] = {}
    faults = []
    for number, line in enumerate(text.splitlines(), 1):
        name, _, value = line.strip().partition(" ")
        try:
            if name == "at":
                at_s, kind, *words = value.split()
                if kind not in FAULT_KINDS:
                    raise ValueError("no such kind of fault")
                faults.append(Fault(float(at_s), kind, tuple(words)))
            elif name in _OWN:
                own[name] = _OWN[name](value)
            elif name in _RATES:
                rates[name] = float(value)
            elif name in BEND_NAMES:
                bends[name] = float(value)
            elif name and not name.startswith("#"):
                raise ValueError("no such word")
        except (ValueError, KeyError) as error:
            raise ScheduleUnreadable(f"line {number} is not understood: {line.strip()!r} ({error})") from error
    if "seed" not in own:
        raise ScheduleUnreadable("it names no seed: is it a schedule?")
    return Schedule(rates=Profile(**rates, bends=Bends(**bends)), faults=tuple(faults), **own)


def _written(value: Any) -> str:
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)


def _is_yes(text: str) -> bool:
    return {"yes": True, "no": False}[text]


_OWN: dict[str, Callable[[str], Any]] = {
    "seed": int,
    "bug": str,
    "safekeepers": int,
    "standbys": int,
    "apply_rule": str,
    "real_storage": _is_yes,
    "real_shells": _is_yes,
    "real_proxies": _is_yes,
    "uses_wire": _is_yes,
    "ends_at_s": float,
    "heals": _is_yes,
}
_RATES = tuple(name for name in RATE_NAMES if name not in ("faults_s", "fault_every_s"))
