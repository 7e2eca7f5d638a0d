"""The record of a run of the torture test, which all its parts share.

Clients write operations, the nemesis writes faults, the sampler writes samples, the checkers write violations; the
report reads all of them. All times are seconds since the run began, on a clock that does not leap. An end that is None
has not come before the run was over.
"""

import msgspec

from walproxy.lab.load.history import Outcome


class Operation(msgspec.Struct, frozen=True):
    """One transaction, as its client saw it.

    "ok": COMMIT was answered. "fail": it is certain that nothing was committed. "unknown": the connection was lost, or
    the answer did not come in time, after something had been sent that may have been committed.
    """

    client: int
    workload: str
    begun_s: float
    ended_s: float | None
    outcome: Outcome
    what: str  # For people, for example "transfer 12: 3 -> 5, 17".


class Fault(msgspec.Struct, frozen=True):
    """Something that the nemesis did to a process; the end is when it was undone."""

    kind: str
    target: str
    begun_s: float
    ended_s: float | None


class Sample(msgspec.Struct, frozen=True):
    """The resources of one process at one moment."""

    at_s: float
    process: str
    resident_bytes: int
    file_descriptors: int


class Violation(msgspec.Struct, frozen=True):
    """A promise that was not kept: which one, and what was seen instead."""

    rule: str
    message: str


class Run(msgspec.Struct, frozen=True):
    """A whole run, as the report shows it and as `run.json` keeps it."""

    seed: int
    seconds: float
    engine: str
    postgres: str
    safekeepers: int
    operations: list[Operation]
    faults: list[Fault]
    samples: list[Sample]
    violations: list[Violation]
