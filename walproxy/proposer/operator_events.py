"""The events of an operator: other standbys are designated, or the members change (step 10)."""

from safekeeper.base.errors import ConfigurationError
from safekeeper.consensus.membership import Member, QuorumSizes
from safekeeper.consensus.messages import ChangeMembers, MembersAnswer
from walproxy.proposer.actions import Action, Level, SendMessage
from walproxy.proposer.apply_rule import ApplyRule
from walproxy.proposer.leadership import Leadership
from walproxy.proposer.member_change import Target, halves_of, target_of
from walproxy.proposer.roster import newest_cluster
from walproxy.proposer.terms import Terms, cluster_of


class OperatorEvents(Terms):
    """What an operator wants, from this process or by a command, and the connections to the members that follow."""

    def set_apply_rule(self, rule: ApplyRule) -> list[Action]:
        """Designate other standbys: compute the apply position for them at once."""
        leadership = self.leadership
        before_lsn = self.standbys.apply_lsn(leadership.commit_lsn) if leadership is not None else 0
        self.standbys.set_rule(rule)
        if leadership is not None:
            leadership.report_apply(before_lsn)
        return self._take()

    def change_members(
        self, wanted: tuple[Member, ...], now: float, sizes: QuorumSizes | None = None, force: bool = False
    ) -> list[Action]:
        """Change the members to `wanted`, in order of their ids, as soon as that is safe; or cancel such a change.

        Args:
            sizes: of their quorums; the present ones if None.
            force: even if too few of the new members follow, so that commits wait until more do.

        Raises:
            ConfigurationError: the change is refused; it says why.
        """
        leadership = self.leadership
        if leadership is None:
            raise ConfigurationError("this proxy leads no term: only the leader changes the members")
        refusal = self._begin_change(leadership, target_of(leadership.membership, wanted, sizes), force, now)
        if refusal:
            raise ConfigurationError(refusal)
        return self._take()

    def forget_refusals(self) -> None:
        """Forget refusals, since an operator may have repaired a host: elections decide about all of them again."""
        self.refusals.forget()

    def _begin_change(self, leadership: Leadership, wanted: Target, force: bool, now: float) -> str:
        """Begin a change of the members; return why it is refused, empty if it is not."""
        refusal = leadership.refusal_of_change(wanted, force)
        if not refusal:
            leadership.begin_change(wanted, force, now)
            self._dial_members(now)
        return refusal

    def _on_change_members(self, safekeeper_id: int, message: ChangeMembers, now: float) -> None:
        """Handle the change that an operator wants, relayed by a safekeeper, which relays the answer back."""
        leadership = self.leadership
        if leadership is None:
            refusal = "this proxy leads no term, and only the leader changes the members: repeat the command"
        else:
            refusal = self._refusal_or_begin(leadership, message, now)
        if refusal:
            self._note(Level.WARNING, f"a change of the members is refused: {refusal}")
        self._out.append(SendMessage(safekeeper_id, MembersAnswer(message.request_id, refusal)))
        self._follow_leadership(now)

    def _refusal_or_begin(self, leadership: Leadership, message: ChangeMembers, now: float) -> str:
        cluster_id, generation = leadership.elected.cluster_id, leadership.membership.generation
        wanted = target_of(leadership.membership, message.wanted, message.quorum_sizes)
        if message.cluster_id != cluster_id:
            return f"this proxy leads cluster {cluster_id[:8]}, not {message.cluster_id[:8]}"
        if message.is_repeated and wanted == leadership.cancelled:
            return "the change was cancelled"
        if not 0 <= generation - message.generation <= 1:
            # The joint membership of this change is one above; the next one ends it.
            return (
                f"the membership has changed meanwhile, from generation {message.generation} to {generation}: repeat "
                "the command"
            )
        return self._begin_change(leadership, wanted, message.force, now)

    def _dial_members(self, now: float) -> None:
        """Dial the members that are known, each at the address of the data folder that is to be one."""
        leadership = self.leadership
        cluster = cluster_of(leadership) if leadership is not None else newest_cluster(self.peers)
        if cluster is None:
            return
        membership = cluster.membership
        wanted = leadership.wanted if leadership is not None else halves_of(membership)[-1]
        others = {member.id: member for half in membership.halves() for member in half}
        members = list({**others, **{member.id: member for member in wanted.members}}.values())
        self.roster.dial(members)
        self.roster.redirect(members, cluster.id, now)

    def _hang_up_removed(self, leadership: Leadership, now: float) -> None:
        """Close the connections to safekeepers that were removed, once they know it, and are not configured."""
        membership = leadership.membership
        if membership.new_members:
            return
        needed = membership.ids() | {member.id for member in leadership.wanted.members}
        for safekeeper_id in self.roster.removed(needed):
            progress = leadership.members.get(safekeeper_id)
            if progress is None or not progress.is_connected or progress.generation == membership.generation:
                leadership.forget(safekeeper_id, now)
                self.standbys.disconnected(safekeeper_id)
                self.roster.hang_up(safekeeper_id)
