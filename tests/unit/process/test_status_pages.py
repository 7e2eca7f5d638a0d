"""What a safekeeper says about itself: health, readiness, status."""

from pathlib import Path

import msgspec
import pytest

import safekeeper.process.status_pages as http
from safekeeper.consensus.membership import Member, Membership
from safekeeper.consensus.messages import Bootstrap, Bootstrapped
from safekeeper.process.status_pages import health_problem, readiness_problem, safekeeper_routes, safekeeper_status
from safekeeper.storage.disk_space import WAL
from safekeeper.storage.filesystem import Space
from tests.unit.event_loop import on_the_loop, until
from tests.unit.node.test_node import CLUSTER, MEMBERSHIP, SEGMENT_SIZE, bench, failure


@on_the_loop
async def test_an_empty_folder_is_healthy_but_not_ready_and_a_member_is_ready_without_a_proposer(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path / "sk") as sk:
        assert health_problem(sk.node) is None
        assert "empty" in str(readiness_problem(sk.node))
        await sk.greet()
        await sk.ask(Bootstrap(CLUSTER, 5, SEGMENT_SIZE, 150018, MEMBERSHIP), Bootstrapped)
        assert readiness_problem(sk.node) is None
        assert safekeeper_status(sk.node, {}).state == "idle"


@on_the_loop
async def test_a_learner_is_not_ready(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as sk:
        await sk.lead()
        others = Membership(2, (Member(1, "b" * 32),))
        sk.node.acceptor.control = msgspec.structs.replace(sk.node.acceptor.control, membership=others)
        assert "learner" in str(readiness_problem(sk.node))
        assert (safekeeper_status(sk.node, {}).votes, safekeeper_status(sk.node, {}).state) == (False, "learner")


@on_the_loop
async def test_lack_of_room_is_not_ready_and_shown(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as sk:
        await sk.lead()
        sk.node.disk_space.note(WAL, OSError("No space left"))
        assert readiness_problem(sk.node) == "No space left"
        assert safekeeper_status(sk.node, {}).disk.no_room_for == {"WAL": "No space left"}


@on_the_loop
async def test_a_disk_that_does_not_answer_is_unhealthy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "DISK_STALLED_S", 0.01)
    async with bench(tmp_path / "sk") as sk:
        await sk.lead()
        sk.fs.hold()
        sk.append(b"x")
        await until(lambda: "not answered" in str(health_problem(sk.node)))
        assert safekeeper_routes(sk.node, lambda: safekeeper_status(sk.node, {}))["/healthz"]()[0] == 503
        sk.fs.release()
        await until(lambda: health_problem(sk.node) is None)


@on_the_loop
async def test_a_failed_node_is_unhealthy(tmp_path: Path) -> None:
    async with bench(tmp_path / "sk") as sk:
        await sk.lead()
        sk.fs.failing = True
        sk.append(b"x")
        await failure(sk.node)
        assert "Input/output error" in str(health_problem(sk.node))


@on_the_loop
async def test_free_space_is_measured_and_a_low_one_warned_about_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with bench(tmp_path / "sk") as sk:
        sk.node.measure_room()
        await until(lambda: sk.node.disk_space.space is not None)
        assert (safekeeper_status(sk.node, {}).disk.free_bytes or 0) > 0
        sk.node.disk_space.free_warning_bytes = 100 << 20
        for _ in range(3):
            sk.node.disk_space.measured(Space(50 << 20, 1 << 40))
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert safekeeper_status(sk.node, {}).disk.low
        sk.node.disk_space.measured(Space(500 << 20, 1 << 40))
        assert not safekeeper_status(sk.node, {}).disk.low
