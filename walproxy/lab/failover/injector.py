"""Carries out the fault of a round on the primary's host, and ends it."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from walproxy.lab.cluster.local_cluster import LocalProcess
from walproxy.lab.failover.host import Host
from walproxy.lab.failover.network import Direction
from walproxy.lab.failover.plan import (
    CRASH_PROMOTION,
    CUT_OFF,
    CUT_OFF_SAFEKEEPERS,
    DEAF,
    FAIL_GUARDS,
    FLAP,
    KILL_AGENT,
    KILL_BOTH,
    KILL_HOST,
    KILL_POSTGRES,
    KILL_SAFEKEEPER,
    KILL_TWO_HOSTS,
    LOSE_QUORUM,
    MUTE,
    NETWORK,
    POWER_LOSS,
    STOP_HOST,
    STOP_POSTGRES,
    PlannedRound,
)
from walproxy.lab.failover.site import Site
from walproxy.lab.failover.triggers import FENCE_FAILS, PROMOTION_CRASHES

_DIRECTIONS: dict[str, Direction] = {CUT_OFF: "both", DEAF: "from", MUTE: "to"}
# For which parts of --dead-after the network of a host is cut off, and then open. That of the primary is cut off for
# almost as long as the others wait; a standby sees the loss of the leader in parts only.
_PRIMARY_FLAPS, _STANDBY_FLAPS = (0.92, 0.16), (0.52, 0.36)


class _Flapping:
    """Cuts hosts off from the safekeepers and heals that again, alternately, until `end`."""

    def __init__(self, cut: Callable[[], None], heal: Callable[[], None], cut_s: float, open_s: float) -> None:
        self._ended = threading.Event()

        def flap() -> None:
            while not self._ended.is_set():
                cut()
                self._ended.wait(cut_s)
                heal()
                self._ended.wait(open_s)

        self._thread = threading.Thread(target=flap, name="flapping", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Return when all is healed."""
        self._ended.set()
        self._thread.join()


class Injector:
    """The faults of a site."""

    def __init__(self, site: Site, dead_after_s: float) -> None:
        self._site = site
        self._network = site.network
        self._dead_after_s = dead_after_s
        self._flapping: _Flapping | None = None

    def cut_safekeepers(self, host: Host) -> None:
        """Let nothing pass between a host and the safekeepers; without partitions its proxy stands still."""
        if self._network.has_partitions:
            self._network.cut(host.name, self._site.safekeeper_addresses.values())
        else:
            host.stop("proxy")

    def strike(self, planned: PlannedRound, host: Host) -> float:
        """Let the fault begin, after the safekeepers were cut off for `cut_ms`; return when, by `time.monotonic`."""
        if planned.cut_ms:
            self.cut_safekeepers(host)
            time.sleep(planned.cut_ms / 1000)
        struck_at = time.monotonic()
        self._begin(planned, host)
        stays = planned.kind in (KILL_HOST, STOP_HOST, LOSE_QUORUM) and planned.is_variant
        if planned.cut_ms and not stays and planned.kind not in NETWORK:
            self._network.heal(host.name)
        return struck_at

    def strike_again(self, planned: PlannedRound) -> None:
        """Let the second part of the fault begin."""
        for safekeeper in self._two_safekeepers(planned):
            safekeeper.pause()

    def undo(self, planned: PlannedRound, host: Host) -> None:
        """End the fault: what was killed starts, what stands still goes on, the network is whole."""
        if self._flapping is not None:
            self._flapping.end()
            self._flapping = None
        self._site.triggers.clear()
        self._network.heal(host.name)
        if planned.kind in (STOP_HOST, STOP_POSTGRES):
            host.resume()
        if planned.kind == LOSE_QUORUM:
            for safekeeper in self._two_safekeepers(planned):
                safekeeper.resume()
        # Harmless where they run.
        for safekeeper in self._site.safekeepers.values():
            if safekeeper.pid is None:
                safekeeper.start()
        for each in self._site.hosts.values():
            each.start()

    def _begin(self, planned: PlannedRound, host: Host) -> None:
        kind = planned.kind
        if kind == KILL_POSTGRES:
            host.kill("postgres")
            host.resume("proxy")
        elif kind == KILL_BOTH:
            host.kill("proxy", "postgres")
        elif kind in (KILL_HOST, LOSE_QUORUM):
            host.kill()
        elif kind == FAIL_GUARDS:
            self._site.triggers.set(FENCE_FAILS)
            host.kill(*(("manager",) if planned.is_variant else ()))
        elif kind == CRASH_PROMOTION:
            self._site.triggers.set(PROMOTION_CRASHES)
            host.kill()
        elif kind == FLAP:
            self._flap(planned.is_variant, host)
        elif kind == KILL_TWO_HOSTS:
            others = [each for each in self._site.hosts.values() if each is not host]
            _at_once([host.kill, others[planned.other % len(others)].kill])
        elif kind == KILL_SAFEKEEPER:
            safekeepers = list(self._site.safekeepers.values())
            _at_once([host.kill, safekeepers[planned.other % len(safekeepers)].kill9])
        elif kind == KILL_AGENT:
            host.kill("manager")
        elif kind == STOP_HOST:
            host.stop()
        elif kind == STOP_POSTGRES:
            host.stop("postgres")
            if not self._network.has_partitions:
                host.resume("proxy")
        elif kind == POWER_LOSS:
            self._lose_power(planned.is_variant)
        else:
            self._partition(planned, host)

    def _flap(self, of_primary: bool, host: Host) -> None:
        if not of_primary:
            host.kill()
        flapping = [each for each in self._site.hosts.values() if (each is host) == of_primary]
        cut, opened = _PRIMARY_FLAPS if of_primary else _STANDBY_FLAPS

        def cut_off() -> None:
            for each in flapping:
                self.cut_safekeepers(each)

        def heal() -> None:
            for each in flapping:
                self._network.heal(each.name)

        self._flapping = _Flapping(cut_off, heal, cut * self._dead_after_s, opened * self._dead_after_s)

    def _partition(self, planned: PlannedRound, host: Host) -> None:
        network, kind = self._network, planned.kind
        safekeepers = list(self._site.safekeeper_addresses.values())
        others = [each.place.address for each in self._site.hosts.values() if each is not host]
        everybody = [*safekeepers, *others, network.clients_address]
        if kind == CUT_OFF_SAFEKEEPERS:
            network.cut(host.name, safekeepers)
        elif kind == CUT_OFF and planned.is_variant:
            network.unplug(host.name)
        else:
            # An agent that is deaf to the safekeepers alone is another case than one that is deaf to all.
            peers = safekeepers if planned.is_variant and kind in (DEAF, MUTE) else everybody
            network.cut(host.name, peers, _DIRECTIONS[kind])

    def _lose_power(self, with_safekeepers: bool) -> None:
        """Kill all hosts, and the safekeepers, at the same time."""
        site = self._site
        victims: list[Callable[[], None]] = [host.kill for host in site.hosts.values()]
        if with_safekeepers:
            victims += [safekeeper.kill9 for safekeeper in site.safekeepers.values()]
        _at_once(victims)

    def _two_safekeepers(self, planned: PlannedRound) -> list[LocalProcess]:
        """Return all but one."""
        safekeepers = list(self._site.safekeepers.values())
        del safekeepers[planned.other % len(safekeepers)]
        return safekeepers


def _at_once(actions: Sequence[Callable[[], None]]) -> None:
    """Do these at the same time; return when all are done."""
    with ThreadPoolExecutor(len(actions)) as pool:
        for done in [pool.submit(action) for action in actions]:
            done.result()
