"""How much of which fault: each profile puts other rules under strain."""

from dataclasses import dataclass, field, fields, replace

from tests.simulation.model.bends import Bends


@dataclass(frozen=True)
class Profile:
    """Rates and sizes of what goes wrong.

    Attributes:
        faults_s: how long faults happen, in virtual seconds.
        fault_every_s: mean time between two of them.
        weights: how often each kind is drawn; kinds are methods of `Faults`.
        record_every_s: mean time between two records of a primary.
        delay_s: the longest delay of a message.
        flush_delay_s: the longest fdatasync.
        slow_effect: probability that an effect on a disk takes time, in which others wait.
        evict_early: probability that a proxy drops committed bytes at once, so that members that lag read from peers.
        isolated_promotion: probability that a promotion takes the next TLI without knowing of others.
        low_fork: probability that a promotion forks below what was acknowledged.
        spare: probability of a second proxy.
        several_hosts: probability that a proxy is pointed at a list of primaries, the right one somewhere in it.
        proxies_stay: probability that the repair leaves the proxies running, and all primaries down but the one that it
            settles on: the first name of each proxy leads there.
        trims: probability that safekeepers remove old WAL, after long and after short, needed or not.
        archive: probability that such a run has an archive: then they remove also what a member lacks.
        pulls: probability that proxies have the addresses of safekeepers, so that members pull WAL from each other.
        tails: probability that proxies win tail terms when they see no primary.
        standby: probability that a run that would have no standby has one.
        direct: probability of a standby that streams from the primary; where there is no other one, there is one.
        primaries_lost: probability that all primaries are lost when the faults end, so that a failover must bring
            commits back.
        clock_skew: probability that each machine's clock has a rate of its own, from half as fast to twice.
        late_messages: probability that what a proxy had sent to a safekeeper when it ended arrives seconds later.
        torn_by_page: probability that a power cut tears writes at borders of 4-KiB pages instead of 512-byte sectors.
        minority: probability that commits must go through again while a minority is still out of reach.
        other_spellings: probability that the operator writes quorum sizes and the rule for remote_apply with
            parentheses, products and quotes, for the same meaning.
        both_changes: probability that a change of the members changes the sizes of their quorums, too.
        archive_ids: probability that the archive has an id, which each safekeeper reports once it has read it.
        strangers: probability that the operator sometimes points a proxy at another PostgreSQL cluster's server.
        agents: whether agents move the lead, and no operator.
        bends: which way the product's choices are taken.
    """

    faults_s: float = 2.0
    fault_every_s: float = 0.1
    weights: dict[str, int] = field(default_factory=dict)
    record_every_s: float = 0.1
    delay_s: float = 0.02
    flush_delay_s: float = 0.03
    slow_effect: float = 0.2
    evict_early: float = 0.3
    isolated_promotion: float = 0.3
    low_fork: float = 0.3
    spare: float = 0.5
    several_hosts: float = 0.0
    proxies_stay: float = 0.0
    trims: float = 0.0
    archive: float = 0.0
    pulls: float = 0.0
    tails: float = 0.0
    standby: float = 0.0
    direct: float = 0.0
    primaries_lost: float = 0.0
    clock_skew: float = 0.3
    late_messages: float = 0.3
    torn_by_page: float = 0.5
    minority: float = 0.2
    other_spellings: float = 0.0
    both_changes: float = 0.0
    archive_ids: float = 0.0
    strangers: float = 0.0
    agents: float = 0.0
    bends: Bends = field(default_factory=Bends)

    def describe(self) -> str:
        """Return all probabilities and times in one line: what share of the faults each kind is, then the rest."""
        total = sum(self.weights.values())
        shares = ", ".join(f"{kind} {100 * weight / total:.0f}%" for kind, weight in self.weights.items())
        numbers = {name: getattr(self, name) for name in RATE_NAMES} | self.bends.bent()
        return f"{shares}; " + ", ".join(f"{name} {number:g}" for name, number in numbers.items())


RATE_NAMES = tuple(f.name for f in fields(Profile) if f.name not in ("weights", "bends"))


_BALANCED = {
    "crash_safekeeper": 6,
    "crash_after_effect": 2,
    "cut_power": 4,
    "break_connection": 5,
    "let_go": 3,
    "block": 5,
    "unblock": 5,
    "restart_proxy": 4,
    "take_over": 2,
    "suspend_proxy": 2,
    "leap_clock": 2,
    "crash_primary": 3,
    "promote": 3,
    "restore_backup": 1,
    "go_back": 1,
    "repoint": 2,
    "lose_primary": 2,
    "wipe": 1,
    "slow_disk": 2,
    "fill_disk": 2,
    "fail_disk": 1,
    "switch_segment": 2,
    "recycle": 2,
}


def _with(**changes: int) -> dict[str, int]:
    return {**_BALANCED, **changes}


