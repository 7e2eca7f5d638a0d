"""The disk's space: what is lacking, and how often that is logged."""

import logging

import pytest

from safekeeper.base.errors import ResourceShortage, StorageFull
from safekeeper.storage.disk_space import CONTROL_FILE, WAL, WARN_AGAIN_AFTER_S, DiskSpace
from safekeeper.storage.filesystem import Space

MIB = 1 << 20


class Clock:
    """The time, in seconds."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was logged since the last call."""
    found = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return found


@pytest.fixture(autouse=True)
def every_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def test_what_lacks_space_is_logged_once_until_it_has_space_again(caplog: pytest.LogCaptureFixture) -> None:
    space = DiskSpace()
    space.note(WAL, None)
    assert lines(caplog) == [] and not space.lacking
    for reason in ("first", "second"):
        space.note(WAL, StorageFull(reason))
    assert lines(caplog) == [
        "not enough disk space for the WAL: first; free some space, writing then resumes by itself"
    ]
    assert space.lacking == {WAL: "first"}
    space.note(CONTROL_FILE, None)
    assert space.lacking == {WAL: "first"}
    for _ in range(2):
        space.note(WAL, None)
    assert lines(caplog) == ["disk space for the WAL is available again"] and not space.lacking


def test_a_lack_of_descriptors_counts_and_is_not_called_a_full_disk(caplog: pytest.LogCaptureFixture) -> None:
    space = DiskSpace(clock=Clock())
    for _ in range(10):
        space.note(WAL, ResourceShortage("Too many open files"))
    assert space.shortages == 10 and space.lacking == {WAL: "Too many open files"}
    found = lines(caplog)
    assert len(found) == 3 and all(line.startswith("Too many open files: retrying;") for line in found)


def test_low_space_is_reported_at_its_beginning_now_and_then_and_at_its_end(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    space = DiskSpace(100 * MIB, clock)
    assert not space.is_low
    low = "the disk has 99 MiB of free space left, less than the 100 MiB of disk_free_warning: free some space"
    for after_s, free_mib, expected in (
        (0.0, 100, []),
        (0.0, 99, [low]),
        (WARN_AGAIN_AFTER_S - 1, 99, []),
        (1.0, 99, [low]),
        (WARN_AGAIN_AFTER_S - 1, 99, []),
        (0.0, 100, ["the disk has 100 MiB of free space again"]),
        (0.0, 100, []),
        (0.0, 99, [low]),
    ):
        clock.now += after_s
        space.measured(Space(free_mib * MIB, 1000 * MIB))
        assert lines(caplog) == expected
        assert space.is_low is (free_mib < 100)
        assert space.space == Space(free_mib * MIB, 1000 * MIB)


def test_of_the_warnings_of_low_space_the_first_one_is_an_event(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    space = DiskSpace(100 * MIB, clock)
    for free_mib in (99, 99, 100):
        space.measured(Space(free_mib * MIB, 1000 * MIB))
        clock.now += WARN_AGAIN_AFTER_S
    events = [getattr(record, "logged_event", None) for record in caplog.records]
    assert [event.kind if event is not None else "" for event in events] == ["disk-low", "", "disk-space-back"]


def test_a_warning_ends_also_if_its_limit_was_lowered_meanwhile(caplog: pytest.LogCaptureFixture) -> None:
    space = DiskSpace(100 * MIB, Clock())
    for warning_mib, free_mib, expected in (
        (100, 50, 1),
        (40, 50, 1),
        # What was measured before another limit was given is no warning.
        (60, 60, 0),
        (61, 70, 0),
    ):
        space.free_warning_bytes = warning_mib * MIB
        space.measured(Space(free_mib * MIB, 1000 * MIB))
        assert len(lines(caplog)) == expected
