"""What the archive lacks of a log, and what goes next."""

from safekeeper.acceptor.readable import ReadableLog
from safekeeper.archive.objects import ArchivedFile, history_file, partial_file, segment_file
from safekeeper.archiving.plan import ArchivingPlan

MIB = 1 << 20
# Segments 3 to 6 on timeline 1, half of segment 7.
LOG = ReadableLog(begin_lsn=3 * MIB, end_lsn=7 * MIB + 500, tli=1, lineage=())
# The same, but timeline 2 began in segment 5.
FORKED = LOG._replace(tli=2, lineage=((1, 5 * MIB + 100),))


def segment(number: int, tli: int = 1) -> ArchivedFile:
    return segment_file(tli, number * MIB, MIB)


def partial(end_lsn: int, tli: int = 1) -> ArchivedFile:
    return partial_file(tli, end_lsn // MIB * MIB, end_lsn, MIB)


def plan_of(log: ReadableLog, *archived: ArchivedFile, histories: tuple[int, ...] = ()) -> ArchivingPlan:
    plan = ArchivingPlan(log, histories, MIB)
    for file in archived:
        plan.found(file)
    return plan


def all_files(plan: ArchivingPlan, *, with_partial: bool = True) -> list[ArchivedFile]:
    """Archive one file after the other; return them in their order."""
    files: list[ArchivedFile] = []
    while (file := plan.next_file((), with_partial=with_partial)) is not None:
        files.append(file)
        plan.found(file)
    return files


def test_complete_segments_go_in_ascending_order_and_then_the_open_one() -> None:
    plan = plan_of(LOG)
    assert plan.archived_lsn == 3 * MIB
    assert all_files(plan) == [segment(3), segment(4), segment(5), segment(6), partial(7 * MIB + 500)]
    assert plan.archived_lsn == LOG.end_lsn


def test_the_open_segment_goes_only_when_it_is_wanted_and_has_grown() -> None:
    plan = plan_of(LOG, *map(segment, range(3, 7)))
    assert plan.next_file((), with_partial=False) is None
    plan.found(partial(LOG.end_lsn))
    assert plan.next_file((), with_partial=True) is None
    plan.follow(LOG._replace(end_lsn=LOG.end_lsn + 1), ())
    assert plan.archived_lsn == LOG.end_lsn
    assert plan.next_file((), with_partial=True) == partial(LOG.end_lsn + 1)


def test_nothing_goes_of_a_log_that_ends_on_a_border_or_that_is_empty() -> None:
    assert all_files(plan_of(LOG._replace(end_lsn=4 * MIB))) == [segment(3)]
    assert all_files(plan_of(LOG._replace(end_lsn=3 * MIB))) == []
    assert all_files(plan_of(ReadableLog(0, 0, 0, ()))) == []
    assert plan_of(ReadableLog(0, 0, 0, ())).archived_lsn == 0
    # A log that skipped WAL and of which nothing is committed yet.
    assert plan_of(LOG._replace(end_lsn=0)).archived_lsn == 0


def test_what_is_under_way_is_not_begun_again_and_counts_when_it_is_there() -> None:
    plan = plan_of(LOG)
    assert plan.next_file([segment(3)], with_partial=True) == segment(4)
    plan.found(segment(4))
    assert plan.archived_lsn == 3 * MIB
    plan.found(segment(3))
    assert plan.archived_lsn == 5 * MIB


def test_a_segment_and_a_partial_of_it_do_not_go_at_once() -> None:
    plan = plan_of(LOG, *map(segment, range(3, 7)))
    plan.follow(LOG._replace(end_lsn=8 * MIB + 5), ())
    assert plan.next_file([partial(LOG.end_lsn)], with_partial=True) is None
    assert plan.next_file([], with_partial=True) == segment(7)


def test_a_partial_counts_up_to_its_end_until_the_segment_is_there() -> None:
    plan = plan_of(LOG, *map(segment, range(3, 7)), partial(7 * MIB + 300), partial(7 * MIB + 200))
    assert plan.archived_lsn == 7 * MIB + 300
    plan.follow(LOG._replace(end_lsn=9 * MIB), ())
    assert plan.archived_lsn == 7 * MIB + 300
    assert all_files(plan) == [segment(7), segment(8)]


def test_the_history_of_a_timeline_goes_before_its_segments() -> None:
    plan = plan_of(FORKED, segment(3), histories=(2,))
    assert plan.next_file([history_file(2)], with_partial=True) is None
    assert all_files(plan) == [
        history_file(2),
        segment(4),
        segment(5, tli=2),
        segment(6, tli=2),
        partial(LOG.end_lsn, tli=2),
    ]


def test_a_history_goes_only_when_its_timeline_can_be_read() -> None:
    assert plan_of(LOG, histories=(2,)).next_file((), with_partial=True) == segment(3)


def test_the_segment_with_the_fork_is_the_new_timelines_and_archived_again() -> None:
    plan = plan_of(LOG, *map(segment, range(3, 7)), partial(LOG.end_lsn))
    assert plan.archived_lsn == LOG.end_lsn
    plan.follow(FORKED, ())
    assert plan.archived_lsn == 5 * MIB
    assert all_files(plan) == [segment(5, 2), segment(6, 2), partial(LOG.end_lsn, 2)]


def test_a_fork_on_a_segments_border_leaves_the_last_one_to_the_parent() -> None:
    log = LOG._replace(tli=2, lineage=((1, 5 * MIB),))
    assert all_files(plan_of(log, segment(3)))[:2] == [segment(4, 1), segment(5, 2)]


def test_what_reached_beyond_an_end_that_went_back_is_forgotten() -> None:
    plan = plan_of(LOG, *map(segment, range(3, 7)), partial(LOG.end_lsn))
    plan.follow(LOG._replace(end_lsn=5 * MIB + 100), ())
    assert plan.archived_lsn == 5 * MIB
    # The same timeline goes on, with other bytes.
    plan.follow(LOG, ())
    assert plan.archived_lsn == 5 * MIB
    assert all_files(plan) == [segment(5), segment(6), partial(LOG.end_lsn)]


def test_wal_that_is_removed_here_is_asked_for_no_more() -> None:
    plan = plan_of(LOG, segment(3), segment(4))
    plan.follow(LOG._replace(begin_lsn=5 * MIB), ())
    assert plan.archived_lsn == 5 * MIB
    assert all_files(plan)[0] == segment(5)
    # A log that skipped WAL beyond what was archived.
    plan.follow(LOG._replace(begin_lsn=9 * MIB, end_lsn=9 * MIB + 5), ())
    assert plan.archived_lsn == 9 * MIB


def test_the_archives_folders_of_a_log_are_those_of_all_its_segments() -> None:
    log = FORKED._replace(end_lsn=(1 << 32) + 5)
    assert plan_of(log._replace(begin_lsn=(1 << 32) - MIB)).folders() == [
        "history",
        "wal/0000000200000000",
        "wal/0000000200000001",
    ]
    assert plan_of(FORKED).folders() == ["history", "wal/0000000100000000", "wal/0000000200000000"]
    assert plan_of(ReadableLog(0, 0, 0, ())).folders() == ["history"]
