"""Undo a rebootstrap: the cluster that it replaced continues, with the WAL that was set aside (protocol step 0).

Each safekeeper keeps what a rebootstrap replaced: the state in its control file, the WAL in a folder beside the log.
`survey_undo` changes nothing and finds the cluster to restore: one that a quorum of its members has. `execute_undo`
restores it, with a membership of a higher generation, so that the cluster of the rebootstrap cannot continue.

Nothing is lost as long as the new cluster has no WAL. Its WAL may be acknowledged, and is given up only if the operator
has typed from which position on. A safekeeper refuses to return without its WAL.
Every member of the new cluster must be reachable, so that it loses its quorum before the old one has one again.
After a crash, repeat the command: a safekeeper that has returned already only adopts the newer membership.
"""

from dataclasses import dataclass

import msgspec

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.lsn import Lsn, format_lsn
from safekeeper.consensus.membership import Membership
from safekeeper.consensus.messages import AcceptorGreeting, Bootstrap, Replaced
from walproxy.proxy.config import MembersConfig
from walproxy.proxy.rebootstrap import greet_all, next_generation, send_bootstrap


@dataclass(frozen=True)
class UndoSurvey:
    """The state before an undo.

    Attributes:
        greetings: of each safekeeper, by its id.
        target: the cluster to restore.
    """

    greetings: dict[int, AcceptorGreeting]
    target: Replaced

    @property
    def since(self) -> dict[int, AcceptorGreeting]:
        """The greetings of the safekeepers that hold WAL written since the rebootstrap."""
        known = ("", self.target.cluster_id)
        return {i: g for i, g in self.greetings.items() if g.cluster_id not in known and g.last_term}

    def lines(self) -> list[str]:
        """Return the lines to show to the operator."""
        target = self.target
        lines = [f"cluster {target.cluster_id} is restored: system {target.system_id}"]
        for i, greeting in sorted(self.greetings.items()):
            if not greeting.cluster_id:
                what = "empty; it joins as a learner"
            elif greeting.cluster_id == target.cluster_id:
                what = "belongs to it, and keeps its WAL"
            elif greeting.replaced is not None and greeting.replaced.cluster_id == target.cluster_id:
                kept = greeting.replaced
                what = (
                    f"its WAL from {format_lsn(kept.wal_begin_lsn)} on, committed up to at least "
                    f"{format_lsn(kept.commit_lsn)}, is moved back"
                )
            else:
                what = "is not a member of it; it joins as a learner"
            lines.append(f"safekeeper {i}: {what}")
        for i, greeting in sorted(self.since.items()):
            lines.append(
                f"LOSS: safekeeper {i} holds {greeting.flush_lsn - greeting.wal_begin_lsn} bytes of WAL, "
                f"[{format_lsn(greeting.wal_begin_lsn)}, {format_lsn(greeting.flush_lsn)}), written since the "
                "rebootstrap: acknowledged commits in that range are lost, unless the primary has them"
            )
        lines.append(
            "an archive that contains WAL of the new cluster accepts none of this one before walproxy archive "
            "adopt --cluster-id names it"
        )
        return lines

    def check_consent(self, discard_above_lsn: Lsn | None) -> None:
        """Refuse to give up WAL that the operator has not named.

        Raises:
            ConfigurationError: the message contains the option to use.
        """
        begin_lsn = min((greeting.wal_begin_lsn for greeting in self.since.values()), default=None)
        if begin_lsn is not None and (discard_above_lsn is None or discard_above_lsn > begin_lsn):
            lsn = format_lsn(begin_lsn)
            raise ConfigurationError(
                f"safekeepers hold WAL from {lsn} on that was written since the rebootstrap: leave the new cluster as "
                f"it is, or give up the commits in it with --discard-wal-above {lsn}"
            )


async def survey_undo(config: MembersConfig) -> UndoSurvey:
    """Request from every safekeeper what it has and what it has set aside.

    Raises:
        WalproxyError: one of them does not reply; or there is no cluster to restore.
    """
    talks = await greet_all(config)
    for talk in talks.values():
        await talk.close()
    greetings = {i: talk.greeting for i, talk in talks.items()}
    target = _find_target(greetings)
    for i, greeting in sorted(greetings.items()):
        if target.membership.is_voter(i, greeting.incarnation) and not _has(greeting, target.cluster_id):
            raise ConfigurationError(
                f"safekeeper {i} is a member of cluster {target.cluster_id[:8]} and has none of its WAL: wipe its data "
                "folder, so that it joins as a learner, and repeat the command"
            )
        absent = sorted(_other_members(greeting, target) - greetings.keys())
        if absent:
            raise ConfigurationError(
                f"safekeeper {i} belongs to cluster {greeting.cluster_id[:8]}, which safekeeper {absent[0]} is a "
                "member of: list all of its members in [safekeepers], because it must not continue without them"
            )
    return UndoSurvey(greetings, target)


