"""The protocol that this project began with, taken literally, small enough to be driven by hand.

The first documents describe a proxy and safekeepers with `epoch` and `VCL`. Run as written, that protocol loses
committed records; test_literal_seed_model.py plays the schedules that show it, and the scenario files of the same
letters show that the real state machines survive them. A position is the number of a record.
"""

from dataclasses import dataclass, field, replace

LeaderId = tuple[int, str]
QUORUM = 2


@dataclass
class SeedSafekeeper:
    """One safekeeper: its state is what it sends in a handshake, `log` maps positions to records."""

    name: str
    leader_id: LeaderId = (0, "")
    epoch: int = 1
    flush_lsn: int = 0
    restart_lsn: int = 0
    vcl: int = 0
    proposed_epoch: int = 0
    log: dict[int, str] = field(default_factory=dict)
    epoch_on_disk: int = 1

    def holding(self, *records: str, epoch: int = 1) -> "SeedSafekeeper":
        """Begin with these records."""
        self.log = dict(enumerate(records, 1))
        self.flush_lsn = len(records)
        self.epoch = self.epoch_on_disk = epoch
        return self

    def accept(self, leader_id: LeaderId, epoch: int, vcl: int) -> bool:
        """The proposal: "greater or equals"."""
        if leader_id < self.leader_id:
            return False
        self.leader_id, self.proposed_epoch, self.vcl = leader_id, epoch, vcl
        return True

    def append(self, leader_id: LeaderId, lsn: int, record: str) -> tuple[int, int] | None:
        """Write over whatever is there; return (epoch, end), None for a proxy that is not the accepted one."""
        if leader_id != self.leader_id:
            return None
        self.log[lsn] = record
        if self.epoch < self.proposed_epoch and lsn > max(self.flush_lsn, self.vcl):
            self.epoch = self.proposed_epoch
        self.flush_lsn = max(self.flush_lsn, lsn)
        return self.epoch, lsn

    def lose_power(self) -> None:
        """The control file is not fsynced with each request; the WAL is found by a scan."""
        self.epoch = self.epoch_on_disk


class SeedProxy:
    """One life of a proxy.

    Attributes:
        commit_lsn: what it reports to the server, and so to the clients.
        log: the records that it has recovered or been given.
    """

    def __init__(self, server: str, members: list[SeedSafekeeper]) -> None:
        self.server = server
        self.members = members
        self.seen: dict[str, SeedSafekeeper] = {}
        self.feedback = {member.name: 0 for member in members}
        self.log: dict[int, str] = {}
        self.commit_lsn = 0

    def greet(self, *safekeepers: SeedSafekeeper) -> None:
        """The handshake: their states are read before anything is promised."""
        self.seen = {safekeeper.name: replace(safekeeper, log=dict(safekeeper.log)) for safekeeper in safekeepers}

    def propose(self, *safekeepers: SeedSafekeeper) -> bool:
        """Ask for acceptance, and find the most advanced log among the states that were read."""
        term = max(state.leader_id[0] for state in self.seen.values()) + 1
        self.leader_id = (term, self.server)
        self.restart_lsn = max(state.restart_lsn for state in self.seen.values())
        epoch, self.vcl = max((state.epoch, state.flush_lsn) for state in self.seen.values())
        self.epoch = epoch + 1
        leader = next(s for s in self.seen.values() if (s.epoch, s.flush_lsn) == (epoch, self.vcl))
        self.log = {lsn: record for lsn, record in leader.log.items() if lsn <= self.vcl}
        for name, state in self.seen.items():
            self.feedback[name] = state.flush_lsn if state.epoch == epoch else self.restart_lsn
        accepted = [safekeeper.accept(self.leader_id, self.epoch, self.vcl) for safekeeper in safekeepers]
        return all(accepted)

    def recover(self, *safekeepers: SeedSafekeeper) -> None:
        """Bring each up to VCL; what ends below its flushLSN counts as delivered, of whatever epoch it is."""
        for safekeeper in safekeepers:
            for lsn in range(self.restart_lsn + 1, self.vcl + 1):
                if lsn >= self.seen[safekeeper.name].flush_lsn:
                    self.send(safekeeper, lsn)

    def write(self, record: str, *safekeepers: SeedSafekeeper) -> None:
        """A new record from the server goes to these."""
        lsn = max(self.log, default=0) + 1
        self.log[lsn] = record
        for safekeeper in safekeepers:
            self.send(safekeeper, lsn)

    def send(self, safekeeper: SeedSafekeeper, lsn: int) -> None:
        """Send one record and take the answer."""
        response = safekeeper.append(self.leader_id, lsn, self.log[lsn])
        if response is None:
            return
        epoch, end_lsn = response
        self.feedback[safekeeper.name] = end_lsn if epoch == self.epoch else self.vcl
        self.commit_lsn = max(self.commit_lsn, sorted(self.feedback.values())[len(self.members) - QUORUM])


def elected(server: str, members: list[SeedSafekeeper], *quorum: SeedSafekeeper) -> SeedProxy:
    """Return a proxy that this quorum has just accepted."""
    proxy = SeedProxy(server, members)
    proxy.greet(*quorum)
    assert proxy.propose(*quorum)
    return proxy
