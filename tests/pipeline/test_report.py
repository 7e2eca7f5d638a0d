"""The report: its numbers against those counted record by record, and its page in a real browser."""

import hashlib
import json
import re
from base64 import b64encode
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from playwright.sync_api import Browser, Page

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.lsn import format_lsn
from tests.browser import chromium, opened
from tests.pipeline.report_story import (
    AUDIT,
    BEGIN,
    BEGIN_LSN,
    BULK_XID,
    CUSTOMERS,
    DATABASE,
    ENDLESS_XID,
    MIB,
    NAMELESS,
    ORDERS,
    ORDERS_KEY,
    PAUSE,
    Night,
    Record,
    make_night,
    views_of,
    without_a_table_of_blocks,
    write_tables,
)
from walproxy.cli.pipeline_commands.report import report as report_command
from walproxy.cli.pipeline_work import report as work
from walproxy.pipeline.duck import FolderTables
from walproxy.pipeline.jobs.catalog import NAMES_FILE, CatalogNames, RelationFile, RelationNames, write_snapshot
from walproxy.pipeline.jobs.report import make_report
from walproxy.pipeline.jobs.report_data import Advice, Report
from walproxy.pipeline.jobs.report_html import write_page
from walproxy.pipeline.jobs.report_input import look_for_tables, parse_position

# A name that would end a script, and begin an element, if anybody took it for HTML.
EVIL = "</script><b onclick=stop()>"


def snapshot() -> CatalogNames:
    def relation(number: int, name: str, kind: str = "table", table: str = "") -> RelationFile:
        return RelationFile(1663, DATABASE, number, number, "public", name, kind, table)

    relations = [
        relation(ORDERS, "orders"),
        relation(ORDERS_KEY, "orders_pkey", "index", "public.orders"),
        relation(CUSTOMERS, EVIL),
        relation(AUDIT, "audit"),
    ]
    return CatalogNames(1, datetime.now(UTC), {DATABASE: "shop"}, {1663: "pg_default"}, {}, relations)


