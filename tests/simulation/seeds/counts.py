"""What runs reached, counted: a simulator that never gets to a truncation has shown nothing about truncations.

Every name that may be counted is in `REACHED`, so that one that stays 0 is seen. A run counts in `World.counts`; the
counts of many runs are added, and printed as one table.
"""

from collections import Counter
from collections.abc import Iterable

FAULT_KINDS = (
    "crash_safekeeper",
    "crash_after_effect",
    "cut_power",
    "stay_away",
    "hang",
    "wipe",
    "change_members",
    "change_sizes",
    "exchange_folder",
    "restore_folder",
    "replace_lost",
    "rebootstrap",
    "slow_disk",
    "fill_disk",
    "fail_disk",
    "break_connection",
    "let_go",
    "block",
    "unblock",
    "restart_proxy",
    "take_over",
    "suspend_proxy",
    "leap_clock",
    "strand",
    "lose_primary",
    "repoint",
    "crash_primary",
    "switch_segment",
    "recycle",
    "promote",
    "lose_successor",
    "restore_backup",
    "restore_recycled",
    "go_back",
    "lose_data",
    "fail_over",
    "freeze_primary",
    "stop_command",
    "shorten_list",
    "start_other_version",
    "copy_folder",
    "crash_server",
    "hang_server",
    "kill_agent",
    "lose_machine",
    "suspend_machine",
    "kill_proxy",
    "cut_machine",
    "flap_machine",
    "cut_standby",
    "change_guards",
    "spoil_server",
    "spoil_promotions",
    "give_order",
)
REACHED = (
    "terms won",
    "tail terms won",
    "seals begun",
    "timelines sealed",
    "numbers reserved",
    "seals taken back",
    "seals cancelled",
    "seals without an object",
    "standbys promoted by a failover",
    "promotions to another number",
    "failovers begun",
    "failovers reported",
    "failovers failed",
    "failovers completed",
    "failovers completed amid faults",
    "failovers cancelled",
    "commands killed",
    "failovers finished by the repair",
    "promotions that crashed",
    "promotions of one that had crashed in one",
    "fences passed",
    "primaries lost for good",
    "commits resumed by agents",
    "pre-votes granted",
    "pre-votes refused",
    "votes granted",
    "votes refused",
    "appends answered",
    "messages refused",
    "heartbeats",
    "commits released",
    "timeline switches",
    "truncations",
    "logs begun again",
    "histories cut",
    "reads from peers",
    "pulls begun",
    "pulls without a source left",
    "pulls refused by a source",
    "reads served to members",
    "WAL pulled",
    "WAL pulled without use",
    "readers sent WAL",
    "old WAL removed",
    "members that skipped WAL",
    "archivers named",
    "window evictions",
    "leaders stranded",
    "committed WAL given up",
    "successors lost",
    "primaries refused",
    "refusals without a term",
    "primaries' tails compared",
    "proxies' runs",
    "safekeepers killed",
    "power cuts",
    "unsynced WAL lost",
    "writes torn by sector",
    "writes torn by page",
    "messages that came late",
    "disk errors",
    "full disks met",
    "members wiped",
    "members forgotten",
    "quorums forgotten",
    "folders restored",
    "older folders noticed",
    "folders exchanged",
    "lost members replaced",
    "rebootstraps",
    "rebootstraps undone",
    "memberships decided",
    "changes of members refused",
    "minorities not missed",
    *(f"fault {kind}" for kind in FAULT_KINDS),
    "shortages of descriptors",
    "peers that did not read",
    "connections that paused writing",
    "members dialled that are not listed",
    "proxies of other versions refused",
    "copied folders noticed",
    "runs of real safekeepers",
    "events compared with the reference",
    "proposers' events compared",
    "effects beyond the reference",
    "logs set aside in a lone folder",
    "logs restored in a lone folder",
    "starts on damaged folders",
    "runs of real proxies",
    "proxies that drained",
    "safekeepers that drained",
    "primaries that did not read",
    "primaries' connections half-open",
)
# So many runs, under all profiles alternately, reach everything.
RUNS_THAT_REACH_ALL = 1000
_COLUMNS = 3


class Counts(Counter[str]):
    """How often each thing of `REACHED` happened."""

    def count(self, name: str, times: int = 1) -> None:
        """Count something.

        Raises:
            KeyError: `REACHED` does not have it, so that it would not be noticed if it were never reached.
        """
        if name not in _KNOWN:
            raise KeyError(f"{name} is not among what is counted")
        self[name] += times


_KNOWN = frozenset(REACHED)


def added(counts: Iterable[Counts]) -> Counts:
    """Return the sums."""
    total = Counts()
    for each in counts:
        total.update(each)
    return total


def table(total: Counts) -> str:
    """Return the counts as lines, several columns side by side."""
    rows = -(-len(REACHED) // _COLUMNS)
    width = max(map(len, REACHED))
    cells = [f"{name:<{width}} {total[name]:>9}" for name in REACHED]
    return "\n".join("   ".join(cells[row::rows]).rstrip() for row in range(rows))


def never_reached(total: Counts) -> list[str]:
    """Return what did not happen at all."""
    return [name for name in REACHED if not total[name]]
