"""The phases of a proposer, their transitions, its configuration, and the state that is kept between terms."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from safekeeper.base.errors import InvariantViolation
from safekeeper.base.lsn import Lsn
from walproxy.proposer.apply_rule import ApplyRule
from walproxy.proposer.liveness import Timing
from walproxy.proposer.purpose import Obstacle, Purpose


class Phase(Enum):
    """The phase of a proposer; each comment names the events that end it."""

    GATHERING = "gathering"  # a quorum of members and a primary are connected, and the pause is over: PRE_VOTING
    BOOTSTRAPPING = "bootstrapping"  # every member has confirmed: GATHERING
    PRE_VOTING = "pre_voting"  # a majority agrees: VOTING; it does not: GATHERING, as a spare
    VOTING = "voting"  # a majority has promised: VERIFYING; a higher promise or a timeout: GATHERING
    VERIFYING = "verifying"  # the primary continues the log: LEADING; it does not: FINISHED, or GATHERING for another
    LEADING = "leading"  # a higher term, a lost start, a new timeline: GATHERING
    FINISHED = "finished"  # none


TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    Phase.GATHERING: frozenset({Phase.BOOTSTRAPPING, Phase.PRE_VOTING, Phase.FINISHED}),
    Phase.BOOTSTRAPPING: frozenset({Phase.GATHERING, Phase.FINISHED}),
    Phase.PRE_VOTING: frozenset({Phase.VOTING, Phase.GATHERING, Phase.FINISHED}),
    Phase.VOTING: frozenset({Phase.VERIFYING, Phase.GATHERING, Phase.FINISHED}),
    Phase.VERIFYING: frozenset({Phase.LEADING, Phase.GATHERING, Phase.FINISHED}),
    Phase.LEADING: frozenset({Phase.GATHERING, Phase.FINISHED}),
    Phase.FINISHED: frozenset(),
}


class Stage:
    """The present phase; the only place where it changes.

    Attributes:
        phase: see `Phase`.
    """

    def __init__(self) -> None:
        self.phase = Phase.GATHERING

    def enter(self, phase: Phase) -> None:
        """Change to another phase.

        Raises:
            InvariantViolation: `TRANSITIONS` does not list it.
        """
        if phase not in TRANSITIONS[self.phase]:
            raise InvariantViolation(f"a proposer cannot change from {self.phase.value} to {phase.value}")
        self.phase = phase


@dataclass(frozen=True, slots=True)
class ProposerConfig:
    """The configuration of a proposer.

    Attributes:
        run: random id of this run, 32 hexadecimal digits.
        safekeeper_ids: the members at a bootstrap.
        addresses: where they listen, by id, as far as known.
        takeover: win a term even if another proposer is alive.
        allow_data_loss: let a fork cut what may have been committed (S9).
        bootstrap: begin a new cluster on empty safekeepers although the slot exists on the primary already.
        allow_unverified_primary: accept a primary that has recycled WAL which would have to be compared (S10).
        several_primaries: other hosts can be tried, so that a primary that is refused does not end the process.
        tail_after_s: after so long without a primary, win a term that makes the log's tail known; None: never.
        replace_lost: replace a member by another data folder that answers under its id.
        apply_rule: the standbys that must have replayed all WAL below the `apply` position.
    """

    proposer_id: str
    safekeeper_ids: tuple[int, ...]
    takeover: bool = False
    allow_data_loss: bool = False
    bootstrap: bool = False
    allow_unverified_primary: bool = False
    several_primaries: bool = False
    tail_after_s: float | None = None
    replace_lost: bool = False
    apply_rule: ApplyRule = field(default_factory=ApplyRule)
    addresses: Mapping[int, str] = field(default_factory=dict)
    timing: Timing = field(default_factory=Timing)


@dataclass(slots=True)
class Candidacy:
    """The state that a proposer keeps from one campaign to the next.

    Attributes:
        term: the last term that it requested or holds; none is requested twice.
        held_term, held_commit_lsn: the last term that it held, and how far it committed, at least the term's start;
            0 if it held none.
        has_led: it has led a term with a primary: a majority that follows another proposer has deposed it.
        was_elected: a quorum has voted for it once: from then on it does not take over.
        is_spare: another proposer is alive; this one waits.
        failed: consecutive campaigns that were lost after votes were requested, or whose term was deposed before it had
            committed (8.1).
        purpose: that of the tail terms that it wants (step 13), None for a tail term without one.
        obstacle: why it wants none for that purpose any longer: a donor's log does not admit it, or it is served.
        given_before: what was handed out before the first of its terms that follow each other in the log; None
            before that.
        served_terms: the tail terms that it held for a purpose, whether or not one was committed.
    """

    term: int = 0
    held_term: int = 0
    held_commit_lsn: Lsn = 0
    has_led: bool = False
    was_elected: bool = False
    is_spare: bool = False
    failed: int = 0
    purpose: Purpose | None = None
    obstacle: Obstacle | None = None
    given_before: int | None = None
    served_terms: set[int] = field(default_factory=set)
