"""Commands of replication clients: both grammars, and what is none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safekeeper.base.errors import RemoteProtocolError
from safekeeper.base.lsn import LSN_MAX, format_lsn
from safekeeper.base.timelines import TLI_MAX
from safekeeper.pgwire.commands import (
    Command,
    CreateSlot,
    DropSlot,
    EmptyQuery,
    IdentifySystem,
    ReadSlot,
    Select,
    SetName,
    Show,
    StartReplication,
    TimelineHistory,
    Unsupported,
    parse_command,
)


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("IDENTIFY_SYSTEM", IdentifySystem()),
        ("identify_system;", IdentifySystem()),
        ("  IDENTIFY_SYSTEM \n; ", IdentifySystem()),
        ("SHOW wal_segment_size", Show("wal_segment_size")),
        ("SHOW Data_Directory_Mode;", Show("data_directory_mode")),
        ("SHOW some.setting", Show("some.setting")),
        ("TIMELINE_HISTORY 2", TimelineHistory(2)),
        (f"TIMELINE_HISTORY {TLI_MAX}", TimelineHistory(TLI_MAX)),
        ("READ_REPLICATION_SLOT wp", ReadSlot("wp")),
        ('READ_REPLICATION_SLOT "wp"', ReadSlot("wp")),
        ("DROP_REPLICATION_SLOT wp", DropSlot("wp", wait=False)),
        ('DROP_REPLICATION_SLOT "wp" WAIT;', DropSlot("wp", wait=True)),
        ("CREATE_REPLICATION_SLOT wp PHYSICAL", CreateSlot("wp", temporary=False, reserve_wal=False)),
        ("CREATE_REPLICATION_SLOT wp PHYSICAL RESERVE_WAL", CreateSlot("wp", temporary=False, reserve_wal=True)),
        (
            'CREATE_REPLICATION_SLOT "pg_walreceiver_4711" TEMPORARY PHYSICAL (RESERVE_WAL)',
            CreateSlot("pg_walreceiver_4711", temporary=True, reserve_wal=True),
        ),
        ("create_replication_slot wp physical (reserve_wal true)", CreateSlot("wp", temporary=False, reserve_wal=True)),
        ("CREATE_REPLICATION_SLOT wp PHYSICAL (RESERVE_WAL 'on')", CreateSlot("wp", temporary=False, reserve_wal=True)),
        ("CREATE_REPLICATION_SLOT wp PHYSICAL (RESERVE_WAL 0)", CreateSlot("wp", temporary=False, reserve_wal=False)),
        (
            "CREATE_REPLICATION_SLOT wp PHYSICAL (RESERVE_WAL false);",
            CreateSlot("wp", temporary=False, reserve_wal=False),
        ),
        ("START_REPLICATION 0/3000000 TIMELINE 1", StartReplication(None, 0x3000000, 1)),
        ("START_REPLICATION PHYSICAL 16/B374D848", StartReplication(None, 0x16B374D848, None)),
        ('START_REPLICATION SLOT "wp" 0/3000000 TIMELINE 2', StartReplication("wp", 0x3000000, 2)),
        ("start_replication slot wp physical dead/beef timeline 7", StartReplication("wp", 0xDEAD0000BEEF, 7)),
        ("START_REPLICATION FFFFFFFF/FFFFFFFF", StartReplication(None, LSN_MAX, None)),
        ("", EmptyQuery()),
        (" \t\n;", EmptyQuery()),
        ("SELECT 1;", Select(("1",))),
        ("select version(), pg_is_in_recovery()", Select(("version()", "pg_is_in_recovery()"))),
        (
            "SELECT slot_name, Active FROM pg_replication_slots WHERE slot_type = 'physical' AND slot_name='it''s'",
            Select(("slot_name", "active"), "pg_replication_slots", (("slot_type", "physical"), ("slot_name", "it's"))),
        ),
        (
            "SELECT usesuper FROM pg_user WHERE usename = CURRENT_USER",
            Select(("usesuper",), "pg_user", (("usename", None),)),
        ),
        ("SET application_name TO barman", SetName("barman")),
        ("SET application_name = 'bar man';", SetName("bar man")),
    ],
)
def test_command_is_understood(text: str, command: Command) -> None:
    assert parse_command(text) == command


def test_bare_names_are_folded_and_quoted_ones_are_not() -> None:
    assert parse_command("READ_REPLICATION_SLOT Wp") == ReadSlot("wp")
    assert parse_command('READ_REPLICATION_SLOT "Wp"') == ReadSlot("Wp")
    assert parse_command('READ_REPLICATION_SLOT "a ""b"" c"') == ReadSlot('a "b" c')


def test_a_quoted_keyword_is_a_name() -> None:
    assert parse_command('DROP_REPLICATION_SLOT "wait" WAIT') == DropSlot("wait", wait=True)
    assert parse_command('START_REPLICATION SLOT "physical" 0/0') == StartReplication("physical", 0, None)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("BASE_BACKUP ( LABEL 'x', PROGRESS )", "a base backup"),
        ("BASE_BACKUP LABEL 'x' PROGRESS", "a base backup"),
        ("UPLOAD_MANIFEST", "an incremental backup"),
        ("ALTER_REPLICATION_SLOT wp (FAILOVER true)", "changing a slot"),
        ("CREATE_REPLICATION_SLOT wp LOGICAL pgoutput (SNAPSHOT 'nothing')", "logical replication"),
        ("CREATE_REPLICATION_SLOT wp TEMPORARY LOGICAL pgoutput", "logical replication"),
        ("START_REPLICATION SLOT wp LOGICAL 0/0 (proto_version '1')", "logical replication"),
        ("SELECT pg_catalog.set_config('search_path', '', false)", "SQL"),
        ("select 1; select 2", "SQL"),
        ("SELECT", "SQL"),
        ("SELECT now() + '1 day'", "SQL"),
        ("SELECT name FROM pg_settings WHERE name IN ('a', 'b')", "SQL"),
        ("SELECT * FROM ledger", "SQL"),
        ("SET application_name", "SQL"),
        ("SET work_mem TO '1GB'", "SQL"),
        ("IDENTIFY_SYSTEMS", "SQL"),
    ],
)
def test_command_for_a_database_is_unsupported_and_says_where_to_go(text: str, what: str) -> None:
    command = parse_command(text)
    assert isinstance(command, Unsupported)
    assert command.what == what
    assert "primary" in command.hint


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("IDENTIFY_SYSTEM now", "expected nothing more"),
        ("IDENTIFY_SYSTEM;;", "expected nothing more"),
        ("SHOW", "expected a name"),
        ("SHOW 7", "expected a name"),
        ("SHOW a.", "expected a name"),
        ("TIMELINE_HISTORY", "expected a timeline"),
        ("TIMELINE_HISTORY 0", "expected a timeline of 1 or higher"),
        (f"TIMELINE_HISTORY {TLI_MAX + 1}", "expected a timeline of 1 or higher"),
        ("TIMELINE_HISTORY " + "9" * 5000, "expected a timeline of 1 or higher"),
        ("TIMELINE_HISTORY -1", "expected a replication command"),
        ('READ_REPLICATION_SLOT ""', "expected a replication command"),
        ('READ_REPLICATION_SLOT "wp', "expected a replication command"),
        ("CREATE_REPLICATION_SLOT wp", "expected PHYSICAL"),
        ("CREATE_REPLICATION_SLOT wp PHYSICAL ()", "expected RESERVE_WAL"),
        ("CREATE_REPLICATION_SLOT wp PHYSICAL (RESERVE_WAL", r'expected "\)"'),
        ("CREATE_REPLICATION_SLOT wp PHYSICAL (RESERVE_WAL maybe)", "expected true or false"),
        ("CREATE_REPLICATION_SLOT wp PHYSICAL (RESERVE_WAL, RESERVE_WAL)", r'expected "\)"'),
        ("CREATE_REPLICATION_SLOT wp PHYSICAL (TWO_PHASE)", "expected RESERVE_WAL"),
        ("START_REPLICATION", "expected an LSN"),
        ("START_REPLICATION SLOT 0/0", "expected a name"),
        ("START_REPLICATION 0", "expected an LSN"),
        ("START_REPLICATION 0/123456789", "expected an LSN"),
        ("START_REPLICATION 0/0 TIMELINE", "expected a timeline"),
        ("START_REPLICATION 0/0 TIMELINE 0", "expected a timeline of 1 or higher"),
        ("START_REPLICATION 0/0 TIMELINE 1 1", "expected nothing more"),
    ],
)
def test_command_that_is_not_written_as_one_is_refused(text: str, expected: str) -> None:
    with pytest.raises(RemoteProtocolError, match=expected) as caught:
        parse_command(text)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("text", ["\0", "-- comment", "(", "7", "é", "'IDENTIFY_SYSTEM'"])
def test_text_without_a_word_is_no_command(text: str) -> None:
    with pytest.raises(RemoteProtocolError, match="not a replication command"):
        parse_command(text)


@given(
    st.text()
    | st.sampled_from(
        ["SHOW ", "START_REPLICATION ", "CREATE_REPLICATION_SLOT ", "SELECT ", "SET application_name "]
    ).flatmap(lambda word: st.text(alphabet="ab\"';(),./01 \0\n\xe9", max_size=30).map(lambda rest: word + rest))
)
def test_any_text_is_a_command_or_a_protocol_error_of_one_line(text: str) -> None:
    try:
        parse_command(text)
    except RemoteProtocolError as error:
        assert str(error).isprintable()


@given(
    st.none() | st.text(alphabet='abz_09" ;éA', min_size=1, max_size=70),
    st.integers(0, LSN_MAX),
    st.none() | st.integers(1, TLI_MAX),
)
def test_every_start_that_can_be_written_is_read(slot: str | None, begin_lsn: int, tli: int | None) -> None:
    text = "START_REPLICATION"
    if slot is not None:
        quoted = slot.replace('"', '""')
        text += f' SLOT "{quoted}"'
    text += f" {format_lsn(begin_lsn)}"
    if tli is not None:
        text += f" TIMELINE {tli}"
    assert parse_command(text) == StartReplication(slot, begin_lsn, tli)
