"""docker-compose.yml as a user runs it, under a project name of its own, and what tests do to its containers.

What a user would do goes through compose; what happens to a user, a paused container or a cut network, goes through the
engine and the containers' own network namespaces. Ports are chosen before the first start, so that a container that is
started again is where it was.
"""

import json
import os
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import psycopg

from tests.waiting import NotThereYet, entry, wait_for
from walproxy.postgres.local_server import free_port

REPOSITORY = Path(__file__).parents[2]
PASSWORD = (REPOSITORY / "deploy" / "trial-secrets" / "postgres_password").read_text().strip()
SAFEKEEPERS = ("safekeeper1", "safekeeper2", "safekeeper3")
PROXIES = ("walproxy", "walproxy2")
SERVICES = ("store", *SAFEKEEPERS, *PROXIES, "postgres", "standby", "load")

_PORTS = {
    "postgres": "POSTGRES_PORT",
    "standby": "STANDBY_PORT",
    "walproxy": "WALPROXY_HTTP_PORT",
    "walproxy2": "WALPROXY2_HTTP_PORT",
    **{f"safekeeper{number}": f"SAFEKEEPER{number}_HTTP_PORT" for number in (1, 2, 3)},
}
_PROPOSERS_PORT = "5454"
_FILES = ("docker-compose.yml", "tests/e2e/few-checks.yml")

Session = psycopg.Connection[tuple[Any, ...]]


def wait_until(condition: Callable[[], object], what: str | Callable[[], str], deadline_s: float = 60) -> None:
    """`wait_for` with the pace and the patience that containers need."""
    wait_for(condition, what, deadline_s, poll_s=0.1)


def docker(*arguments: str) -> str:
    """Runs the engine's client, and returns what it printed."""
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, f"docker {' '.join(arguments)}: {done.stderr}"
    return done.stdout.strip()


def _leads(status: dict[str, Any]) -> bool:
    return status["term_start_lsn"] is not None and not status["spare"]


