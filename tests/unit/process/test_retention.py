"""How much WAL is kept, and what is said when it is too much."""

import logging
from pathlib import Path

import pytest

from safekeeper.base.lsn import format_lsn
from safekeeper.process.retention import Retention
from tests.unit.replication_house import Leader, ReplicationHouse
from tests.unit.scripted_proposer import BASE_LSN, SEGMENT_SIZE
from tests.unit.wal_builder import wal_with_commits

WAL = wal_with_commits(BASE_LSN, SEGMENT_SIZE, 7 * SEGMENT_SIZE + 1000)
NEXT, WAL = WAL[6 * SEGMENT_SIZE + 1000 :], WAL[: 6 * SEGMENT_SIZE + 1000]
END_LSN = BASE_LSN + len(WAL)


def filled(house: ReplicationHouse) -> Leader:
    leader = house.led()
    leader.write(WAL)
    leader.commit()
    return leader


def retention_of(house: ReplicationHouse, *, keep: int = 0, limit: int | None = None) -> Retention:
    archiver = house.archiver if house.read_through is not None else None
    return Retention(house.node, house.slots, house.hub, archiver, keep_bytes=keep, limit_bytes=limit)


def begin_lsn(house: ReplicationHouse) -> int:
    house.until(lambda: house.node.is_between_events)
    return house.call(lambda: house.node.folder.begin_lsn)


def test_archived_wal_goes_beyond_the_limit_and_the_rest_when_everybody_has_it(tmp_path: Path) -> None:
    with ReplicationHouse(tmp_path, archive=str(tmp_path / "archive")) as house:
        leader = filled(house)
        retention = retention_of(house, limit=4 * SEGMENT_SIZE)
        house.call(retention.look)
        assert begin_lsn(house) == BASE_LSN  # It is not archived.
        leader.order_archive(1, BASE_LSN + 2 * SEGMENT_SIZE + 5)
        house.call(retention.look)
        assert begin_lsn(house) == BASE_LSN + 2 * SEGMENT_SIZE
        leader.order_archive(1, END_LSN)
        # The files of three segments, one, the open one and the one prepared behind it; a quarter is for readers of
        # the archive.
        house.call(retention.look)
        assert begin_lsn(house) == BASE_LSN + 5 * SEGMENT_SIZE


def test_the_limit_does_not_wait_for_the_next_look_when_another_segment_comes(tmp_path: Path) -> None:
    with ReplicationHouse(tmp_path, archive=str(tmp_path / "archive")) as house:
        leader = filled(house)
        house.call(lambda: house.node.attach_readers(retention_of(house, limit=4 * SEGMENT_SIZE)))
        leader.order_archive(1, END_LSN)
        house.until(lambda: house.node.folder.begin_lsn == BASE_LSN + 5 * SEGMENT_SIZE)
        leader.write(NEXT)
        leader.commit()
        leader.order_archive(1, END_LSN + len(NEXT))
        house.until(lambda: house.node.folder.begin_lsn == BASE_LSN + 6 * SEGMENT_SIZE)


def test_without_an_archive_wal_is_kept_until_every_member_has_it(tmp_path: Path) -> None:
    with ReplicationHouse(tmp_path) as house:
        # Whatever a leader says of an archive that others may have.
        filled(house).order_archive(2, END_LSN)
        house.call(retention_of(house, limit=SEGMENT_SIZE).look)
        assert begin_lsn(house) == BASE_LSN


def test_slots_and_readers_hold_what_they_still_get_from_here(tmp_path: Path) -> None:
    with ReplicationHouse(tmp_path, archive=str(tmp_path / "archive")) as house:
        filled(house)
        retention = retention_of(house)
        assert house.call(retention.wanted_lsn) is None
        house.run(house.slots.create("standby1", END_LSN, connection=0))
        assert house.call(retention.wanted_lsn) == END_LSN
        client = house.client(receive_buffer=4096)
        received = client.start(BASE_LSN + SEGMENT_SIZE)
        house.until(lambda: house.hub.readers[0].paused)
        position_lsn = house.call(lambda: house.hub.readers[0].position_lsn)
        assert house.call(retention.wanted_lsn) == position_lsn < END_LSN
        client.receive_wal(received, END_LSN)
        # What lies below the WAL that is here is lost already: it comes from the archive.
        house.run(house.slots.create("standby2", BASE_LSN - SEGMENT_SIZE, connection=0))
        house.run(house.slots.create("nothing_held", 0, connection=0))
        assert house.call(retention.wanted_lsn) == END_LSN


def of_retention(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return what was logged of retention: others log more where an earlier test has set the level for all."""
    return [record for record in caplog.records if record.name == "safekeeper.process.retention"]


def test_wal_beyond_the_limit_that_is_not_archived_is_warned_about_once_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "safekeeper.process.retention")
    with ReplicationHouse(tmp_path, archive=str(tmp_path / "archive")) as house:
        leader = filled(house)
        house.archiver.problem = "it is on fire"
        retention = retention_of(house, limit=4 * SEGMENT_SIZE)
        house.call(retention.look)
        house.call(retention.look)
        (warning,) = of_retention(caplog)
        assert warning.levelname == "WARNING"
        assert warning.message == (
            f"6 MiB of WAL are retained, from {format_lsn(BASE_LSN)} to {format_lsn(END_LSN)}, archived up to 0/0, "
            "more than the 4 MiB of wal_limit: it is not archived yet: it is on fire"
        )
        assert house.call(lambda: retention.is_over_limit)
        leader.order_archive(1, END_LSN)
        house.call(retention.look)
        assert begin_lsn(house) == BASE_LSN + 5 * SEGMENT_SIZE
        house.call(retention.look)
        assert of_retention(caplog)[-1].message == "the retained WAL is within wal_limit again"
        assert not house.call(lambda: retention.is_over_limit)


def test_without_a_limit_nothing_is_too_much(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with ReplicationHouse(tmp_path) as house:
        filled(house)
        retention = retention_of(house)
        house.call(retention.look)
        assert not retention.is_over_limit
        assert not of_retention(caplog)
