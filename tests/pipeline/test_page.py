"""Pages as they were at LSNs, restored and compared with the bytes that the live server had then."""

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from safekeeper.base.errors import ConfigurationError, WalproxyError
from safekeeper.base.lsn import Lsn, format_lsn, parse_lsn
from tests.cluster_templates import cluster_template, init_by_copying
from tests.integration.restore.restore_fixtures import MIB, Past, make_past, remove_segment, take_backup
from tests.scratch import scratch_folder
from tests.unit.table_rows import open_table
from walproxy.cli.pipeline_commands.page import page as page_command
from walproxy.pipeline.decoder.views import Piece, view_batch
from walproxy.pipeline.input.opening import open_input
from walproxy.pipeline.input.pieces import decode_piece, plan_pieces
from walproxy.pipeline.jobs.catalog import RelationId
from walproxy.pipeline.pages.page import PAGE_BYTES, compare, header_of
from walproxy.pipeline.pages.private_server import PrivatePostgres
from walproxy.pipeline.pages.relation import PageId, RelationName, read_page
from walproxy.pipeline.pages.restore import PageRequest, _relation_id, restore_page
from walproxy.pipeline.pages.row import _name_of, _table_of
from walproxy.pipeline.schemas import arrow_schema
from walproxy.postgres.local_server import LocalPostgres, LocalPostgresFailed, find_servers
from walproxy.recovery.config import SourceConfig

DATABASE = "bank"


@dataclass
class Version:
    """What the live server's file had in a block when everything up to `at_lsn` was done."""

    at_lsn: Lsn
    content: bytes


