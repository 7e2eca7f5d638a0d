"""A cluster in containers: PostgreSQL, three safekeepers and the proxy, each in its own, on a network of their own.

The same five containers as in docker-compose.yml, driven one by one, so that a test can kill some of them.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

# Testcontainers reads both at import. Its reaper would be one more image to pull, and every fixture here cleans up.
# Ports are published on loopback, so that is where they are reached, whatever testcontainers would guess.
os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")
os.environ.setdefault("TESTCONTAINERS_CONNECTION_MODE", "docker_host")
os.environ.setdefault("TESTCONTAINERS_HOST_OVERRIDE", "127.0.0.1")

from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network

REPOSITORY = Path(__file__).parents[2]
PASSWORD = "walproxy"
SECRET = "what the containers prove to each other"
STARTUP_S = 60


def wait_until(condition: Callable[[], object], what: str, deadline_s: float = STARTUP_S) -> None:
    """Returns when condition() is true; fails the test, naming `what`, when it is not within deadline_s."""
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            pytest.fail(f"{what}: not within {deadline_s} s")
        time.sleep(0.1)


def loopback_network() -> Network:
    """A network for one cluster; what its containers publish is for this machine only."""
    return Network(docker_network_kw={"options": {"com.docker.network.bridge.host_binding_ipv4": "127.0.0.1"}})


class Cluster:
    """The containers of one cluster, and what tests do to them."""

    def __init__(self, images: dict[str, str], network: Network) -> None:
        self._images = images
        self._network = network
        self.postgres = (
            self._container(images["POSTGRES_IMAGE"], "postgres")
            .with_envs(POSTGRES_PASSWORD=PASSWORD, WALPROXY_PASSWORD=PASSWORD)
            .with_volume_mapping(
                REPOSITORY / "deploy" / "init-primary.sh", "/docker-entrypoint-initdb.d/init-primary.sh"
            )
            .with_exposed_ports(5432)
        )
        self.safekeepers = {number: self._safekeeper(number) for number in (1, 2, 3)}
        members = ",".join(f"{number}=safekeeper{number}:5454" for number in self.safekeepers)
        self.proxy = (
            self._container(images["WALPROXY_IMAGE"], "walproxy")
            .with_envs(PGPASSWORD=PASSWORD, WALPROXY_SECRET=SECRET)
            .with_exposed_ports(7667)
            .with_command(
                f'walproxy run --primary "host=postgres user=walproxy dbname=postgres" --safekeepers {members}'
            )
        )

    def _container(self, image: str, alias: str) -> DockerContainer:
        return DockerContainer(image).with_network(self._network).with_network_aliases(alias)

    def _safekeeper(self, number: int) -> DockerContainer:
        return (
            self._container(self._images["WALPROXY_IMAGE"], f"safekeeper{number}")
            .with_env("SAFEKEEPER_SECRET", SECRET)
            .with_command(
                f"safekeeper run --id {number} --data-dir /var/lib/safekeeper --listen 0.0.0.0:5454 --http 0.0.0.0:7667"
            )
        )

    def containers(self) -> dict[str, DockerContainer]:
        safekeepers = {f"safekeeper{number}": container for number, container in self.safekeepers.items()}
        return {"postgres": self.postgres, **safekeepers, "walproxy": self.proxy}

    def kill(self, number: int) -> None:
        """Ends a safekeeper's container with SIGKILL, and returns when it is gone."""
        container = self.safekeepers[number].get_wrapped_container()
        container.kill()
        container.wait(timeout=30)

    def start(self, number: int) -> None:
        """Starts a killed safekeeper's container again, on the data that it left."""
        self.safekeepers[number].get_wrapped_container().start()

    def connect(self) -> psycopg.Connection[tuple[object, ...]]:
        """A superuser's session in autocommit, through the port that the host sees."""
        return psycopg.connect(
            host=self.postgres.get_container_host_ip(),
            port=self.postgres.get_exposed_port(5432),
            user="postgres",
            password=PASSWORD,
            dbname="postgres",
            connect_timeout=5,
            autocommit=True,
        )

    def status_url(self) -> str:
        """Where the proxy tells its state to the host."""
        return f"http://{self.proxy.get_container_host_ip()}:{self.proxy.get_exposed_port(7667)}/status"

    def answers(self) -> bool:
        """Whether PostgreSQL takes sessions. On its first start it does so over TCP only once it is set up."""
        try:
            self.connect().close()
        except psycopg.OperationalError:
            return False
        return True

    def print_logs(self) -> None:
        """Prints what the containers logged; pytest shows it for a test that failed."""
        for name, container in self.containers().items():
            if container.status != "not_started":
                print(f"--- {name}\n{b''.join(container.get_logs()).decode(errors='replace')}")
