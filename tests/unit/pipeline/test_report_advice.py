"""What a report advises: each cause alone, and silence where the figures are small."""

from typing import Any

import pytest

from walproxy.pipeline.jobs.report_data import Causes, Headline, IndexRow, RelationRow, Report
from walproxy.pipeline.jobs.report_findings import advice_on

MIB = 1 << 20


def report(*, relations: list[RelationRow] | None = None, causes: Causes | None = None, **headline: Any) -> Report:
    sums = {"wal_bytes": 1000 * MIB, **headline}
    return Report(made_at="", headline=Headline(**sums), relations=relations or [], causes=causes or Causes())


def relation(updates: int, hot_updates: int, size: int = 300) -> RelationRow:
    counts = {"records": 1, "image_count": 0, "image_bytes": 0, "inserts": 0, "deletes": 0}
    return RelationRow(
        name="shop.public.orders",
        kind="table",
        wal_bytes=size * MIB,
        updates=updates,
        hot_updates=hot_updates,
        **counts,
    )


def index(size: int, *, images: int = 0, splits: int | None = 0, table: str | None = "shop.public.orders") -> IndexRow:
    return IndexRow(name="pk", table=table, records=1, wal_bytes=size * MIB, image_bytes=images * MIB, splits=splits)


def about(found: Report) -> list[str]:
    return [each.about for each in advice_on(found)]


def test_images_of_pages_that_had_one_are_due_to_checkpoints() -> None:
    causes = Causes(imaged_pages=20_000, checkpoint_distance=64 * MIB, checkpoint_interval=90_000_000)
    assert about(report(causes=causes, image_count=100_000, image_bytes=4 * MIB)) == []
    found = advice_on(report(causes=causes, image_count=100_000, image_bytes=500 * MIB))
    assert [each.about for each in found] == ["compression", "checkpoints"]
    advice = found[1]
    assert advice.wal_bytes == 400 * MIB
    assert "every 64 MiB or 1.5 min" in advice.cause
    assert "80,000 of 100,000" in advice.cause
    assert "40 %" in advice.cause
    assert "max_wal_size" in advice.change


def test_first_images_of_pages_are_not_due_to_checkpoints() -> None:
    causes = Causes(imaged_pages=100_000, checkpoint_distance=64 * MIB)
    assert about(report(causes=causes, image_count=100_000, image_bytes=100 * MIB)) == []
    assert about(report(causes=Causes(), image_count=100_000, image_bytes=500 * MIB)) == ["compression"]


@pytest.mark.parametrize(("image_bytes", "expected"), [(500, ["compression"]), (300, []), (50, [])])
def test_large_images_can_be_compressed(image_bytes: int, expected: list[str]) -> None:
    assert about(report(image_count=100_000, image_bytes=image_bytes * MIB)) == expected


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (relation(900, 100), ["HOT updates"]),
        (relation(100, 900), []),
        (relation(50, 0), []),
        (relation(900, 100, size=10), []),
    ],
)
def test_updates_that_are_not_hot_write_to_every_index(row: RelationRow, expected: list[str]) -> None:
    found = advice_on(report(relations=[row]))
    assert [each.about for each in found] == expected
    if found:
        assert found[0].cause.startswith("10 % of the 1,000 updates of shop.public.orders are HOT")


def test_the_indexes_of_a_table_count_for_its_updates() -> None:
    causes = Causes(indexes=[index(40), index(400, table=None)])
    [hot] = [each for each in advice_on(report(relations=[relation(900, 100)], causes=causes)) if "HOT" in each.about]
    assert hot.wal_bytes == 340 * MIB


def test_an_index_that_writes_much_is_named_with_its_splits() -> None:
    causes = Causes(indexes=[index(200, splits=500), index(100, images=80, splits=None), index(10)])
    first, second = advice_on(report(causes=causes))
    assert "The index pk of shop.public.orders wrote 200 MiB, 20 % of all WAL" in first.cause
    assert "500 page splits" in first.cause
    assert "REINDEX" in first.change
    assert "scattered" in second.cause
    assert "splits" not in second.cause


def test_the_advice_about_most_wal_is_first_and_without_wal_there_is_none() -> None:
    causes = Causes(indexes=[index(100), index(300)])
    assert [each.wal_bytes // MIB for each in advice_on(report(causes=causes))] == [300, 100]
    assert advice_on(report(wal_bytes=0)) == []
