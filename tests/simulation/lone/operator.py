"""What operators do to a lone proposer: they change the members and their quorums, and designate standbys.

Part of proposer.py.
"""

from safekeeper.base.errors import ConfigurationError
from safekeeper.consensus.membership import Member, QuorumSizes
from safekeeper.consensus.messages import ChangeMembers
from tests.simulation.lone.drawn_apply_rules import drawn
from tests.simulation.lone.safekeepers import CLUSTERS, SIZES, with_other_folder
from tests.simulation.lone.shell import LoneShell

INVALID_SIZES = QuorumSizes("N-1", "N/2+1")


class LoneOperator(LoneShell):
    """Events of operators."""

    def _operate(self) -> None:
        if self._chance(0.5):
            self._event("set_apply_rule", drawn(self.rng))
        else:
            self._event("forget_refusals")

    def _change(self) -> None:
        """A command asks for other members, through a safekeeper."""
        self._settle()
        leadership = self._proposer.leadership
        open_ones = self._open_ones()
        everyone = self._cluster.members()
        if leadership is None:
            if self._chance(0.2):
                self._change_here(everyone, None, force=False)
            elif open_ones and self._chance(0.3):
                message = ChangeMembers(self.rng.randrange(5), CLUSTERS[0], 2, everyone)
                self._event("message", self.rng.choice(open_ones).id, message, self._now_s)
            return
        membership, cancelled = leadership.membership, leadership.cancelled
        if cancelled is not None and open_ones and self._chance(0.3):
            # The command that asked for it is answered once more.
            cluster_id, sizes = leadership.elected.cluster_id, cancelled.sizes
            message = ChangeMembers(1, cluster_id, membership.generation, cancelled.members, sizes, False, True)
            self._event("message", self.rng.choice(open_ones).id, message, self._now_s)
            return
        choices = [membership.members, membership.new_members, everyone, everyone[1:], everyone[:-1]]
        if cancelled is not None:
            choices += [cancelled.members] * 3
        if membership.members:
            choices.append(with_other_folder(membership.members, self.rng.choice(membership.members).id))
        if leadership.wanted.members not in (membership.members, membership.new_members):
            choices += [membership.members] * 3  # A change that has not begun is cancelled.
        if self._chance(0.1):
            choices = [tuple(Member(each.id, f"{each.incarnation}'", each.address) for each in everyone)]
        if self._is_unlisted:
            choices += [everyone[:-1]] * 3
        wanted = self.rng.choice((*choices, leadership.wanted.members))
        sizes = self.rng.choice((None, None, None, *SIZES, INVALID_SIZES))
        force = self._chance(0.6)
        if self._chance(0.3):
            self._change_here(wanted, sizes, force)
            return
        if not open_ones:
            return
        message = ChangeMembers(
            self.rng.randrange(5),
            leadership.elected.cluster_id if self._chance(0.95) else CLUSTERS[1],
            membership.generation - self.rng.choice((0, 0, 0, 1, 2, -1)),
            wanted,
            sizes,
            force,
            self._chance(0.3),
        )
        self._event("message", self.rng.choice(open_ones).id, message, self._now_s)

    def _change_here(self, wanted: tuple[Member, ...], sizes: QuorumSizes | None, force: bool) -> None:
        """An operator asks for other members at this proxy."""
        try:
            self._event("change_members", wanted, self._now_s, sizes, force)
        except ConfigurationError:
            return  # The reference refuses it, too.
