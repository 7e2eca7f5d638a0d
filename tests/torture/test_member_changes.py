"""Fifty changes of the members under load, while the leader, the command and members are killed at random.

Each change is a command that is killed and repeated until it ends by itself. At most one disk is lost at a time, and no
more processes are dead than the quorums of both halves allow, so every change must end; at the end every acknowledged
row is there, and the log of each member has the primary's bytes.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter

import pytest

from tests.integration.cluster.cluster_fixtures import Gated, wait_for
from tests.integration.cluster.cluster_fixtures import field_of as said
from tests.integration.conftest import NEWEST, NewGated

CHANGES = int(os.environ.get("WALPROXY_TORTURE_CHANGES", "50"))
SEED = int(os.environ.get("WALPROXY_TORTURE_SEED", "17"))
CHANGE_TIMEOUT_S = 60.0


class Operator:
    """Changes the members of a cluster; `ids` are the members after the last change."""

    def __init__(self, cluster: Gated, random_: random.Random) -> None:
        self.cluster = cluster
        self.random = random_
        self.ids = sorted(cluster.safekeepers)
        self.kills: Counter[str] = Counter()

    def next_id(self) -> int:
        return max([*self.cluster.safekeepers, *self.ids]) + 1

    def change(self) -> str:
        """Make one change at random; return which."""
        kinds = ["replace", "lost disk"]
        if len(self.ids) < 5:
            kinds.append("add")
        if len(self.ids) > 3:
            kinds.append("remove")
        kind = self.random.choice(kinds)
        cluster, victim = self.cluster, self.random.choice(self.ids)
        if kind == "add":
            new_id = self.next_id()
            self._start(new_id)
            self._run(sorted([*self.ids, new_id]), "add", cluster.place_of(new_id))
        elif kind == "remove":
            self._run([i for i in self.ids if i != victim], "remove", str(victim))
            self._retire(victim)
        elif kind == "replace":
            new_id = self.next_id()
            self._start(new_id)
            self._run(
                sorted([*(i for i in self.ids if i != victim), new_id]),
                *("replace", str(victim), "--by", cluster.place_of(new_id)),
            )
            self._retire(victim)
        else:
            cluster.safekeepers[victim].kill9()
            shutil.rmtree(cluster.safekeeper_directory(victim))
            cluster.safekeepers[victim].start()
            wait_for(lambda: cluster.safekeepers[victim].status() is not None, f"safekeeper {victim} answers")
            self._run(self.ids, "replace", cluster.place_of(victim), lost=victim)
        return kind

    def _start(self, safekeeper_id: int) -> None:
        process = self.cluster.add_safekeeper(safekeeper_id).start()
        wait_for(lambda: process.status() is not None, f"safekeeper {safekeeper_id} replies")

    def _retire(self, safekeeper_id: int) -> None:
        self.cluster.drop_safekeeper(safekeeper_id)
        shutil.rmtree(self.cluster.safekeeper_directory(safekeeper_id))

    def _run(self, expected: list[int], *arguments: str, lost: int = 0) -> None:
        """Repeat a command, and kill something meanwhile, until it has ended by itself."""
        deadline = time.monotonic() + CHANGE_TIMEOUT_S
        while True:
            command = subprocess.Popen(
                [sys.executable, "-m", "walproxy", "members", *arguments, "--json"],
                env={**os.environ, **self.cluster.operator_environment},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            self._kill_something(command, lost)
            out, err = command.communicate(timeout=CHANGE_TIMEOUT_S)
            if command.returncode == 0:
                break
            # It was killed; or one of its safekeepers was, or the leader with what it had been asked for.
            assert command.returncode in (-9, 1, 3) and "Traceback" not in err, err
            assert time.monotonic() < deadline, f"{arguments} does not end: {err}"
        self.ids = [each["id"] for each in json.loads(out)["members"]]
        assert self.ids == expected

    def _kill_something(self, command: subprocess.Popen[str], lost: int) -> None:
        """After a random time kill the command, the leader, or a member that the quorums can do without; or nothing."""
        victim = self.random.choice(["command", "leader", "member", "nobody"])
        try:
            command.wait(self.random.random() * 1.5)
            return  # It was quicker.
        except subprocess.TimeoutExpired:
            self.kills[victim] += 1
        if victim == "command":
            command.kill()
        elif victim == "leader":
            proxy = self.cluster.proxy
            proxy.kill9()
            # As an operator would: after its restart, at the latest, the list has the members of the last change.
            place = proxy.arguments.index("--safekeepers") + 1
            proxy.arguments[place] = ",".join(map(self.cluster.place_of, self.ids))
            proxy.start()
        elif victim == "member":
            # A disk of three is lost already, or none: then one may be away for a moment.
            process = self.cluster.safekeepers[lost or self.random.choice(self.ids)]
            process.kill9()
            process.start()


@NEWEST
@pytest.mark.timeout(3600)
def test_fifty_changes_with_kills_lose_nothing(new_gated: NewGated) -> None:
    cluster = new_gated().start_gated()
    operator = Operator(cluster, random.Random(SEED))
    made: Counter[str] = Counter()
    with cluster.load(8, rate=None) as load:
        for _ in range(CHANGES):
            made[operator.change()] += 1
            load.wait_for_commits(10)
        wait_for(
            lambda: all(said(process, "state") == "following" for process in cluster.safekeepers.values()),
            "every member follows",
        )
        assert sorted(cluster.safekeepers) == operator.ids
    print(f"{dict(made)}, kills: {dict(operator.kills)}, {len(load.acknowledged)} commits acknowledged")
    assert set(made) == {"replace", "lost disk", "add", "remove"}