class Deployment:
    """One project of docker-compose.yml.

    Args:
        program: `docker compose` or `docker-compose`.
        images: names of images by the variable that docker-compose.yml reads them from.
    """

    def __init__(self, program: Sequence[str], images: dict[str, str]) -> None:
        self.project = f"walproxy-{uuid.uuid4().hex[:8]}"
        self.ports = {service: free_port() for service in _PORTS}
        self.images = dict(images)
        self._program = program
        self._since = "0"

    def compose(self, *arguments: str, files: Sequence[str] = (), deadline_s: float = 120) -> str:
        """Runs a compose command, with further compose `files` behind those of all tests; returns what it printed."""
        options = ["--project-name", self.project]
        for file in (*_FILES, *files):
            options += ["--file", file]
        ports = {_PORTS[service]: str(port) for service, port in self.ports.items()}
        done = subprocess.run(
            [*self._program, *options, *arguments],
            cwd=REPOSITORY,
            env={**os.environ, **self.images, **ports},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=deadline_s,
            check=False,
        )
        assert done.returncode == 0, f"{arguments}: {done.stderr}{done.stdout}"
        return done.stdout

    def up(self, *services: str) -> None:
        """Brings services up, all of them without a name, and returns when commits go through all safekeepers."""
        self.compose("up", "--detach", "--no-build", *services)
        self.wait_until_whole()

    def down(self) -> None:
        """Takes the project down, its volumes with it.

        The network may stay: the engine (20.10, moby issue 43286) sometimes counts an endpoint of a container that is
        gone, and corrects that only at its next start. With no container left, that is printed and no failure.
        """
        self.compose("kill")
        try:
            self.compose("--profile", "pipeline", "--profile", "observe", "down", "--volumes", "--remove-orphans")
        except AssertionError as error:
            network, of_project = f"{self.project}_default", f"label=com.docker.compose.project={self.project}"
            attached = json.loads(docker("network", "inspect", network))[0]["Containers"]
            if "active endpoints" not in str(error) or attached or docker("ps", "-aq", "--filter", of_project):
                raise
            print(f"the engine counts an endpoint in {network} and lists no container there")
            for volume in docker("volume", "ls", "--quiet", "--filter", of_project).split():
                docker("volume", "rm", volume)

    def container(self, service: str) -> str:
        """The container of a service, running or not."""
        of_project = f"label=com.docker.compose.project={self.project}"
        of_service = f"label=com.docker.compose.service={service}"
        return docker("ps", "--all", "--quiet", "--filter", of_project, "--filter", of_service)

    def kill(self, *services: str) -> None:
        """SIGKILL, as `compose kill` does it."""
        self.compose("kill", *services)

    def start(self, *services: str) -> None:
        """Starts containers that were killed or stopped, on the data that they left."""
        docker("start", *(self.container(service) for service in services))

    @contextmanager
    def paused(self, *services: str) -> Iterator[None]:
        """Every process of these containers stands still."""
        containers = [self.container(service) for service in services]
        docker("pause", *containers)
        try:
            yield
        finally:
            docker("unpause", *containers)

    @contextmanager
    def disconnected(self, service: str) -> Iterator[None]:
        """A container has no network; afterwards it is back under its name, maybe at another address."""
        container, network = self.container(service), f"{self.project}_default"
        docker("network", "disconnect", network, container)
        try:
            yield
        finally:
            docker("network", "connect", "--alias", service, network, container)

    @contextmanager
    def half_cut(self, safekeeper: str, direction: Literal["to", "from"]) -> Iterator[None]:
        """Nothing that proxies send reaches that safekeeper ("to"), or nothing of what it sends reaches them ("from").

        The packets are dropped in the container's own network namespace: connections stand, and no peer is notified.
        """
        process = docker("inspect", "--format", "{{.State.Pid}}", self.container(safekeeper))
        chain, port = ("INPUT", "--dport") if direction == "to" else ("OUTPUT", "--sport")

        def iptables(change: str) -> None:
            rule = [chain, "--protocol", "tcp", port, _PROPOSERS_PORT, "--jump", "DROP"]
            inside = ["nsenter", "--target", process, "--net", "iptables", change, *rule]
            done = subprocess.run(inside, capture_output=True, text=True, timeout=30, check=False)
            assert done.returncode == 0, done.stderr

        iptables("--append")
        try:
            yield
        finally:
            iptables("--delete")

    @contextmanager
    def changed(self, changes: dict[str, dict[str, object]]) -> Iterator[None]:
        """Containers of services are made again with other settings, on the same volumes; afterwards with their own."""
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump({"services": changes}, file)  # JSON is YAML.
            file.flush()
            # What is replaced is killed after a second: it is at home with that.
            again = ("up", "--detach", "--no-build", "--no-deps", "--timeout", "1", *changes)
            self.compose(*again, files=[file.name])
            try:
                yield
            finally:
                self.compose(*again)

    def put(self, service: str, path: str, content: str) -> None:
        """Writes a file into a container, whole: a process may read it at any moment."""
        script = f"printf '%s\\n' '{content}' > {path}.new && mv {path}.new {path}"
        docker("exec", self.container(service), "sh", "-c", script)

    def connect(self, service: str = "postgres") -> Session:
        """A superuser's session in autocommit, through the port that is published."""
        return psycopg.connect(
            host="127.0.0.1",
            port=self.ports[service],
            user="postgres",
            password=PASSWORD,
            dbname="postgres",
            connect_timeout=5,
            autocommit=True,
        )

    def status(self, service: str) -> dict[str, Any] | None:
        """The status of a proxy or a safekeeper, None if it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[service]}/status", timeout=2) as response:
                content: dict[str, Any] = json.load(response)
                return content
        except (OSError, urllib.error.URLError):
            return None

    def leader(self) -> str | None:
        """The proxy that leads, None while there is none."""
        for proxy in PROXIES:
            status = self.status(proxy)
            if status is not None and _leads(status):
                return proxy
        return None

    def leaders_status(self) -> dict[str, Any]:
        """The status of the proxy that leads.

        Raises:
            NotThereYet: none leads at present: a wait goes on, anything else fails the test.
        """
        for proxy in PROXIES:
            status = self.status(proxy)
            if status is not None and _leads(status):
                return status
        raise NotThereYet("no proxy leads")

    def term(self) -> int:
        """The term of the proxy that leads, once one does."""
        terms: list[int] = []
        wait_until(lambda: terms.append(self.leaders_status()["term"]) or terms, "a proxy leads")
        return terms[0]

    def safekeeper_state(self, safekeeper: str) -> str:
        """The state of a safekeeper in the status of the leading proxy.

        Raises:
            NotThereYet: none leads at present.
        """
        return str(entry(self.leaders_status()["safekeepers"], "id", SAFEKEEPERS.index(safekeeper) + 1)["state"])

    def is_whole(self) -> bool:
        """Whether commits go through, and every safekeeper takes part.

        Raises:
            NotThereYet: no proxy leads at present.
        """
        status = self.leaders_status()
        return status["state"] == "streaming" and {each["state"] for each in status["safekeepers"]} == {"streaming"}

    def wait_until_whole(self) -> None:
        """Waits for `is_whole`, and for PostgreSQL to take sessions."""
        wait_until(self.is_whole, lambda: f"all safekeepers stream: {self.leaders_status()}", 90)
        wait_until(self.answers, "PostgreSQL answers")

    def answers(self, service: str = "postgres") -> bool:
        """Whether a server takes sessions. On its first start it does so over TCP only once it is set up."""
        try:
            self.connect(service).close()
        except psycopg.OperationalError:
            return False
        return True

    def begin_test(self) -> None:
        """Starts what an earlier test has left behind stopped or paused, and waits until all is well."""
        for container, state in self._states().values():
            if state != "running":
                docker("unpause" if state == "paused" else "start", container)
        self.wait_until_whole()
        wait_until(lambda: self.answers("standby"), "the standby answers")
        self._since = str(int(time.time()))

    def print_logs(self) -> None:
        """Prints what the containers have logged since `begin_test`: pytest shows it for a test that failed."""
        for service in self._states():
            print(f"--- {service}\n{self.log(service)}")

    def log(self, service: str) -> str:
        """Returns the last lines that the container has logged since `begin_test`."""
        container, _ = self._states()[service]
        done = subprocess.run(
            ["docker", "logs", "--since", self._since, "--tail", "60", container],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=30,
            check=False,
        )
        return done.stdout.decode(errors="replace")

    def _states(self) -> dict[str, tuple[str, str]]:
        """By service its container and the engine's word for what that does, such as `running` or `paused`."""
        columns = '{{.Label "com.docker.compose.service"}} {{.ID}} {{.State}}'
        of_project = f"label=com.docker.compose.project={self.project}"
        lines = docker("ps", "--all", "--filter", of_project, "--format", columns).splitlines()
        found = {service: (container, state) for service, container, state in map(str.split, lines)}
        return {service: found[service] for service in SERVICES if service in found}
