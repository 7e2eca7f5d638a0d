"""What an agent sees of the safekeepers at one moment, and what follows from that (step 14).

Decisions about the lead are made from this: which members replied, since when no proposer is healthy, what the other
agents report, and which settings all share. None of it is needed for a commit to be safe (S15).

Pure.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from safekeeper.base.errors import RemoteProtocolError
from safekeeper.consensus.membership import Identity
from safekeeper.consensus.messages import AgentSettingsVersion, AgentView
from walproxy.agent.report import AgentReport, AgentSettings, decode
from walproxy.proposer.roster import Cluster
from walproxy.proxy.sight import Sight, has_quorum

_NO_CLUSTER = "no safekeeper has a cluster: start walproxy run first"


@dataclass(frozen=True, slots=True)
class TimedView:
    """The reply of one safekeeper.

    Attributes:
        sent_at: when it was requested, on the caller's monotonic clock, in seconds. The ages in it were measured later.
    """

    view: AgentView
    sent_at: float


@dataclass(frozen=True, slots=True)
class SeenReport:
    """The last report of an agent.

    Attributes:
        age_s: the time between its receipt by a safekeeper and the reply of that one, in seconds.
    """

    report: AgentReport
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSight(Sight):
    """What one exchange with all safekeepers has found.

    Attributes:
        began_at: when it began, on the caller's monotonic clock, in seconds: every request was sent later.
        cluster: the cluster and its newest membership; None if no safekeeper has reported one.
        views: the replies that were received in time, by safekeeper id; also of learners, never of another cluster.
        problems: why the others have not replied, or why one that has does not keep the settings.
    """

    began_at: float
    cluster: Cluster | None
    views: Mapping[int, TimedView] = field(default_factory=dict)

    def is_new(self) -> bool:
        """Return whether all safekeepers have replied, and none has a cluster: nothing was ever acknowledged."""
        unknown = any(each.membership is not None for each in self.greetings.values())
        return self.cluster is None and bool(self.greetings) and not unknown and not self.problems

    def system_id(self) -> int:
        """Return the system of the members' log, 0 if it is not known."""
        if self.cluster is None:
            return 0
        found = (each for each in self.greetings.values() if each.cluster_id == self.cluster.id)
        return next((each.system_id for each in found if each.system_id), 0)

    def has_quorum(self) -> bool:
        """Return whether an elect quorum and a commit quorum of the members, of each half, have replied."""
        return self.cluster is not None and has_quorum(self.cluster.membership, self._members().keys())

    def leader_silent_s(self) -> float | None:
        """Return for how long no leader that is healthy can have been, in seconds; None without a quorum.

        It is the largest x such that an elect quorum of each half reports that it has received nothing of a healthy
        proposer for x: a healthy one needs a quorum, and has a member in common with each elect quorum.
        """
        if self.cluster is None or not self.has_quorum():
            return None
        membership, members = self.cluster.membership, self._members()
        ages_s = []
        for half, size in zip(membership.halves(), membership.elect_sizes(), strict=True):
            replied = (members[each.identity] for each in half if each.identity in members)
            ages_s.append(sorted((view.leader_age_ms / 1000 for view in replied), reverse=True)[size - 1])
        return min(ages_s)

    def reports(self) -> dict[str, SeenReport]:
        """Return the freshest report of each agent, by name.

        One that cannot be read is replaced by a report of that name whose `problem` is why, and which may not lead.
        """
        freshest: dict[str, tuple[int, bytes]] = {}
        for view in self._views():
            for kept in view.reports:
                if kept.name not in freshest or kept.age_ms < freshest[kept.name][0]:
                    freshest[kept.name] = kept.age_ms, kept.report
        return {
            name: SeenReport(_read_report(name, content), age_ms / 1000)
            for name, (age_ms, content) in sorted(freshest.items())
        }

    def settings(self) -> AgentSettingsVersion | None:
        """Return the newest version of the shared settings that a member has; None if none has any."""
        versions = (view.settings for view in self._members().values() if view.settings is not None)
        return max(versions, key=lambda version: version.key, default=None)

    def keeps(self, version: AgentSettingsVersion) -> bool:
        """Return whether a quorum of the members has exactly this version on disk."""
        if self.cluster is None:
            return False
        having = (each for each, view in self._members().items() if view.settings == version)
        return has_quorum(self.cluster.membership, having)

    def shared(self) -> AgentSettings:
        """Return the content of `settings`; the defaults without any.

        Raises:
            RemoteProtocolError: it cannot be read.
        """
        newest = self.settings()
        return AgentSettings() if newest is None else decode(newest.content, AgentSettings)

    def log(self) -> AgentView | None:
        """Return the view of the member whose log is the newest, by last term and flush_lsn; None without a reply."""
        views = self._members().values()
        return max(views, key=lambda view: (view.last_term, view.flush_lsn), default=None)

    def missing(self) -> str:
        """Return why there is no quorum, one line; also of use when there is one, then it may be empty."""
        problems = self.describe_problems()
        if self.cluster is None:
            return f"{_NO_CLUSTER} ({problems})" if problems else _NO_CLUSTER
        if problems or self.has_quorum():
            return problems
        replied = ", ".join(str(i) for i in sorted(self.views)) or "none"
        return f"too few members of {self.cluster.membership.label} have replied: {replied}"

    def _views(self) -> Iterator[AgentView]:
        return (timed.view for _, timed in sorted(self.views.items()))

    def _members(self) -> dict[Identity, AgentView]:
        """Return the replies of members, by data folder: another folder under the same id does not count (S8)."""
        if self.cluster is None:
            return {}
        found = {(i, timed.view.incarnation): timed.view for i, timed in sorted(self.views.items())}
        identities = self.cluster.membership.identities()
        return {identity: view for identity, view in found.items() if identity in identities}


def _read_report(name: str, content: bytes) -> AgentReport:
    try:
        report = decode(content, AgentReport)
    except RemoteProtocolError as error:
        return AgentReport(name, may_lead=False, problem=str(error))
    return report if report.name == name else msgspec.structs.replace(report, name=name)
