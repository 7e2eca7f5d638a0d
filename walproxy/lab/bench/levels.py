"""The levels of synchronous_commit: what a commit costs at each, with PostgreSQL's own standby and with walproxy.

    alone           no standby: only `on`, the base that published tables refer to
    stock-standby   a streaming standby of PostgreSQL's own, named in synchronous_standby_names
    walproxy        three safekeepers behind a proxy; a standby that streams from a safekeeper is designated for apply

A level is a session's setting, so one server of each arm serves all of its levels, and every server runs the whole
time. Only one is loaded at a time, and before each turn its standby has replayed all WAL.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from walproxy.lab.bench.rounds import median, ratio

LEVELS = ("off", "local", "remote_write", "on", "remote_apply")
ALONE, STOCK, WALPROXY = "alone", "stock-standby", "walproxy"
_LEVELS_OF_ARMS = {ALONE: ("on",), STOCK: LEVELS, WALPROXY: LEVELS}

# https://www.cybertec-postgresql.com/en/the-synchronous_commit-parameter/: tps with `on` and no standby, and of others.
_PUBLISHED_BASE_TPS = 4256.0
_PUBLISHED_TPS = {"off": 6211.0, "remote_write": 3720.0, "on": 3329.0, "remote_apply": 3055.0}


class LevelCell(NamedTuple):
    """A cell that is measured once a round."""

    arm: str
    level: str
    clients: int


class LevelTurn(msgspec.Struct, frozen=True):
    """The measurements of one run of pgbench; `median_ms` is of a transaction."""

    round: int
    arm: str
    level: str
    clients: int
    tps: float
    average_ms: float
    median_ms: float


class LevelResult(msgspec.Struct, frozen=True):
    """The medians of one level over the rounds.

    Attributes:
        to_local, to_alone: median of (tps / tps of the same round at `local` of this arm; of `alone` at `on`).
        alone_low, alone_high: the lowest and the highest of the latter.
        published: what Cybertec's figures give for `to_alone`.
    """

    arm: str
    level: str
    clients: int
    tps: float
    median_ms: float
    to_local: float | None
    to_alone: float | None
    alone_low: float | None
    alone_high: float | None
    published: float | None


class SingleClient(msgspec.Struct, frozen=True):
    """One client on an idle system: the median time of a commit that is applied, and its ratio to `on`."""

    arm: str
    on_ms: float
    remote_apply_ms: float
    ratio: float


def cells(clients: Sequence[int]) -> list[LevelCell]:
    """Return all that is measured in a round."""
    return [
        LevelCell(arm, level, count) for count in clients for arm, levels in _LEVELS_OF_ARMS.items() for level in levels
    ]


def published_ratio(level: str) -> float | None:
    """Return the published throughput of a level as a ratio to `on` without a standby, None if there is none."""
    tps = _PUBLISHED_TPS.get(level)
    return tps / _PUBLISHED_BASE_TPS if tps is not None else None


def compare_levels(turns: Sequence[LevelTurn]) -> list[LevelResult]:
    """Return the medians of each cell, by clients, arm and level."""
    tps = {_place(turn): turn.tps for turn in turns}
    times_ms = {_place(turn): turn.median_ms for turn in turns}
    measured = {cell for _, cell in tps}
    results = []
    for cell in cells(sorted({cell.clients for cell in measured})):
        if cell not in measured:
            continue
        to_local = ratio(tps, cell, cell._replace(level="local"))
        to_alone = ratio(tps, cell, LevelCell(ALONE, "on", cell.clients))
        results.append(
            LevelResult(
                *cell,
                median(tps, cell),
                median(times_ms, cell),
                to_local and to_local.median,
                to_alone and to_alone.median,
                to_alone and to_alone.low,
                to_alone and to_alone.high,
                published_ratio(cell.level) if cell.arm != ALONE else None,
            )
        )
    return results


def single_client(turns: Sequence[LevelTurn]) -> list[SingleClient]:
    """Return for each arm how long one client waits until its commit is applied; empty where that was not measured."""
    times_ms = {_place(turn): turn.median_ms for turn in turns}
    results = []
    for arm in (STOCK, WALPROXY):
        on, applied = LevelCell(arm, "on", 1), LevelCell(arm, "remote_apply", 1)
        compared = ratio(times_ms, applied, on)
        if compared is not None:
            results.append(SingleClient(arm, median(times_ms, on), median(times_ms, applied), compared.median))
    return results


def _place(turn: LevelTurn) -> tuple[int, LevelCell]:
    return turn.round, LevelCell(turn.arm, turn.level, turn.clients)