@dataclass
class Bank:
    """A server, a backup, and versions of the first pages of a table and its index, made after the backup.

    Attributes:
        versions: by the path of the relation's file.
        early_lsn: before the backup was done.
        unfinished_lsn: where a transaction had not ended.
        unfinished_ctid, aborted_ctid: the rows of the table `entries` that it, and one that was aborted, had inserted.
    """

    past: Past
    early_lsn: Lsn = 0
    unfinished_lsn: Lsn = 0
    unfinished_ctid: str = ""
    aborted_ctid: str = ""
    table: str = ""
    index: str = ""
    versions: dict[str, list[Version]] = field(default_factory=dict)

    @property
    def backup(self) -> Path:
        return self.past.folder / "base"

    def execute(self, *statements: str) -> Any:
        with psycopg.connect(self.past.server.conninfo(dbname=DATABASE), autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def remember(self) -> None:
        """Keep the first pages as they are now."""
        [(lsn,)] = self.execute("SELECT pg_current_wal_insert_lsn()::text")
        self.execute("CHECKPOINT")
        for path in (self.table, self.index):
            content = (self.past.server.data_directory / path).read_bytes()
            block = 1 if path == self.index else 0
            version = Version(parse_lsn(lsn), content[block * PAGE_BYTES : (block + 1) * PAGE_BYTES])
            self.versions.setdefault(path, []).append(version)

    def leave_unfinished(self) -> None:
        """Insert a row in a transaction that is aborted, and one in a transaction that has not ended at a position."""
        insert = "INSERT INTO entries VALUES (12345678901234567890.123, %s) RETURNING ctid::text"
        with psycopg.connect(self.past.server.conninfo(dbname=DATABASE)) as connection:
            connection.execute("CREATE TABLE entries (amount numeric, note text)")
            connection.execute("ALTER TABLE entries ALTER note SET STORAGE EXTERNAL")
            connection.commit()
            [(self.aborted_ctid,)] = connection.execute(insert, ("aborted",)).fetchall()
            connection.rollback()
            [(self.unfinished_ctid,)] = connection.execute(insert, (1000 * "long ",)).fetchall()
            # The commit of another transaction: the WAL before it is on the disk.
            self.execute("CREATE TABLE later ()")
            [(lsn,)] = self.execute("SELECT pg_current_wal_flush_lsn()::text")
            self.unfinished_lsn = parse_lsn(lsn)
            connection.commit()

    def numbers(self, path: str) -> str:
        """What WAL calls the relation of a file base/DATABASE/FILE."""
        return f"1663/{path.removeprefix('base/')}"

    def words(self, relation: str, block: int, at_lsn: Lsn) -> list[str]:
        return [
            *("--relation", relation, "--block", str(block), "--at", format_lsn(at_lsn)),
            *("--backup", str(self.backup), "--archive", str(self.past.archive)),
        ]


@pytest.fixture(scope="module")
def bank() -> Iterator[Bank]:
    servers = find_servers()
    with scratch_folder() as folder:
        past = make_past(servers[max(servers)], folder, autovacuum="off", fsync="off")
        try:
            made = Bank(past)
            past.server.execute(f"CREATE DATABASE {DATABASE}")
            made.execute(
                "CREATE TABLE accounts (id int PRIMARY KEY, balance int, note text)",
                "INSERT INTO accounts SELECT number, 0, 'old' FROM generate_series(1, 20) number",
            )
            [(made.early_lsn,)] = [(parse_lsn(lsn),) for (lsn,) in made.execute("SELECT pg_current_wal_lsn()::text")]
            take_backup(past.server, made.backup)
            [(made.table, made.index)] = made.execute(
                "SELECT pg_relation_filepath('accounts'), pg_relation_filepath('accounts_pkey')"
            )
            made.execute("INSERT INTO accounts SELECT number, 0, 'new' FROM generate_series(21, 40) number")
            made.remember()
            made.execute(
                "UPDATE accounts SET balance = id WHERE id < 10",
                "SELECT pg_switch_wal()",
                "UPDATE accounts SET balance = 2 * balance WHERE id < 5",
                "DELETE FROM accounts WHERE id = 30",
            )
            made.remember()
            made.execute("BEGIN", "UPDATE accounts SET note = 'twice' WHERE id = 12", "COMMIT", "VACUUM accounts")
            made.remember()
            made.leave_unfinished()
            past.archive_up_to(past.flush_lsn())
            yield made
        finally:
            past.server.close()


def run(*words: str) -> Result:
    return CliRunner().invoke(page_command, words, catch_exceptions=True)


def test_a_version_is_byte_for_byte_what_the_server_had(bank: Bank, tmp_path: Path) -> None:
    version = bank.versions[bank.table][0]
    changed_lsn = header_of(version.content).lsn  # The very end of the record that has made it.
    output = tmp_path / "page.bin"
    answer = run(*bank.words(bank.numbers(bank.table), 0, changed_lsn), "--output", str(output), "--hex")
    assert answer.exit_code == 0, answer.exception
    assert output.read_bytes() == version.content
    assert f"changed last at {format_lsn(changed_lsn)}" in answer.output
    assert version.content[:8].hex(" ") in answer.output


def test_a_later_version_is_found_by_name_and_through_the_tables(bank: Bank, tmp_path: Path) -> None:
    """What differs from the live page is hints, which redo does not know."""
    version = bank.versions[bank.table][1]
    write_page_versions(bank, tmp_path)
    words = [*bank.words(f"{DATABASE}.public.accounts", 0, version.at_lsn), "--tables", str(tmp_path), "--json"]
    answer = run(*words)
    assert answer.exit_code == 0, answer.exception
    said = json.loads(answer.output)
    restored = base64.b64decode(said["content"])
    assert header_of(restored).lsn == header_of(version.content).lsn == parse_lsn(said["page_lsn"])
    assert compare(restored, version.content, "heap").ranges == []
    assert (said["last_record"]["rmgr"], said["last_record"]["operation"]) == ("Heap", "DELETE")
    assert said["image_lsn"] is not None
    assert said["records_since_image"] >= 4


def test_the_last_version_of_an_index_page_is_that_of_the_primary(bank: Bank) -> None:
    version = bank.versions[bank.index][2]
    words = [*bank.words(bank.numbers(bank.index), 1, version.at_lsn), "--json"]
    answer = run(*words, "--verify", bank.past.server.conninfo())
    assert answer.exit_code == 0, answer.exception
    said = json.loads(answer.output)
    assert said["primary"]["same"]
    assert said["primary"]["read_by"] == "file"
    assert parse_lsn(said["page_lsn"]) == header_of(version.content).lsn


def row_of(bank: Bank, ctid: str, at_lsn: Lsn, relation: str) -> dict[str, Any]:
    block, line = ctid.strip("()").split(",")
    answer = run(*bank.words(relation, int(block), at_lsn), "--line", line, "--json")
    assert answer.exit_code == 0, answer.exception
    row: dict[str, Any] = json.loads(answer.output, parse_float=Decimal)["row"]
    return row


def test_a_row_has_its_values_of_that_time_also_if_no_query_would_show_it(bank: Bank) -> None:
    at_lsn = bank.versions[bank.table][1].at_lsn
    old = row_of(bank, "(0,5)", at_lsn, bank.numbers(bank.table))
    assert (old["visible"], old["made"], old["ended"]) == (False, "committed", "committed")
    assert old["content"] == {"id": 5, "balance": 0, "note": "old"}
    block, line = old["version"]["next_ctid"]
    answer = run(*bank.words(f"{DATABASE}.public.accounts", block, at_lsn), "--line", str(line))
    made = f"made by transaction {old['version']['xmax']} (committed), not ended"
    assert f"row at line pointer {line}: visible at this LSN, {made}\n" in answer.output, answer.exception
    assert '\n  id       5\n  balance  5\n  note     "old"\n' in answer.output


def test_a_row_of_a_transaction_that_was_aborted_or_had_not_ended_is_not_visible(bank: Bank) -> None:
    aborted = row_of(bank, bank.aborted_ctid, bank.unfinished_lsn, f"{DATABASE}.public.entries")
    assert (aborted["visible"], aborted["made"], aborted["content"]["note"]) == (False, "aborted", "aborted")
    unfinished = row_of(bank, bank.unfinished_ctid, bank.unfinished_lsn, f"{DATABASE}.public.entries")
    assert not unfinished["visible"]
    # The number has more digits than a double. The text comes out of the TOAST table.
    assert unfinished["content"] == {"amount": Decimal("12345678901234567890.123"), "note": 1000 * "long "}


def write_page_versions(bank: Bank, folder: Path) -> None:
    """Write the table page_versions of the whole archive."""
    wal_input = open_input(str(bank.past.archive))
    path = wal_input.log_path()
    table = open_table(folder, "page_versions", "delta", arrow_schema("page_versions"))
    batches = [
        view_batch("page_versions", decode_piece(wal_input, path, piece), Piece(piece.begin_lsn, piece.end_lsn))
        for piece in plan_pieces(path, wal_input.extents(path))
    ]
    made = table.new_file().write(pa.RecordBatch.from_arrays(batch.columns, schema=table.schema) for batch in batches)
    assert made is not None
    table.commit(None, None, [made])


def request_of(bank: Bank, at_lsn: Lsn, archive: Path | None = None) -> PageRequest:
    sources = SourceConfig(str(archive or bank.past.archive), {}, None, (), False, 5.0)
    return PageRequest(RelationName(DATABASE, "public", "accounts"), 0, 0, at_lsn, bank.backup, sources)


def test_what_cannot_be_restored_is_refused_in_one_line_before_anything_is_copied(bank: Bank, tmp_path: Path) -> None:
    last = bank.versions[bank.table][2].at_lsn
    with pytest.raises(ConfigurationError, match="is newer than --at"):
        restore_page(request_of(bank, bank.early_lsn))
    with pytest.raises(ConfigurationError, match="does not reach --at"):
        restore_page(request_of(bank, last + 100 * MIB))
    archive = bank.past.copy_of_archive(tmp_path / "archive")
    name = remove_segment(archive, bank.versions[bank.table][0].at_lsn)
    with pytest.raises(WalproxyError, match=name) as hole:
        restore_page(request_of(bank, last, archive))
    assert "\n" not in str(hole.value)


def test_asking_for_a_relation_changes_no_page() -> None:
    servers = find_servers()
    with scratch_folder() as folder:
        binaries = servers[max(servers)]
        with LocalPostgres(binaries, folder / "data") as made:
            init_by_copying(made, cluster_template(binaries)).start()
            made.execute("CREATE TABLE accounts (id int)")  # Nobody has read its row of pg_class, and set hints there.
            made.stop()
        server = PrivatePostgres(binaries, folder / "data")
        assert server._options()["listen_addresses"] == ""
        before = {
            path: path.read_bytes()
            for path in (folder / "data" / "base").rglob("*")
            if path.name[0].isdigit() and path.is_file()
        }
        assert _relation_id(server, RelationName("postgres", "public", "accounts")).relation >= 16384
        assert before == {path: path.read_bytes() for path in before}
        assert _relation_id(server, RelationName("postgres", "pg_catalog", "pg_authid"))[:2] == (1664, 0)
        with pytest.raises(ConfigurationError, match=r"there was no relation postgres\.public\.it's"):
            _relation_id(server, RelationName("postgres", "public", "it's"))
        with pytest.raises(ConfigurationError, match="there was no database 'gone'"):
            _relation_id(server, RelationName("gone", "public", "accounts"))
        with pytest.raises(ConfigurationError, match="it is a view"):
            _relation_id(server, RelationName("postgres", "pg_catalog", "pg_views"))
        with pytest.raises(ConfigurationError, match="pg_class_oid_index was not a table at that LSN"):
            _table_of(server, RelationName("postgres", "pg_catalog", "pg_class_oid_index"))
        assert _name_of(server, RelationId(1664, 0, 1262)) == RelationName("template1", "pg_catalog", "pg_database")
        with pytest.raises(ConfigurationError, match="was not the file of a table at that LSN"):
            _name_of(server, RelationId(1663, 5, 99_999))
        with pytest.raises(ConfigurationError, match="there was no database 99 at that LSN"):
            _name_of(server, RelationId(1663, 99, 16384))
        with pytest.raises(LocalPostgresFailed, match="in single-user mode: division by zero"):
            server.ask_once("postgres", "SELECT 1 / 0 AS number")
        relation = _relation_id(server, RelationName("postgres", "pg_catalog", "pg_class"))
        page = read_page(folder / "data", PageId(relation, 0, 0))
        assert header_of(page).is_regular
        with pytest.raises(ConfigurationError, match="is beyond the end"):
            read_page(folder / "data", PageId(relation, 0, 9999))
        with pytest.raises(ConfigurationError, match="has no file at that LSN"):
            read_page(folder / "data", PageId(RelationId(1663, 5, 99_999), 0, 0))
