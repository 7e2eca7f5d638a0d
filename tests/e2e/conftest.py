"""Fixtures of the container tests, and when those are left out.

The images are named as docker-compose.yml names them, in WALPROXY_IMAGE and POSTGRES_IMAGE, and are never pulled here:
`docker compose build` and `docker compose pull postgres` get them, or `eval "$(.ci/images)"` makes both on a Debian
without a registry. Where there is no container engine, or no such image, these tests are left out
with a line that says so, except in CI (CI=true or WALPROXY_REQUIRE_ENGINE=1), where that is a failure.
"""

import os
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import NoReturn

import pytest

from tests.e2e.cluster import REPOSITORY, Cluster, loopback_network, wait_until


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
    """The images of both programs, by the variable that docker-compose.yml reads their names from."""
    if not succeeds("docker", "info"):
        leave_out("no container engine answers")
    names = {
        "WALPROXY_IMAGE": os.environ.get("WALPROXY_IMAGE", "walproxy"),
        "POSTGRES_IMAGE": os.environ.get("POSTGRES_IMAGE", "postgres:18"),
    }
    for variable, name in names.items():
        if not succeeds("docker", "image", "inspect", name):
            leave_out(f'no image {name} ({variable}): docker compose build, or eval "$(.ci/images)" on Debian')
    return names


@pytest.fixture
def cluster(images: dict[str, str]) -> Iterator[Cluster]:
    """A cluster whose containers run and whose PostgreSQL answers; the proxy may still be on its way."""
    with ExitStack() as stack:
        cluster = Cluster(images, stack.enter_context(loopback_network()))
        for container in cluster.containers().values():
            stack.enter_context(container)
        stack.callback(cluster.print_logs)
        wait_until(cluster.answers, "PostgreSQL answers")
        yield cluster


@pytest.fixture
def compose(images: dict[str, str]) -> Iterator[Callable[..., str]]:
    """Runs a compose command on docker-compose.yml as a project of its own, and returns what it printed.

    Ports are picked by the engine. The project is taken down afterwards, its volumes with it.
    """
    program = next((p for p in (["docker", "compose"], ["docker-compose"]) if succeeds(*p, "version")), None)
    if program is None:
        leave_out("neither `docker compose` nor `docker-compose` is installed")
    project = ["--project-name", f"walproxy-{uuid.uuid4().hex[:8]}"]
    ports = ["POSTGRES_PORT", "WALPROXY_HTTP_PORT"] + [f"SAFEKEEPER{number}_HTTP_PORT" for number in (1, 2, 3)]

    def run(*arguments: str, deadline_s: float = 120) -> str:
        done = subprocess.run(
            [*program, *project, *arguments],
            cwd=REPOSITORY,
            env={**os.environ, **images, **dict.fromkeys(ports, "0")},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=deadline_s,
            check=False,
        )
        assert done.returncode == 0, f"{arguments}: {done.stderr}"
        return done.stdout

    yield run
    print(run("logs", "--no-color"))
    run("kill")
    run("down", "--volumes")
