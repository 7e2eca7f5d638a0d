"""Changes of the members, as docs/design/protocol.md states them (step 10): the events that request and decide them.

Part of the reference of the proposer (proposer.py). The rules are in members.py.
"""

from safekeeper.consensus.membership import Member, QuorumSizes
from safekeeper.consensus.messages import ChangeMembers, Elected, MembersAnswer, Reconfigure
from tests.simulation.references.acceptor.histories import folders_of
from tests.simulation.references.proposer.actions import Differs, expect
from tests.simulation.references.proposer.leading import Leading
from tests.simulation.references.proposer.members import ReferenceMembers
from tests.simulation.references.proposer.roster import Peer
from tests.simulation.references.proposer.term import ReferenceTerm
from walproxy.proposer.actions import Dial, HangUp, SendMessage


class MemberChanges(Leading):
    """Who is to be a member, and who is dialled."""

    def change_members(
        self, wanted: tuple[Member, ...], now: float, sizes: QuorumSizes | None = None, force: bool = False
    ) -> None:
        """10.10, of an operator at this proxy; one that was not refused."""
        term = self.term
        if term is None:
            raise Differs("10.1: members are changed without a term")
        end = ReferenceMembers.end_of(term.membership, wanted, sizes)
        expect(not self.refuses_change(wanted, sizes, force), "10.10: a change is to be refused")
        term.change.want(term.membership, end, force)
        self._decide()

    def refuses_change(self, wanted: tuple[Member, ...], sizes: QuorumSizes | None, force: bool) -> bool:
        """10.10: whether such a change is refused."""
        term = self.term
        if term is None:
            return True
        end = ReferenceMembers.end_of(term.membership, wanted, sizes)
        return term.change.refuses(term.membership, end, force, term.taking_part())

    def _change_requested(self, safekeeper_id: int, message: ChangeMembers) -> None:
        """10.10."""
        term = self.term
        is_refused = (
            term is None
            or message.cluster_id != term.elected.cluster_id
            or term.change.refuses_command(term.membership, message, term.taking_part())
        )
        self._expected.append(SendMessage(safekeeper_id, MembersAnswer(message.request_id, "no" if is_refused else "")))
        if term is not None and not is_refused:
            end = ReferenceMembers.end_of(term.membership, message.wanted, message.quorum_sizes)
            term.change.want(term.membership, end, message.force)
            self._decide()

    def _decide(self) -> None:
        """10.2, 10.4 to 10.6: a membership that is decided for, and whether it had to be."""
        term = self.term
        if term is None:
            return
        sent = self._sent(Reconfigure)
        # How far truncate_lsn has advanced since it was sent last is the leader's choice between two ticks.
        limit = term.next_membership(term.truncate_limit())
        lowest = term.next_membership(term.truncate_lsn)
        membership = sent[0][1].membership if sent else self._membership_after
        if membership is None or membership == term.membership:
            expect(limit is None or membership is None, "10.2: the next membership is not decided for")
            return
        expect(membership in (limit, lowest), "10.4: {} is decided for, reference {}", membership, lowest)
        expect(all(m == Reconfigure(term.leader_id, membership) for _, m in sent), "10.2: different memberships")
        followers = {i for i, member in term.members.items() if member.is_connected}
        expect({i for i, _ in sent} == followers, "10.2: it is sent to {} only", [i for i, _ in sent])
        term.decide(membership)

    def _replace_lost(self) -> None:
        """10.12: a learner takes the place of the member of its id."""
        term = self.term
        if term is None or not self.config.replace_lost or term.change.next(term.membership) is not None:
            return
        membership, members = term.membership, {member.id: member for member in term.membership.members}
        skipping = {safekeeper_id for safekeeper_id, _ in self._sent(Elected)}
        for safekeeper_id, learner in sorted(term.members.items()):
            lost = members.get(safekeeper_id)
            if (
                lost is None
                or not learner.follows
                or safekeeper_id in skipping
                or learner.folder[1] == lost.incarnation
            ):
                continue
            successor = Member(lost.id, learner.folder[1], lost.address)
            wanted = tuple(successor if member is lost else member for member in membership.members)
            end = ReferenceMembers.end_of(membership, wanted, membership.quorum_sizes)
            if end != term.change.cancelled and not self.refuses_change(wanted, membership.quorum_sizes, False):
                term.change.want(membership, end, False)
            return

    def _dialled(self, action: Dial) -> None:
        """10.11."""
        self.roster.peers.setdefault(action.safekeeper_id, Peer())
        self._expected.append(action)

    def _hang_up(self, term: ReferenceTerm) -> None:
        """10.11."""
        for action in self._actions:
            if isinstance(action, HangUp):
                safekeeper_id = action.safekeeper_id
                needed = {folder[0] for folder in folders_of(term.membership)}
                needed |= {member.id for member in term.change.wanted.members} | set(self.config.safekeeper_ids)
                expect(safekeeper_id not in needed, "10.11: a member, or a configured safekeeper, is disconnected")
                member = term.members.get(safekeeper_id)
                knows = member is None or not member.is_connected or member.generation == term.membership.generation
                expect(knows and not term.membership.new_members, "10.11: it does not have the final membership yet")
                self._removed.append(safekeeper_id)
                self._standbys.disconnected(safekeeper_id)
                self._expected.append(action)

    def _forget_removed(self) -> None:
        """What was sent to them before, in the same event, was checked."""
        for safekeeper_id in self._removed:
            del self.roster.peers[safekeeper_id]
            if self.term is not None:
                self.term.removed(safekeeper_id)
        self._removed = []
