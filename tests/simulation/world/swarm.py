"""The profile `swarm`: each seed draws its own, which reaches conjunctions that no hand-written profile has.

Most profiles have all kinds of faults, and a fault of one kind hides what many of another would show: a log that is
often cut never grows long. A seed of `swarm` leaves most kinds out, gives the others weights from 1 to 64, and draws
the shape of the cluster, all times and sizes, which parts take part, and which way choices of the product are taken
(bends.py). A failing seed prints what it has drawn; the schedule that it is written down as names all of it.
"""

import random
from dataclasses import fields, replace

from tests.simulation.model.bends import Bends
from tests.simulation.seeds.schedule import Schedule
from tests.simulation.world.profiles import SWARM, Profile

WEIGHTS = (1, 2, 4, 8, 16, 32, 64)
# Few errors hit a disk while it matters: seeds with such disks have many.
FAILING_DISKS = 128
# How large a part of the kinds takes part; and of the choices that are bent.
PARTS = (0.15, 0.3, 0.5, 0.8)
_TIMES_S: dict[str, tuple[float, ...]] = {
    "faults_s": (1.5, 2.0, 3.0, 4.0, 6.0),
    "fault_every_s": (0.03, 0.06, 0.1, 0.2, 0.4),
    "record_every_s": (0.02, 0.05, 0.1, 0.3),
    "delay_s": (0.002, 0.02, 0.02, 0.1, 0.2),
    "flush_delay_s": (0.003, 0.03, 0.03, 0.1, 0.3),
}
_BENDS: dict[str, tuple[float, ...]] = {
    "append_bytes": (150.0, 600.0, 8000.0, 24000.0),
    "in_flight_bytes": (4000.0, 48000.0),
    "fetch_bytes": (1000.0, 16000.0),
    "read_bytes": (2000.0, 8000.0),
    "read_ahead_s": (0.3, 1.0),
    "catchup_bytes_per_s": (200_000.0, 16e6),
    "pull_bytes": (500.0, 16000.0),
    "pull_stall_s": (0.5, 6.0),
    "pull_again_s": (0.1, 4.0),
    "window_bytes": (6000.0, 12000.0, 96000.0),
    "heartbeat_s": (0.1, 0.5),
    "response_s": (0.7, 3.0),
    "vote_s": (0.3, 2.0),
    "vote_grace_s": (0.0, 0.3),
    "retry_s": (0.02, 0.5),
    "backoff_doublings": (0.0, 2.0),
    "greeting_fresh_s": (0.1, 5.0),
    "verify_bytes_per_s": (100_000.0,),
    "tick_s": (0.03, 0.2),
    "status_withheld": (0.3, 0.9),
    "flush_later": (0.2, 0.8),
    "answer_late": (0.02, 0.3),
    "late_s": (0.03, 0.3, 0.8),
    "quick_flush_s": (0.0, 0.5),
    "report_write_s": (0.002, 0.2),
    "checkpoint_s": (0.2, 4.0),
    "trim_s": (0.15, 1.0),
    "trim_segments": (1.0, 2.0),
}
# What was added later is drawn from a source of its own, so that a seed draws all else as before.
_LATER_RATES = ("both_changes", "archive_ids", "strangers")
_LATER_BENDS: dict[str, tuple[float, ...]] = {"digest_bytes": (8192.0, 16384.0), "refused_wait_s": (3.0, 6.0)}


def drawn(seed: int) -> Profile:
    """Return the profile of a seed."""
    rng = random.Random(f"{seed} swarm")
    part = rng.choice(PARTS)
    kinds = [kind for kind in SWARM.weights if rng.random() < part] or ["crash_safekeeper"]
    weights = {kind: rng.choice(WEIGHTS) for kind in kinds}
    if "fail_disk" in weights and random.Random(f"{seed} swarm failing disks").random() < 0.5:
        weights["fail_disk"] = FAILING_DISKS
    # The other rates are probabilities; a third of them is 0, a sixth 1.
    rates = {
        f.name: rng.choice((0.0, 0.0, rng.random(), rng.random(), rng.random(), 1.0))
        for f in fields(Profile)
        if f.name not in _TIMES_S and f.name not in ("weights", "bends", "agents", *_LATER_RATES)
    }
    # A disk that is slower than what is asked of it by timers does nothing else.
    rates["slow_effect"] *= 0.5
    times = {name: rng.choice(choices) for name, choices in _TIMES_S.items()}
    bent = rng.choice((0.0, *PARTS))
    bends = {name: rng.choice(choices) for name, choices in _BENDS.items() if rng.random() < bent}
    for name in _LATER_RATES:
        rates[name] = random.Random(f"{seed} swarm {name}").choice((0.0, 0.0, 0.5, 1.0))
    for name, choices in _LATER_BENDS.items():
        later = random.Random(f"{seed} swarm {name}")
        if later.random() < bent:
            bends[name] = later.choice(choices)
    profile = Profile(weights=weights, **rates, **times, bends=Bends(**bends))
    # A standby may have read from the archive what was given up: the checkers have no record of that.
    return replace(profile, archive=0.0) if "lose_data" in weights else profile


def shaped(schedule: Schedule) -> Schedule:
    """Return the schedule of a seed of `swarm` with a cluster of a shape of its own."""
    rng = random.Random(f"{schedule.seed} shape of the swarm")
    real_shells = schedule.real_shells if schedule.bug else rng.random() < 0.4
    return replace(
        schedule,
        safekeepers=rng.choice((1, 2, 2, 3, 3, 3, 3, 4, 4, 5, 5, 6, 7)),
        real_storage=not real_shells and rng.random() < 0.2,
        real_shells=real_shells,
        uses_wire=rng.random() < 0.2,
    )
