"""What containers of walproxy.lab.testing are made from. What they do is for the container tests."""

import logging
from types import SimpleNamespace
from typing import Any

import docker.errors
import pytest

from safekeeper.base.errors import ConfigurationError
from walproxy.lab.testing import container_parts
from walproxy.lab.testing.containers import ContainersEngine, postgres_image, require_engine, walproxy_image
from walproxy.lab.testing.engine import Blueprint


@pytest.mark.parametrize(
    ("wanted", "image"),
    [
        ("17", "postgres:17"),
        ("16.4-bookworm", "postgres:16.4-bookworm"),
        ("postgres:15", "postgres:15"),
        ("localhost:5000/mine", "localhost:5000/mine"),
        ("mine", "mine"),
    ],
)
def test_a_version_is_a_tag_of_the_official_image_and_all_else_an_image(wanted: str, image: str) -> None:
    assert postgres_image(Blueprint(wanted)) == image


def test_images_are_named_by_the_environment_as_for_compose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POSTGRES_IMAGE", raising=False)
    monkeypatch.delenv("WALPROXY_IMAGE", raising=False)
    assert (walproxy_image(), postgres_image(Blueprint())) == ("walproxy", "postgres:18")
    monkeypatch.setenv("POSTGRES_IMAGE", "ours")
    monkeypatch.setenv("WALPROXY_IMAGE", "walproxy:ci")
    assert (walproxy_image(), postgres_image(Blueprint())) == ("walproxy:ci", "ours")
    assert postgres_image(Blueprint("17")) == "postgres:17"


def test_planted_programs_are_refused_before_an_engine_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nobody.sock")
    with pytest.raises(ConfigurationError, match="take engine='processes'"):
        require_engine(Blueprint(safekeeper_program=["-m", "mine"]), may_pull=True)
    with pytest.raises(ConfigurationError, match="no container engine answers"):
        require_engine(Blueprint(), may_pull=True)


def test_the_gate_is_below_what_a_hindrance_resets(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ContainersEngine.__new__(ContainersEngine)
    scripts: list[str] = []
    statements: list[str] = []

    def execute(sql: str) -> list[tuple[int]]:
        statements.append(sql)
        return [(1,)]

    monkeypatch.setattr(engine, "_run_in", lambda member, script: scripts.append(script))
    monkeypatch.setattr(engine, "_execute", execute)
    monkeypatch.setattr(engine, "_wait_until", lambda condition, what, member: condition())
    engine._set_gate()
    assert len(scripts) == 1 and scripts[0].endswith("/postgresql.conf")
    assert "synchronous_standby_names = 'walproxy'" in scripts[0]
    assert "SELECT pg_reload_conf()" in statements
    assert not [sql for sql in statements if "ALTER SYSTEM" in sql]


class _StuckNetwork:
    """A network whose removal the engine refuses with `refusal`, while `containers` are in it."""

    name = "stuck"

    def __init__(self, refusal: str, containers: list[str]) -> None:
        self._refusal = refusal
        networks = SimpleNamespace(get=lambda _: SimpleNamespace(containers=containers))
        self._docker = SimpleNamespace(client=SimpleNamespace(networks=networks))

    def remove(self) -> None:
        raise docker.errors.APIError(self._refusal)


_MISCOUNT = "error while removing network: network stuck id 81 has active endpoints"


def test_a_network_with_an_endpoint_of_no_container_is_left_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(container_parts, "_REMOVAL_S", 0.0)
    stuck: Any = _StuckNetwork(_MISCOUNT, [])
    with caplog.at_level(logging.WARNING):
        container_parts._remove_network(stuck)
    assert "network stuck stays until the engine starts again" in caplog.text


@pytest.mark.parametrize(("refusal", "containers"), [(_MISCOUNT, ["postgres"]), ("no permission", [])])
def test_any_other_network_that_cannot_be_removed_is_an_error(
    monkeypatch: pytest.MonkeyPatch, refusal: str, containers: list[str]
) -> None:
    monkeypatch.setattr(container_parts, "_REMOVAL_S", 0.0)
    stuck: Any = _StuckNetwork(refusal, containers)
    with pytest.raises(docker.errors.APIError, match=refusal):
        container_parts._remove_network(stuck)


class _BusyContainer:
    """A container that the engine cannot pause at first: the next of `refusals` at each try."""

    def __init__(self, *refusals: str) -> None:
        self._refusals = list(refusals)
        self.is_paused = False

    def pause(self) -> None:
        if self._refusals:
            raise docker.errors.APIError(self._refusals.pop(0))
        self.is_paused = True


_BUSY = "OCI runtime pause failed: unable to freeze: unknown"


def test_a_container_with_a_process_in_the_kernel_is_paused_once_that_is_out_of_it() -> None:
    busy: Any = _BusyContainer(_BUSY, _BUSY)
    container_parts.pause(busy)
    assert busy.is_paused


@pytest.mark.parametrize("refusals", [("no permission",), (_BUSY, "no such container")])
def test_any_other_refusal_to_pause_is_an_error(refusals: tuple[str, ...]) -> None:
    busy: Any = _BusyContainer(*refusals)
    with pytest.raises(docker.errors.APIError, match=refusals[-1]):
        container_parts.pause(busy)
    assert not busy.is_paused


def test_a_container_that_cannot_be_paused_for_long_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container_parts, "_FREEZE_S", 0.0)
    busy: Any = _BusyContainer(*[_BUSY] * 1000)
    with pytest.raises(docker.errors.APIError, match="unable to freeze"):
        container_parts.pause(busy)
