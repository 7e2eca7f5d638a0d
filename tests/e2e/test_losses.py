"""What containers lose: their volume, and the time. Commits go on, and what is lost comes back by the book."""

import subprocess
import time

from tests.e2e.commits import SentStatement, commit, waits_for_standby
from tests.e2e.conftest import leave_out, succeeds
from tests.e2e.deployment import PROXIES, Deployment, docker, wait_until

FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"
CLOCK = "/tmp/clock"
# Of the clocks of two safekeepers and two proxies.
LEAPS = (("+900d", "-900d", "-3h", "-3h"), ("-900d", "+900d", "+900d", "+900d"), ("+0", "+0", "+0", "+0"))


def test_a_safekeeper_that_loses_its_volume_is_a_learner_until_one_command_makes_it_a_member(
    deployment: Deployment,
) -> None:
    with deployment.connect() as writer, deployment.connect() as observer:
        commit(writer, "CREATE TABLE kept (entry int)")
        deployment.compose("rm", "--stop", "--force", "safekeeper3")
        docker("volume", "rm", f"{deployment.project}_safekeeper3")
        commit(writer, "INSERT INTO kept VALUES (1)")
        deployment.compose("up", "--detach", "--no-build", "--no-deps", "safekeeper3")
        wait_until(lambda: deployment.safekeeper_state("safekeeper3") == "learner", "it is fed and does not count")

        deployment.kill("safekeeper1")
        pending = SentStatement(writer, "INSERT INTO kept VALUES (2)")
        wait_until(lambda: waits_for_standby(observer, writer), "the commit waits: a learner does not count")
        deployment.start("safekeeper1")
        pending.finish()

        term = deployment.term()
        _take_in(deployment)
        deployment.wait_until_whole()
        assert deployment.term() == term, "no proxy was stopped"
        deployment.kill("safekeeper1")
        commit(writer, "INSERT INTO kept VALUES (3)")
        deployment.start("safekeeper1")
        assert observer.execute("SELECT entry FROM kept ORDER BY entry").fetchall() == [(1,), (2,), (3,)]


def test_clocks_that_leap_either_way_are_seen_in_the_log_and_nowhere_else(deployment: Deployment) -> None:
    if not _image_has(deployment, PROXIES[0], FAKETIME):
        leave_out(f"the image has no {FAKETIME}, which moves the clock of a process")
    preloaded = {
        "LD_PRELOAD": FAKETIME,
        "FAKETIME_TIMESTAMP_FILE": CLOCK,
        "FAKETIME_NO_CACHE": "1",
        # A monotonic clock that goes back would be another fault, which Linux does not have.
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",
    }
    # Either proxy may lead once both containers are new.
    moved = ("safekeeper1", "safekeeper2", *PROXIES)

    with deployment.changed({service: {"environment": preloaded} for service in moved}):
        deployment.wait_until_whole()
        term = deployment.term()
        with deployment.connect() as session:
            commit(session, "CREATE TABLE hours (entry int)")
            for entry, offsets in enumerate(LEAPS):
                for service, offset in zip(moved, offsets, strict=True):
                    deployment.put(service, CLOCK, offset)
                commit(session, f"INSERT INTO hours VALUES ({entry})")
                deployment.wait_until_whole()
            assert deployment.term() == term, "no proxy was deposed"
            # The clock did move: what is logged now bears another year.
            deployment.put("safekeeper1", CLOCK, "+900d")
            docker("kill", "--signal", "HUP", deployment.container("safekeeper1"))
            year = time.strftime("%Y", time.gmtime(time.time() + 900 * 86400))
            wait_until(lambda: f"{year}-" in _log(deployment, "safekeeper1"), "its log has the moved time", 20)
            commit(session, "DROP TABLE hours")
    deployment.wait_until_whole()


def _image_has(deployment: Deployment, service: str, file: str) -> bool:
    """Whether the image of a service has a file. Its container may be about to start again."""
    image = docker("inspect", "--format", "{{.Image}}", deployment.container(service))
    return succeeds("docker", "run", "--rm", "--entrypoint", "test", image, "-e", file)


def _log(deployment: Deployment, service: str) -> str:
    """The last lines of a container's log, of which all goes to standard error."""
    tail = ["docker", "logs", "--tail", "5", deployment.container(service)]
    return subprocess.run(tail, capture_output=True, text=True, timeout=30, check=True).stderr


def _take_in(deployment: Deployment) -> None:
    """The command of docs/guide/operations.md for a volume that was lost."""
    command = ("walproxy", "members", "replace", "3")
    deployment.compose("exec", "-T", PROXIES[0], *command)