@dataclass
class Stage:
    """The night, its tables in a folder, and the report on all of them."""

    night: Night
    views: dict[str, list[Record]]
    folder: Path
    report: Report

    def report_on(self, tables: list[str], **options: object) -> Report:
        """Report on some of the tables only."""
        chosen = look_for_tables(FolderTables(self.folder))._replace(names=tables)
        return make_report(chosen, RelationNames(snapshot()), **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    folder = tmp_path_factory.mktemp("tables")
    night = make_night()
    views = views_of(night)
    write_tables(folder, views)
    report = make_report(look_for_tables(FolderTables(folder)), RelationNames(snapshot()))
    return Stage(night, views, folder, report)


@pytest.mark.nightly
def test_the_sums_are_those_of_the_records(stage: Stage) -> None:
    records, headline = stage.night.records, stage.report.headline
    ended = Counter(each["outcome"] for each in stage.night.transactions)
    assert headline.records == len(records)
    assert headline.wal_bytes == sum(each["total_length"] for each in records)
    assert headline.image_count == sum(each["image_count"] for each in records)
    assert headline.image_bytes == sum(each["image_bytes"] for each in records)
    assert (headline.commits, headline.aborts) == (ended["commit"], ended["abort"])
    assert headline.begin_lsn == format_lsn(BEGIN_LSN)
    assert headline.checkpoints == 12
    rmgrs = {row.name: row.records for row in stage.report.rmgrs}
    assert rmgrs == Counter(each["rmgr"] for each in records)


def test_relations_and_tables_have_what_was_written_to_them(stage: Stage) -> None:
    written: dict[int, int] = defaultdict(int)
    for row in stage.views["relation_volume"]:
        written[row["relation"] or 0] += row["wal_bytes"]
    customers = f'shop.public."{EVIL.replace(chr(34), 2 * chr(34))}"'
    found = {row.name: row for row in stage.report.relations}
    assert {name: row.wal_bytes for name, row in found.items()} == {
        "shop.public.audit": written[AUDIT],
        "shop.public.orders": written[ORDERS],
        customers: written[CUSTOMERS],
        "shop.public.orders_pkey": written[ORDERS_KEY],
        "(no relation)": written[0],
        f"?1663/{DATABASE}/{NAMELESS} (shop)": written[NAMELESS],
    }
    tables = {row.name: row.wal_bytes for row in stage.report.tables}
    assert tables["shop.public.orders"] == written[ORDERS] + written[ORDERS_KEY]
    audit, updated = found["shop.public.audit"], found[customers]
    assert (audit.inserts, audit.updates, audit.image_count) == (10 * audit.records, 0, 0)
    assert updated.hot_updates == updated.records


def test_the_causes_are_counted_record_by_record(stage: Stage) -> None:
    causes, records = stage.report.causes, stage.night.records
    imaged = [(block["relation"], block["block"]) for each in records for block in each["blocks"] if block["has_image"]]
    assert causes.imaged_pages == len(set(imaged))
    assert stage.report.headline.image_count == len(imaged)
    assert stage.report_on(["relation_volume", "page_versions"]).causes.imaged_pages == len(set(imaged))
    at = [each["lsn"] for each in records if each["operation"] == "CHECKPOINT_ONLINE"]
    assert causes.checkpoint_distance == (at[-1] - at[0]) // (len(at) - 1)
    assert causes.checkpoint_interval == pytest.approx(900e6, rel=0.02)
    [index] = causes.indexes
    of_btree = [row for row in stage.views["relation_volume"] if row["rmgr"] == "Btree"]
    assert (index.name, index.table) == ("shop.public.orders_pkey", "shop.public.orders")
    assert (index.wal_bytes, index.splits) == (sum(row["wal_bytes"] for row in of_btree), 0)


def test_the_bulk_load_is_one_transaction_with_its_subtransactions(stage: Stage) -> None:
    first = stage.report.transactions[0]
    audit = sum(row["wal_bytes"] for row in stage.views["relation_volume"] if row["relation"] == AUDIT)
    assert (first.xid, first.outcome, first.database) == (BULK_XID, "commit", "shop")
    assert audit < first.wal_bytes < audit + 100
    assert [(each.relation, each.wal_bytes) for each in first.relations or []] == [("shop.public.audit", audit)]
    assert first.duration is not None
    assert 1800e6 <= first.duration <= 1810e6
    assert stage.report.headline.transactions_without_end == 1
    assert any(f"xid {ENDLESS_XID}" in text or "1 transaction" in text for text in stage.report.unknown)


def test_the_longest_time_without_a_commit_is_the_pause(stage: Stage) -> None:
    first = stage.report.gaps[0]
    commits = sorted(each["time"] for each in stage.night.transactions if each["outcome"] == "commit")
    begin = max(time for time in commits if time < BEGIN + PAUSE[0] + (PAUSE[1] - PAUSE[0]) / 2)
    end = min(time for time in commits if time > begin)
    assert (datetime.fromisoformat(first.begin_time), datetime.fromisoformat(first.end_time)) == (begin, end)
    longest = sorted((right - left for left, right in pairwise(commits)), reverse=True)
    assert [gap.duration for gap in stage.report.gaps] == [gap.total_seconds() * 1e6 for gap in longest[:15]]


def test_bytes_fall_into_the_minutes_in_which_they_were_written(stage: Stage) -> None:
    bins = stage.report.bins
    assert (bins.has_times, bins.width, len(bins.labels)) == (True, 60_000_000, 180)
    assert bins.labels[0] == "2026-11-20T22:00:00.000000Z"
    audit = next(series for series in bins.by_relation if series.name == "shop.public.audit")
    assert sum(audit.values[60:90]) == pytest.approx(sum(audit.values), rel=0.01)
    assert max(audit.values[60:90]) < 1.3 * min(audit.values[60:90])
    for each in (bins.by_relation, bins.by_rmgr):
        total = sum(sum(series.values) for series in each)
        assert total == pytest.approx(stage.report.headline.wal_bytes, rel=0.001)
    assert (sum(bins.commits), sum(bins.aborts)) == (stage.report.headline.commits, stage.report.headline.aborts)
    assert bins.commits[151:160] == [0] * 9


def test_pieces_give_the_same_sums_as_records(stage: Stage) -> None:
    report = stage.report_on(["relation_volume"])
    for mine, other in ((report.relations, stage.report.relations), (report.rmgrs, stage.report.rmgrs)):
        sums = [[(row.name, row.records, row.wal_bytes, row.image_bytes) for row in rows] for rows in (mine, other)]
        assert sums[0] == sums[1]
    assert (report.headline.source, stage.report.headline.source) == ("relation_volume", "records")
    assert report.bins.has_times
    audit = next(series for series in report.bins.by_relation if series.name == "shop.public.audit")
    assert sum(audit.values[55:95]) == pytest.approx(sum(audit.values), rel=0.01)
    missing = [text for text in report.unknown if text.startswith("Without the table ")]
    assert len(missing) == 6


def test_a_range_of_time_is_that_of_the_pieces_in_which_it_lies(stage: Stage) -> None:
    begin, end = parse_position("2026-11-20T23:05:00Z"), parse_position("2026-11-20T23:10:00Z")
    report = stage.report_on(["relation_volume", "transactions"], begin=begin, end=end)
    ended = stage.night.transactions
    before = max(each["end_lsn"] for each in ended if (each["time"] - BEGIN).total_seconds() < 65 * 60)
    behind = min(each["lsn"] for each in ended if (each["time"] - BEGIN).total_seconds() > 70 * 60)
    first, last = before // MIB * MIB, (behind - 1) // MIB * MIB
    assert (report.headline.begin_lsn, report.headline.end_lsn) == (format_lsn(first), format_lsn(last + MIB))
    outcomes = [each["outcome"] for each in ended if first <= each["lsn"] < last + MIB]
    assert (report.headline.commits, report.headline.aborts) == (outcomes.count("commit"), outcomes.count("abort"))
    assert report.headline.wal_bytes == sum(
        each["total_length"] for each in stage.night.records if first <= each["lsn"] < last + MIB
    )


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value that is no list or object, with where it is."""
    if isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(each, f"{path}.{key}")
    else:
        yield path, value


def test_records_with_the_block_references_give_the_same_report(stage: Stage, tmp_path: Path) -> None:
    write_tables(tmp_path, without_a_table_of_blocks(stage.views))
    report = make_report(look_for_tables(FolderTables(tmp_path)), RelationNames(snapshot()))
    report = msgspec.structs.replace(report, made_at=stage.report.made_at)
    found, expected = (dict(leaves(msgspec.to_builtins(each))) for each in (report, stage.report))
    fractions = {path: value for path, value in expected.items() if isinstance(value, float)}
    # DuckDB adds them in any order.
    assert {path: found.pop(path) for path in fractions} == pytest.approx(fractions, rel=1e-9)
    assert found == {path: value for path, value in expected.items() if path not in fractions}


@pytest.mark.parametrize("rows", [0, 1])
def test_empty_tables_and_a_single_commit_make_a_report_that_says_so(tmp_path: Path, rows: int) -> None:
    night = make_night()
    few = Night(night.records[1 : 3 * rows + 1], night.transactions[:rows])
    write_tables(tmp_path, views_of(few), files=1)
    report = make_report(look_for_tables(FolderTables(tmp_path)), RelationNames())
    assert report.headline.records == 3 * rows
    assert report.headline.commits == (1 if rows else None)
    assert (
        not report.bins.has_times if rows else report.findings == ["These tables have no WAL, or none in this range."]
    )
    page = tmp_path / "report.html"
    write_page(report, page)
    assert ("No WAL." in page.read_text()) == (not rows)


def test_the_command_writes_the_page_and_json_of_a_range(stage: Stage, tmp_path: Path) -> None:
    views = {name: stage.views[name] for name in ("relation_volume", "transaction_volume", "transactions")}
    write_tables(tmp_path / "tables", views, "delta")
    write_snapshot(snapshot(), tmp_path / "names.json")
    words = ["--tables", str(tmp_path / "tables"), "--catalog", str(tmp_path / "names.json"), "--top", "2", "--json"]
    words += ["--from", format_lsn(BEGIN_LSN + MIB), "--to", format_lsn(BEGIN_LSN + 3 * MIB)]
    answer = CliRunner().invoke(report_command, [*words, "--output", str(tmp_path / "report.html")])
    assert answer.exit_code == 0, answer.output
    printed = json.loads(answer.stdout)
    assert printed["headline"]["wal_bytes"] == sum(
        each["total_length"] for each in stage.night.records if MIB <= each["lsn"] - BEGIN_LSN < 3 * MIB
    )
    assert [row["name"] for row in printed["tables"]] == ["shop.public.audit", "shop.public.orders"]
    assert printed["transactions"][0]["xid"] == BULK_XID
    assert (tmp_path / "report.html").read_text().endswith("</html>")


def test_findings_and_advice_are_lines_of_text_whatever_names_are_in_them(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tables(tmp_path, {"relation_volume": stage.views["relation_volume"]}, files=1)
    name = "public.x\x1b]0;title\x07\nforged"
    advice = Advice(about=name, cause=f"{name} is large.", change=f"Drop {name}.", wal_bytes=1)
    found = msgspec.structs.replace(stage.report, findings=[f"{name} wrote most."], advice=[advice])
    monkeypatch.setattr(work, "make_report", lambda *_words, **_options: found)
    answer = CliRunner().invoke(report_command, ["--tables", str(tmp_path), "--output", str(tmp_path / "report.html")])
    assert answer.exit_code == 0, answer.output
    text = r"public.x\x1b]0;title\x07\nforged"
    assert answer.output.splitlines()[:-1] == [f"{text} wrote most.", f"{text} is large. Drop {text}."]


def test_names_in_the_folder_are_used_and_newer_ones_win(stage: Stage, tmp_path: Path) -> None:
    write_tables(tmp_path, {"relation_volume": stage.views["relation_volume"]})
    write_snapshot(snapshot(), tmp_path / NAMES_FILE)

    def names(*options: str) -> set[str]:
        answer = CliRunner().invoke(report_command, ["--tables", str(tmp_path), "--json", *options])
        assert answer.exit_code == 0, answer.output
        return {row["name"] for row in json.loads(answer.stdout)["relations"]}

    assert {"shop.public.audit", "shop.public.orders"} <= names()
    renamed = RelationFile(1663, DATABASE, AUDIT, AUDIT, "public", "journal", "table")
    write_snapshot(CatalogNames(1, datetime.now(UTC), {}, {}, {}, [renamed]), tmp_path / "newer.json")
    assert {"shop.public.journal", "shop.public.orders"} <= names("--catalog", str(tmp_path / "newer.json"))


def test_what_cannot_be_reported_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="has none of the tables"):
        look_for_tables(FolderTables(tmp_path))
    with pytest.raises(ConfigurationError, match="neither an LSN like"):
        parse_position("yesterday")


# The page.


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as program:
        yield program


@pytest.fixture(scope="module")
def file(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_page(stage.report, path)
    return path


@pytest.fixture(params=[(390, "dark"), (1280, "light")], ids=["390", "1280"])
def page(request: pytest.FixtureRequest, browser: Browser, file: Path) -> Iterator[Page]:
    """The page of the report in a browser of such a width and colours. It must cause no complaint, and load nothing."""
    width, scheme = request.param
    with opened(browser, file.as_uri(), width=width, scheme=scheme) as page:
        page.screenshot(path=file.with_name(f"report-{width}-{scheme}.png"), full_page=True)
        yield page
        assert page.title().startswith("WAL report")


def test_every_chart_is_drawn_with_its_data(page: Page, stage: Stage) -> None:
    assert page.locator("svg.bars").count() == 4
    for chart, layers in (("by-relation", 6), ("by-rmgr", 5), ("image-share", 1), ("transactions", 2)):
        boxes = page.eval_on_selector_all(
            f"#{chart} .bars path:not(.grid):not(.mark)",
            "paths => paths.map(path => path.getBoundingClientRect()).map(box => box.width * box.height)",
        )
        assert len(boxes) == layers
        assert max(boxes) > 1000
        colours = page.eval_on_selector_all(
            f"#{chart} .bars path:not(.grid):not(.mark)", "paths => paths.map(path => getComputedStyle(path).fill)"
        )
        assert len(set(colours)) == layers
        assert "rgb(0, 0, 0)" not in colours
    assert page.locator("#image-share .mark").get_attribute("d", timeout=1000).count("M") >= 10
    assert EVIL in "".join(page.locator("#by-relation .legend li").all_text_contents())
    assert page.locator("ol.advice li").count() == len(stage.report.advice) > 0


def test_text_is_readable_and_nothing_but_tables_is_wider_than_the_screen(page: Page) -> None:
    width = page.evaluate("window.innerWidth")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert (
        page.evaluate("Math.max(...[...document.querySelectorAll('figure, p, h2, dl')].map(e => e.scrollWidth))")
        <= width
    )
    sizes = page.evaluate("[...document.querySelectorAll('main *')].map(e => parseFloat(getComputedStyle(e).fontSize))")
    assert min(sizes) >= 11
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    text = page.evaluate("getComputedStyle(document.body).color")
    assert abs(_brightness(background) - _brightness(text)) > 150


def _brightness(colour: str) -> float:
    return sum(map(int, re.findall(r"\d+", colour)[:3])) / 3


def test_the_page_is_small_and_allows_nothing_but_its_style(file: Path) -> None:
    text = file.read_text()
    assert len(text.encode()) < 300_000
    assert "<script" not in text
    assert " style=" not in text
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    [style] = re.findall("<style>(.*?)</style>", text, re.DOTALL)
    allowed = f"'sha256-{b64encode(hashlib.sha256(style.encode()).digest()).decode()}'"
    assert policy == f"default-src 'none'; style-src {allowed}; base-uri 'none'; form-action 'none'"
