"""What a failover finds, and what it does next: the same decision for any run of the command, after any interruption.

Pure. The state of a failover is in the safekeepers, which have the floor and the timeline of the log, and in the
servers: each is a standby, or a primary on some timeline. Of a primary of the log's system, by its timeline:

- that of the log, above the floor: it serves the log;
- above that of the log and above the floor: it was promoted, and a proxy will take it over;
- any other one is an old primary.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from safekeeper.base.errors import WalproxyError
from safekeeper.base.lsn import Lsn
from safekeeper.consensus.messages import AcceptorGreeting
from walproxy.failover.candidates import HostLook, NoCandidate, choose, resolve
from walproxy.failover.log_end import LogEnd
from walproxy.proposer.roster import Cluster
from walproxy.proxy.sight import Sight, has_quorum


class FailoverRefused(WalproxyError):
    """The failover is not begun. One line says why, and what to do."""


@dataclass(frozen=True)
class Survey:
    """What the safekeepers and the servers have.

    Attributes:
        log: the greeting of the member with the newest log.
        members: how many members there are.
        replying: how many of them have replied.
        has_quorum: whether those can elect a leader, and have all that was committed.
        is_led: whether a quorum follows a proxy that has a primary.
        looks: the servers, in the user's order.
        problems: why safekeepers do not reply, one line.
    """

    log: AcceptorGreeting
    members: int
    replying: int
    has_quorum: bool
    is_led: bool
    looks: tuple[HostLook, ...]
    problems: str = ""

    @property
    def is_sealed(self) -> bool:
        """Whether the log's timeline is sealed: a failover was begun, and the log has not gone on."""
        return self.log.floor >= self.log.log_tli

    @property
    def serving(self) -> HostLook | None:
        """The primary of the log, if it replies and is not sealed off."""
        log = self.log
        return next((look for look in self._primaries() if look.tli == log.log_tli > log.floor), None)

    @property
    def promoted(self) -> tuple[HostLook, ...]:
        """The servers that were promoted, and to which the log has not gone on."""
        log = self.log
        return tuple(look for look in self._primaries() if look.tli > max(log.log_tli, log.floor))

    @property
    def in_use_tli(self) -> int:
        """The highest timeline on which a server was found."""
        return max((look.tli for look in self.looks if look.system_id == self.log.system_id), default=0)

    def _primaries(self) -> list[HostLook]:
        return [look for look in self.looks if look.in_recovery is False and look.system_id == self.log.system_id]

    def estimated_end(self) -> LogEnd:
        """Return the end of the newest log that was seen, as if it were sealed now and ended with a record."""
        log = self.log
        return LogEnd(
            system_id=log.system_id,
            tli=log.log_tli,
            lineage=tuple((tli, log.flush_lsn) for tli in range(1, log.log_tli)),
            end_lsn=log.flush_lsn,
            records_end_lsn=log.flush_lsn,
            given=max(log.given, self.in_use_tli),
            is_estimate=True,
        )


@dataclass(frozen=True)
class Finished:
    """Nothing is to be done: this server serves the log."""

    primary: HostLook


@dataclass(frozen=True)
class Resume:
    """Wait until a proxy takes over this server, which was promoted already."""

    promoted: HostLook


@dataclass(frozen=True)
class Promote:
    """Seal the log's timeline, and promote a standby.

    Attributes:
        best: the one that would be promoted if nothing changed.
        wanted: the only one that may be, "" for any.
    """

    best: HostLook
    wanted: str


Plan = Finished | Resume | Promote