# What a seed of `swarm` draws from (swarm.py).
SWARM = Profile(
    weights=_with(
        **dict.fromkeys(
            (
                "stay_away",
                "hang",
                "change_members",
                "change_sizes",
                "exchange_folder",
                "restore_folder",
                "replace_lost",
                "rebootstrap",
                "strand",
                "lose_successor",
                "restore_recycled",
                "lose_data",
                "fail_over",
                "freeze_primary",
                "stop_command",
                "shorten_list",
                "start_other_version",
                "copy_folder",
            ),
            1,
        )
    )
)
BALANCED = Profile(weights=_BALANCED, trims=0.4, archive=0.7, pulls=0.4)
PROFILES: dict[str, Profile] = {
    "balanced": BALANCED,
    "crashy": replace(BALANCED, weights=_with(crash_safekeeper=30), slow_effect=0.4, flush_delay_s=0.1),
    "partitions": replace(BALANCED, weights=_with(block=25, unblock=20, break_connection=10, hang=10)),
    "elections": replace(
        BALANCED, weights=_with(restart_proxy=15, take_over=25, break_connection=10, block=8, unblock=8), spare=1.0
    ),
    "figure8": replace(
        BALANCED,
        weights={
            "strand": 20,
            "promote": 4,
            "go_back": 2,
            "crash_safekeeper": 4,
            "stay_away": 2,
            "unblock": 2,
            "take_over": 2,
        },
        faults_s=2.5,
        fault_every_s=0.3,
        record_every_s=0.05,
        spare=1.0,
        isolated_promotion=0.0,
        low_fork=0.0,
        trims=0.0,
    ),
    "switches": replace(
        BALANCED,
        weights=_with(
            promote=25, repoint=8, restore_backup=5, restore_recycled=3, go_back=5, crash_primary=8, recycle=5
        ),
        isolated_promotion=0.5,
        low_fork=0.5,
        several_hosts=0.4,
    ),
    "disks": replace(
        BALANCED, weights=_with(fill_disk=12, fail_disk=10, slow_disk=10, cut_power=25, wipe=3, crash_safekeeper=12)
    ),
    "slow": replace(
        BALANCED, weights=_with(slow_disk=10), faults_s=5.0, fault_every_s=0.2, delay_s=0.2, flush_delay_s=0.3
    ),
    "losses": replace(
        BALANCED,
        weights=_with(lose_data=8, stay_away=12, promote=2, repoint=4, go_back=2),
        faults_s=3.0,
        isolated_promotion=0.0,
        archive=0.0,
    ),
    "calm": replace(BALANCED, fault_every_s=0.4),
    "archive": replace(
        BALANCED,
        weights=_with(stay_away=12, switch_segment=25, restore_backup=2, promote=6, crash_primary=5),
        faults_s=3.5,
        record_every_s=0.06,
        trims=1.0,
        archive=0.85,
    ),
    "members": replace(
        BALANCED,
        weights=_with(
            change_members=40,
            exchange_folder=15,
            replace_lost=2,
            rebootstrap=4,
            wipe=8,
            restart_proxy=8,
            take_over=8,
            crash_safekeeper=10,
            block=8,
            unblock=8,
        ),
        faults_s=4.0,
        spare=0.8,
    ),
    "sizes": replace(
        BALANCED,
        weights=_with(
            change_sizes=50, change_members=15, wipe=4, restart_proxy=8, take_over=8, crash_safekeeper=10, promote=8
        ),
        faults_s=4.0,
        spare=0.8,
    ),
    "restored": replace(
        BALANCED,
        weights=_with(
            restore_folder=15,
            change_members=8,
            wipe=3,
            restart_proxy=8,
            take_over=8,
            crash_safekeeper=10,
            block=8,
            unblock=8,
        ),
        faults_s=6.0,
    ),
    "tails": replace(
        BALANCED,
        weights=_with(
            crash_primary=20, lose_primary=15, restart_proxy=15, promote=10, slow_disk=8, block=8, unblock=8, wipe=2
        ),
        faults_s=4.0,
        tails=1.0,
        spare=0.8,
    ),
    "failovers": replace(
        BALANCED,
        weights=_with(
            fail_over=12,
            freeze_primary=3,
            stop_command=4,
            hang=2,
            crash_primary=6,
            promote=2,
            restore_backup=0,
            repoint=4,
            go_back=3,
            restart_proxy=5,
            block=4,
            unblock=8,
        ),
        faults_s=7.0,
        fault_every_s=0.25,
        tails=0.3,
        spare=0.8,
        isolated_promotion=0.0,
        low_fork=0.0,
        several_hosts=0.3,
        minority=0.4,
        standby=0.8,
        direct=0.4,
        primaries_lost=0.5,
    ),
    "refusals": replace(
        BALANCED,
        weights={
            "lose_successor": 80,
            "promote": 6,
            "restore_backup": 4,
            "repoint": 3,
            "go_back": 2,
            "crash_primary": 4,
            "lose_primary": 3,
            "crash_safekeeper": 8,
            "stay_away": 6,
            "wipe": 1,
            "block": 3,
            "unblock": 3,
            "restart_proxy": 2,
            "take_over": 2,
            "switch_segment": 2,
            "recycle": 2,
        },
        faults_s=8.0,
        fault_every_s=1.2,
        spare=0.1,
        several_hosts=1.0,
        proxies_stay=0.7,
    ),
    "swarm": SWARM,
    "agents": Profile(
        weights={
            "crash_server": 6,
            "hang_server": 3,
            "kill_agent": 6,
            "lose_machine": 4,
            "suspend_machine": 4,
            "kill_proxy": 3,
            "cut_machine": 6,
            "flap_machine": 2,
            "cut_standby": 3,
            "change_guards": 6,
            "spoil_server": 2,
            "spoil_promotions": 4,
            "give_order": 5,
            "crash_safekeeper": 3,
            "hang": 2,
            "stay_away": 2,
            "break_connection": 3,
        },
        faults_s=11.0,
        fault_every_s=0.9,
        record_every_s=0.3,
        clock_skew=0.0,
        agents=1.0,
    ),
}
