"""From the version before this one to this one: service by service, under load, as in docs/guide/operations.md.

The version before is the newest commit whose sources are others than those of the work tree. Its image is this one's
with these sources in the place of its own: what the two have in common, interpreter and libraries, comes with it.
In a clone without history the version before is this one again, and the test prints so.
"""

import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from safekeeper.consensus.control_state import FORMAT_VERSION
from safekeeper.consensus.messages import PROTOCOL_VERSION
from tests.e2e.commits import assert_books_hold, commit, transfers
from tests.e2e.conftest import leave_out
from tests.e2e.deployment import PASSWORD, PROXIES, REPOSITORY, SAFEKEEPERS, Deployment, docker, wait_until
from walproxy.lab.demo import bank
from walproxy.lab.unpacking import unpack

SOURCES = ("safekeeper", "walproxy")


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    # The work tree may belong to another user than the one that tests, who is root mostly.
    command = ["git", "-c", "safe.directory=*", "-C", str(REPOSITORY), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def commit_before() -> str | None:
    """The commit to upgrade from, None if there is none here."""
    for each in git("rev-list", "--max-count=100", "HEAD", "--", *SOURCES).stdout.split():
        if git("diff", "--quiet", each, "--", *SOURCES).returncode == 1:
            return each
    return None


@pytest.fixture
def image_before(images: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[str]:
    """The image of the version before."""
    if git("rev-parse", "HEAD").returncode != 0:
        leave_out("this is no clone: without commits there is no version before this one")
    before = commit_before()
    if before is None:
        with capsys.disabled():
            print("\nthis clone has no history: the version before this one is taken to be this one")
    archive = tmp_path / "sources.tar"
    made = git("archive", "--output", str(archive), before or "HEAD", *SOURCES)
    assert made.returncode == 0, made.stderr
    with tarfile.open(archive) as sources:
        unpack(sources, tmp_path / "sources")
    (tmp_path / "Dockerfile").write_text(f"""
        FROM {images["WALPROXY_IMAGE"]}
        USER root
        COPY sources /tmp/sources
        RUN cd /opt/walproxy/lib/python3*/site-packages && rm -r {" ".join(SOURCES)} && mv /tmp/sources/* .
        USER walproxy
    """)
    archive.unlink()
    image = f"walproxy-before:{(before or 'same')[:12]}"
    docker("build", "--quiet", "--tag", image, str(tmp_path))
    yield image
    docker("image", "rm", image)


def formats_in(image: str) -> tuple[int, int]:
    """The protocol version of an image's programs, and the format version of their control file."""
    program = (
        "from safekeeper.consensus.messages import PROTOCOL_VERSION; "
        "from safekeeper.consensus.control_state import FORMAT_VERSION; print(PROTOCOL_VERSION, FORMAT_VERSION)"
    )
    protocol, control = docker("run", "--rm", image, "python3", "-c", program).split()
    return int(protocol), int(control)


@pytest.mark.timeout(240)
def test_every_service_is_upgraded_in_turn_under_load_and_no_commit_is_lost(
    images: dict[str, str], image_before: str, compose_program: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    deployment = Deployment(compose_program, {**images, "WALPROXY_IMAGE": image_before})
    try:
        deployment.up("postgres")
        with deployment.connect() as session:
            commit(session, bank.CREATE)
        with transfers(deployment) as load:
            wait_until(lambda: load.history.acknowledged, "the load commits")
            if not _upgrade(deployment, images["WALPROXY_IMAGE"], formats_in(image_before)):
                return
            count = len(load.history.acknowledged)
            wait_until(lambda: len(load.history.acknowledged) > count, "transfers go on")
            assert load.stop(60) == 0

        new = docker("image", "inspect", "--format", "{{.Id}}", images["WALPROXY_IMAGE"])
        for service in (*SAFEKEEPERS, *PROXIES):
            assert docker("inspect", "--format", "{{.Image}}", deployment.container(service)) == new, service
        with deployment.connect() as session:
            assert_books_hold(session, load.history)
    finally:
        deployment.print_logs()
        deployment.down()


def _upgrade(deployment: Deployment, image: str, formats_before: tuple[int, int]) -> bool:
    """Upgrade to an image; return whether the services read the folders of the version before."""
    deployment.images["WALPROXY_IMAGE"] = image
    upgrade = ("up", "--detach", "--no-build", "--no-deps")
    leader = deployment.leader()
    assert leader is not None
    spare = next(proxy for proxy in PROXIES if proxy != leader)
    protocol, control = formats_before
    if protocol == PROTOCOL_VERSION and control == FORMAT_VERSION:
        for service in SAFEKEEPERS:
            deployment.compose(*upgrade, service)
            deployment.wait_until_whole()
        # They also elect one.
        deployment.compose("stop", leader)
        wait_until(lambda: deployment.leader() == spare, "the spare of the version before leads")
        deployment.compose("start", leader)
        deployment.wait_until_whole()
        for service in (leader, spare):
            deployment.compose(*upgrade, service)
            deployment.wait_until_whole()
        return True
    # Proxies and safekeepers of different protocol versions refuse each other, so all at once.
    deployment.compose("stop", *PROXIES)
    deployment.compose(*upgrade, *SAFEKEEPERS, *PROXIES)
    if control == FORMAT_VERSION:
        deployment.wait_until_whole()
        return True
    refusal = f"has format version {control}, this release reads version {FORMAT_VERSION}: use the release that wrote"
    wait_until(lambda: all(refusal in deployment.log(each) for each in SAFEKEEPERS), "the older folders are refused")
    return False