def next_step(survey: Survey, wanted: str = "", *, old_is_dead: bool = False) -> Plan:
    """Return what a failover has to do.

    Args:
        wanted: the server that is to be the primary, HOST or HOST:PORT; "" for the standby that has received the most.
        old_is_dead: also if the old primary replies, or its proxy leads.

    Raises:
        FailoverRefused: the primary lives.
        NoCandidate: no server can be promoted, or `wanted` cannot.
    """
    name = resolve([look.name for look in survey.looks], wanted) if wanted else ""
    serving, log = survey.serving, survey.log
    if serving is not None and not old_is_dead:
        return _with_living_primary(survey, serving, name)
    if serving is not None and name == serving.name:
        raise FailoverRefused(f"{name} is the primary that --old-is-dead gives up: name a standby with --to")
    if survey.is_led and not survey.is_sealed and not old_is_dead:
        raise FailoverRefused(
            f"a walproxy run leads and has a primary on timeline {log.log_tli}, which does not reply to this command "
            f"({'; '.join(f'{look.name}: {look.problem}' for look in survey.looks if look.problem) or 'not listed'}): "
            "with --old-is-dead it is sealed off nevertheless"
        )
    promoted = [look for look in survey.promoted if name in ("", look.name)]
    if len(promoted) > 1:  # Another one than that of a failover was promoted by hand.
        promoted = [look for look in promoted if look.tli == log.given]
    if len(promoted) == 1:
        return Resume(promoted[0])
    if survey.promoted and not name:
        found = ", ".join(f"{look.name} (timeline {look.tli})" for look in survey.promoted)
        raise NoCandidate(f"several servers were promoted: {found}: name the one to use with --to, stop the others")
    candidates = [look for look in survey.looks if look != serving]
    return Promote(choose(candidates, survey.estimated_end(), name), name)


def _with_living_primary(survey: Survey, serving: HostLook, name: str) -> Plan:
    was_promoted = serving.tli == survey.log.given > survey.log.floor > 0
    if name == serving.name or (was_promoted and not name):
        if survey.is_led:
            return Finished(serving)
        raise FailoverRefused(
            f"{serving.name} is the primary (timeline {serving.tli}) and replies, and no walproxy run serves it: start "
            "one with a --primary that names it"
        )
    raise FailoverRefused(
        f"{serving.name} is the primary of the log (timeline {serving.tli}) and replies: use walproxy switchover to "
        "move to another server; with --old-is-dead it is sealed off nevertheless"
    )


def check_cancellable(survey: Survey) -> bool:
    """Return whether a seal is to be cancelled; False if there is none.

    Raises:
        FailoverRefused: a server was promoted already.
    """
    if not survey.is_sealed:
        return False
    if survey.promoted:
        promoted = survey.promoted[0]
        raise FailoverRefused(
            f"{promoted.name} was promoted to timeline {promoted.tli}: finish with walproxy failover --to "
            f"{promoted.name}, or stop that server and repeat the command"
        )
    return True


def survey_of(cluster: Cluster, sight: Sight, live_proposers: Mapping[int, str], looks: tuple[HostLook, ...]) -> Survey:
    """Return the survey of a cluster.

    Args:
        live_proposers: the run that each safekeeper follows and that has a primary, by its id.

    Raises:
        FailoverRefused: no member replies, or the log is empty.
    """
    greetings, membership, problems = sight.member_greetings(cluster), cluster.membership, sight.describe_problems()
    identities = {each: (each, greeting.incarnation) for each, greeting in greetings.items()}
    if not greetings:
        raise FailoverRefused(f"no member of the cluster replies: {problems or 'list them in [safekeepers]'}")
    log = max(greetings.values(), key=lambda greeting: (greeting.last_term, greeting.flush_lsn))
    if not log.log_tli:
        raise FailoverRefused("the safekeepers have no WAL: no commit was ever acknowledged, start walproxy run")
    return Survey(
        log=log,
        members=len(membership.identities()),
        replying=len(greetings),
        has_quorum=has_quorum(membership, identities.values()),
        is_led=any(
            membership.has_elect_quorum(identities[each] for each in identities if live_proposers.get(each) == run)
            for run in set(live_proposers.values()) - {""}
        ),
        looks=looks,
        problems=problems,
    )


def log_is_on(greeting: AcceptorGreeting, tli: int, fork_lsn: Lsn) -> bool:
    """Return whether a member has committed WAL of a promoted server."""
    return greeting.log_tli == tli and greeting.commit_lsn > fork_lsn


def overtaken_reason(greetings: Mapping[int, AcceptorGreeting], tli: int) -> str:
    """Return why the log will not go on to timeline `tli`, empty if it may."""
    if not greetings:
        return ""
    # A member that was away may have a higher floor, of a seal that was lost or cancelled.
    newest = max(greetings.values(), key=lambda greeting: (greeting.last_term, greeting.flush_lsn))
    if newest.log_tli > tli:
        return f"the log has gone on to timeline {newest.log_tli}: make it a standby with pg_rewind"
    if newest.floor >= tli:
        return (
            f"another failover has sealed the timelines up to {newest.floor} since: if that one fails, repeat the "
            "command"
        )
    return ""