async def execute_undo(config: MembersConfig, before: UndoSurvey) -> None:
    """Restore the cluster on all safekeepers.

    Raises:
        WalproxyError: a safekeeper cannot be reached, has changed since the survey, or refuses; repeat the command.
    """
    target = before.target

    def bootstrap(greetings: dict[int, AcceptorGreeting]) -> Bootstrap:
        return Bootstrap(
            target.cluster_id,
            target.system_id,
            target.segment_size,
            target.server_version,
            _restored(target, greetings),
            undo=True,
            discard=bool(before.since),
        )

    await send_bootstrap(config, before.greetings, bootstrap, order=_order(before))


def _restored(target: Replaced, greetings: dict[int, AcceptorGreeting]) -> Membership:
    """Return the membership of the restored cluster: later than every membership of it that a safekeeper has."""
    return msgspec.structs.replace(target.membership, generation=next_generation(greetings))


def _latest(kept: Replaced, greetings: dict[int, AcceptorGreeting]) -> Replaced:
    """Return a cluster with the latest membership of it that a safekeeper has.

    A rebootstrap that has reached few of its members may have left a quorum, which has changed its members since (S8a).
    """
    known = [
        described.membership
        for greeting in greetings.values()
        for described in (greeting, greeting.replaced)
        if described is not None and described.cluster_id == kept.cluster_id and described.membership is not None
    ]
    membership = max([kept.membership, *known], key=lambda each: each.key)
    return msgspec.structs.replace(kept, membership=membership)


def _order(before: UndoSurvey) -> list[int]:
    """Return the safekeepers in an order in which the new cluster loses its quorum before the old one has one again.

    First those that are not members of the old cluster, then its members that have left it. So whatever a proxy does
    meanwhile, and wherever this is interrupted, the two clusters never both commit. Members that have not left it are
    last: they already count for it. An empty folder has nothing to undo: it receives WAL as every learner does.
    """
    target = before.target

    def rank(safekeeper_id: int) -> tuple[bool, bool, int]:
        greeting = before.greetings[safekeeper_id]
        is_member = target.membership.is_voter(safekeeper_id, greeting.incarnation)
        return greeting.cluster_id == target.cluster_id, is_member, safekeeper_id

    return sorted((i for i, greeting in before.greetings.items() if greeting.cluster_id), key=rank)


def _find_target(greetings: dict[int, AcceptorGreeting]) -> Replaced:
    """Return the cluster that a quorum of its members has: set aside, or because the rebootstrap did not reach them."""
    kept = [greeting.replaced for greeting in greetings.values() if greeting.replaced is not None]
    candidates = [_latest(candidate, greetings) for candidate in kept or _half_undone(greetings)]
    if not candidates:
        raise ConfigurationError("no safekeeper keeps a cluster that a rebootstrap has replaced: nothing can be undone")
    for target in sorted(candidates, key=lambda replaced: replaced.membership.key, reverse=True):
        membership = target.membership
        keeping = {(i, g.incarnation) for i, g in greetings.items() if _has(g, target.cluster_id)}
        # They can elect a leader, and one of them has each committed byte.
        if membership.has_elect_quorum(keeping):
            return target
    held = ", ".join(
        f"safekeeper {i} keeps cluster {greeting.replaced.cluster_id[:8]}"
        for i, greeting in sorted(greetings.items())
        if greeting.replaced is not None
    )
    raise ConfigurationError(f"no quorum of a cluster's members keeps it ({held}): the rebootstrap cannot be undone")


def _half_undone(greetings: dict[int, AcceptorGreeting]) -> list[Replaced]:
    """Return the cluster that an undo has restored on all members that had left it, but not reported to the others.

    They have the older generation, so that no quorum agrees on one.
    """
    known = [(greeting, greeting.membership) for greeting in greetings.values() if greeting.membership is not None]
    return [
        Replaced(
            greeting.cluster_id,
            greeting.system_id,
            greeting.segment_size,
            greeting.server_version,
            membership,
            greeting.wal_begin_lsn,
            greeting.commit_lsn,
        )
        for greeting, membership in known
        if any(
            other.cluster_id == greeting.cluster_id and older.generation < membership.generation
            for other, older in known
        )
    ]


def _other_members(greeting: AcceptorGreeting, target: Replaced) -> set[int]:
    """Return the ids of the members of a safekeeper's cluster, none if it is the one to restore."""
    membership = greeting.membership
    return set(membership.ids()) if membership is not None and greeting.cluster_id != target.cluster_id else set()


def _has(greeting: AcceptorGreeting, cluster_id: str) -> bool:
    kept = greeting.replaced.cluster_id if greeting.replaced is not None else ""
    return cluster_id in (greeting.cluster_id, kept)
