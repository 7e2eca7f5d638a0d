"""The options of a lone proposer, and the servers that it may find: what proposer.py draws of them."""

import random
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import msgspec

from safekeeper.consensus.control_state import TliHistory
from tests.simulation.lone.drawn_apply_rules import drawn
from tests.simulation.lone.safekeepers import FIRST_LSN, SYSTEM_ID, Line
from tests.simulation.model.synthetic_wal import SEGMENT_SIZE
from tests.simulation.world.world import TIMING
from walproxy.proposer.phase import ProposerConfig
from walproxy.proposer.primary import Ancestor, PrimaryIdentity
from walproxy.proposer.purpose import CancelSeal, Purpose, Readmit, Reserve, Seal, TakeBack

# No two of them are the same, so that one in the place of another makes a difference.
DISTINCT_TIMING = replace(TIMING, refused_wait_min_s=1.3, verify_timeout_s=2.1)


def draw_config(
    rng: random.Random, proposer_id: str, safekeeper_ids: tuple[int, ...], addresses: Mapping[int, str]
) -> ProposerConfig:
    """Draw the options of a run."""
    return ProposerConfig(
        proposer_id=proposer_id,
        safekeeper_ids=safekeeper_ids,
        takeover=rng.random() < 0.3,
        allow_data_loss=rng.random() < 0.4,
        allow_unverified_primary=rng.random() < 0.4,
        several_primaries=rng.random() < 0.6,
        tail_after_s=rng.choice((None, 0.3)),
        bootstrap=rng.random() < 0.3,
        replace_lost=rng.random() < 0.3,
        apply_rule=drawn(rng),
        addresses=addresses,
        timing=DISTINCT_TIMING,
    )


def draw_purpose(rng: random.Random) -> Purpose:
    """Draw what a run wants a tail term for."""
    tli, number = rng.randint(1, 3), rng.randint(1, 4)
    taken = Reserve(tli, number, is_taken=True)
    return rng.choice((Seal(tli), Reserve(tli, number), taken, TakeBack(tli, number), CancelSeal(tli), Readmit(tli)))


def draw_primary(rng: random.Random, line: Line, fits: bool) -> PrimaryIdentity:
    """Draw a server on the line of a log, or on one that has left it.

    Args:
        fits: it mostly has that log, and all of it.
    """
    history, end_lsn = line
    first = history[0]
    # Of a timeline before the log's first one: its last bytes may be in the same segment.
    past_lsn = first.start_lsn + rng.choice((0, 0, 200))
    ancestors = [Ancestor(tli, past_lsn) for tli in range(1, first.tli)]
    if rng.random() < 0.05:
        ancestors.append(Ancestor(first.tli, past_lsn))  # It was left at once.
        history = tuple(msgspec.structs.replace(entry, tli=entry.tli + 1) for entry in history)
    for entry, following in pairwise(history):
        if following.tli != entry.tli:
            ancestors.append(Ancestor(entry.tli, following.start_lsn))
    tli = history[-1].tli
    if rng.random() < (0.2 if fits else 0.4):
        fork = rng.choice((end_lsn, rng.randint(FIRST_LSN, end_lsn)))
        ancestors = [each for each in ancestors if each.end_lsn < fork]
        tli = (ancestors[-1].tli if ancestors else first.tli - 1) + 1
        ancestors.append(Ancestor(tli, fork))
        tli += rng.choice((1, 1, 2))
    beyond = (0, 0, 100, 20_000) if fits else (0, 0, 100, 20_000, -1, -200)
    flush_lsn = max(end_lsn + rng.choice(beyond), FIRST_LSN)
    reached_lsn = 0
    for index, each in enumerate(ancestors):
        reached_lsn = max(reached_lsn, each.end_lsn)
        ancestors[index] = each._replace(end_lsn=reached_lsn)
    files = tuple(TliHistory(each, b"of the primary") for each in range(2, tli + 1) if rng.random() < 0.8)
    return PrimaryIdentity(
        system_id=SYSTEM_ID + int(rng.random() < 0.02),
        tli=tli,
        flush_lsn=flush_lsn,
        segment_size=SEGMENT_SIZE,
        server_version=150000,
        ancestors=tuple(ancestors),
        tli_histories=files,
        host=rng.choice(("A", "B")),
        slot=rng.choice(("", "", "", "walproxy")),
    )
