"""Fixtures of the container tests, and when those are left out.

The images are named as docker-compose.yml names them, in WALPROXY_IMAGE, POSTGRES_IMAGE and STORE_IMAGE, and are never
pulled here: `docker compose build` and `docker compose pull` get them, or `eval "$(.ci/images)"` makes them on a Debian
without a registry. Where there is no container engine, or no such image, these tests are left out
with a line of why, except in CI (CI=true or WALPROXY_REQUIRE_ENGINE=1), where that is a failure.
"""

import os
import subprocess
from collections.abc import Generator, Iterator
from typing import NoReturn

import pytest

from tests.e2e.deployment import Deployment

HAS_FAILED = pytest.StashKey[bool]()
IMAGES = {
    "WALPROXY_IMAGE": "walproxy",
    "POSTGRES_IMAGE": "postgres:18",
    "STORE_IMAGE": "chrislusf/seaweedfs:4.47",
}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call":
        item.stash[HAS_FAILED] = report.failed
    return report


def leave_out(reason: str) -> NoReturn:
    if os.environ.get("CI") == "true" or os.environ.get("WALPROXY_REQUIRE_ENGINE") == "1":
        pytest.fail(f"{reason}, and in CI the container tests must run")
    pytest.skip(reason)


def succeeds(*command: str) -> bool:
    """Whether the program is there and exits with 0. (Docker's Python client leaks a socket where no engine is.)"""
    try:
        return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0
    except FileNotFoundError:
        return False


@pytest.fixture(scope="session")
def images() -> dict[str, str]:
    """The images, by the variable that docker-compose.yml reads their names from."""
    if not succeeds("docker", "info"):
        leave_out("no container engine answers")
    names = {variable: os.environ.get(variable, name) for variable, name in IMAGES.items()}
    for variable, name in names.items():
        if not succeeds("docker", "image", "inspect", name):
            leave_out(f'no image {name} ({variable}): docker compose build and pull, or eval "$(.ci/images)" on Debian')
    return names


@pytest.fixture(scope="session")
def compose_program() -> list[str]:
    """`docker compose`, or `docker-compose` where there is no such plugin."""
    program = next((each for each in (["docker", "compose"], ["docker-compose"]) if succeeds(*each, "version")), None)
    if program is None:
        leave_out("neither `docker compose` nor `docker-compose` is installed")
    return program


@pytest.fixture(scope="package")
def shared_deployment(images: dict[str, str], compose_program: list[str]) -> Iterator[Deployment]:
    """The deployment of all tests of this folder. In a run of all tests it is gone before those of others begin."""
    deployment = Deployment(compose_program, images)
    try:
        deployment.up()
        yield deployment
    finally:
        deployment.down()


@pytest.fixture
def deployment(shared_deployment: Deployment, request: pytest.FixtureRequest) -> Iterator[Deployment]:
    """The whole of docker-compose.yml, up and well; what a test breaks is mended before the next one."""
    shared_deployment.begin_test()
    yield shared_deployment
    if request.node.stash.get(HAS_FAILED, True):
        shared_deployment.print_logs()


@pytest.fixture(scope="session")
def inside_namespaces() -> None:
    """For tests that work inside the containers' own network namespaces: only root may."""
    if os.geteuid() != 0 or not succeeds("nsenter", "--version") or not succeeds("iptables", "--version"):
        leave_out("cutting a network one way takes root, nsenter and iptables")
