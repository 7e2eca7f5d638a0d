"""The safekeepers as agents and commands see them, in memory: reports and settings that a test writes."""

from collections.abc import Callable, Sequence

import msgspec

from safekeeper.base.errors import WalproxyError
from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.membership import Member, Membership
from safekeeper.consensus.messages import AgentSettingsVersion, AgentView, KeptReport
from safekeeper.net.safekeeper_connection import Credentials
from tests.unit.agent.states import CLUSTER, COMMIT_LSN
from walproxy.agent.report import AgentReport, AgentSettings, Order, encode
from walproxy.agent.safekeeper_views import SafekeeperViews
from walproxy.agent.sight import AgentSight, TimedView
from walproxy.proposer.roster import Cluster

MEMBERS = tuple(Member(i, f"{i:032x}") for i in (1, 2, 3))
Step = Callable[["ScriptedViews"], None]


class ScriptedViews(SafekeeperViews):
    """Three safekeepers.

    Attributes:
        agents: the reports, by name.
        ages_s: of reports that are not fresh.
        replying: the ids of the safekeepers that reply.
        steps: before each exchange the next one is run, if there is one.
        orders: all that were given.
        changes: the number of changes of the settings.
        before_change: is run before each of them.
        is_closed: the connections are closed.
        exchanges: the number of exchanges.
    """

    def __init__(self, *agents: AgentReport, settings: AgentSettings | None = None) -> None:
        super().__init__((), Credentials())
        self.agents = {each.name: each for each in agents}
        self.ages_s: dict[str, float] = {}
        self.replying: Sequence[int] = (1, 2, 3)
        self.settings = settings
        self.steps: list[Step] = []
        self.orders: list[Order] = []
        self.changes = 0
        self.before_change: Step = lambda views: None
        self.is_closed = False
        self.exchanges = 0

    def change(self, name: str, **values: object) -> None:
        """Change the report of an agent."""
        self.agents[name] = msgspec.structs.replace(self.agents[name], **values)

    async def exchange(self, report: bytes, *, timeout_s: float) -> AgentSight:
        assert report == b"", "a command reports nothing"
        self.exchanges += 1
        if self.steps:
            self.steps.pop(0)(self)
        kept = tuple(
            KeptReport(name, round(self.ages_s.get(name, 0.1) * 1000), encode(each))
            for name, each in self.agents.items()
        )
        version = AgentSettingsVersion(1, "", encode(self.settings)) if self.settings is not None else None
        return AgentSight(
            began_at=1.0,
            cluster=Cluster(CLUSTER, Membership(1, MEMBERS)) if self.replying else None,
            views={
                member.id: TimedView(
                    AgentView(
                        CLUSTER,
                        member.incarnation,
                        LeaderId(7, "a" * 32),
                        100,
                        last_term=7,
                        log_tli=2,
                        floor=0,
                        flush_lsn=COMMIT_LSN + 0x100,
                        commit_lsn=COMMIT_LSN - member.id + 1,
                        settings=version,
                        reports=kept,
                    ),
                    1.0,
                )
                for member in MEMBERS
                if member.id in self.replying
            },
            problems={i: f"safekeeper {i} does not reply" for i in (1, 2, 3) if i not in self.replying},
        )

    async def change_settings(
        self, change: Callable[[AgentSettings], AgentSettings], *, timeout_s: float
    ) -> AgentSettings:
        if len(self.replying) < 2:
            raise WalproxyError("no quorum of safekeepers has replied")
        self.changes += 1
        self.before_change(self)
        self.settings = change(self.settings or AgentSettings())
        if self.settings.order is not None and self.settings.order not in self.orders:
            self.orders.append(self.settings.order)
        return self.settings

    async def close(self) -> None:
        self.is_closed = True
