"""Checks of control messages for what no valid peer sends, beyond the MessagePack types. Pure."""

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec

from safekeeper.base.errors import RemoteProtocolError
from safekeeper.base.events import (
    FIELD_BYTES_MAX,
    FIELDS_MAX,
    PAGE_EVENTS_MAX,
    TEXT_BYTES_MAX,
    Event,
    Field,
    KeptEvent,
)
from safekeeper.base.lsn import LSN_MAX, SEGMENT_SIZE_MAX, SEGMENT_SIZE_MIN
from safekeeper.consensus.control_state import NOBODY, LeaderId
from safekeeper.consensus.folder_state import FolderState
from safekeeper.consensus.membership import ADDRESS_BYTES_MAX, Member, Membership, check_quorum_sizes
from safekeeper.consensus.messages import (
    AgentExchange,
    AgentSettingsVersion,
    AgentView,
    Bootstrap,
    Bootstrapped,
    ChangeMembers,
    DigestRequest,
    Elected,
    FolderStates,
    KeptReport,
    PeerRead,
    PullSource,
    ReadRequest,
    Standby,
)
from safekeeper.consensus.term_history import TermHistory, check_history
from safekeeper.waldecode.format import RECORD_HEADER_SIZE
from safekeeper.waldecode.records import LogTail

STANDBYS_MAX = 1000
SOURCES_MAX = 100
FOLDERS_MAX = 200
STANDBY_NAME_BYTES_MAX = 63
PROBLEM_BYTES_MAX = 1000
AGENTS_MAX = 64
AGENT_NAME_BYTES_MAX = 63
AGENT_REPORT_BYTES_MAX = 4 << 10
AGENT_SETTINGS_BYTES_MAX = 16 << 10
EVENT_SOURCE_BYTES_MAX = 100
QUOTED_CHARACTERS_MAX = 200
# An id; it is part of log lines, JSON and file names.
WORD_BYTES_MAX = 32
WORD = re.compile(rf"[0-9A-Za-z_-]{{1,{WORD_BYTES_MAX}}}")
_RANDOM_ID = re.compile(r"[0-9a-f]{32}")


def check_control(message: Any) -> None:
    """Refuse a control message with a field that is out of range, too long, or empty and must not be.

    Raises:
        RemoteProtocolError: see above.
    """
    kind: Any = type(message)
    fields = zip(_plan_of(kind), msgspec.structs.astuple(message), strict=True)
    for (field, check, has_numbers, may_be_empty), value in fields:
        try:
            if value is not None:
                if has_numbers and type(value) is not str:
                    _check_numbers(value)
                if check is not None:
                    check(value)
            if not value and not may_be_empty:
                raise RemoteProtocolError("it cannot be empty")
        except RemoteProtocolError as error:
            raise RemoteProtocolError(f"{kind.__name__}.{field}: {error}") from error
    if kind in _WITH_RANGES and message.begin_lsn > message.end_lsn:
        raise RemoteProtocolError(f"{kind.__name__} of a range that ends before it begins")
    if kind is AgentExchange and bool(message.name) != bool(message.report):
        raise RemoteProtocolError(f"{kind.__name__} with a name or a report alone")


@cache
def _plan_of(kind: Any) -> tuple[tuple[str, Callable[[Any], None] | None, bool, bool], ...]:
    """Return the fields of a kind of message: name, check, whether it has numbers left to check, and may be empty."""
    never_empty = _NEVER_EMPTY.get(kind, ())
    return tuple(
        (field, _CHECKS.get(field), field not in _WITH_NUMBERS_CHECKED, field not in never_empty)
        for field in kind.__struct_fields__
    )


def _check_numbers(value: Any) -> None:
    """Refuse negative numbers: positions, terms, ids and sizes never are."""
    if isinstance(value, int):
        if not 0 <= value <= LSN_MAX:
            raise RemoteProtocolError(f"{value} is out of range")
    elif isinstance(value, tuple):
        for each in value:
            if type(each) is not str:
                _check_numbers(each)
    elif isinstance(value, msgspec.Struct):
        _check_numbers(msgspec.structs.astuple(value))


def _check_word(value: str) -> None:
    if WORD.fullmatch(value) is None:
        raise RemoteProtocolError(f"{value[:64]!r} is not 1 to {WORD_BYTES_MAX} letters and digits")


def _check_word_or_empty(value: str) -> None:
    if value:
        _check_word(value)


def _check_positive(value: int) -> None:
    if value <= 0:
        raise RemoteProtocolError(f"{value} is not positive")


def check_leader_id(leader_id: LeaderId) -> None:
    """Refuse a LeaderId that no proposer has.

    Raises:
        RemoteProtocolError: its term is not positive, or its proposer id is not a word.
    """
    _check_positive(leader_id.term)
    _check_word(leader_id.proposer_id)


def _check_anybody(leader_id: LeaderId) -> None:
    if leader_id != NOBODY:
        check_leader_id(leader_id)


def _check_segment_size(value: int) -> None:
    if value and (value & (value - 1) or not SEGMENT_SIZE_MIN <= value <= SEGMENT_SIZE_MAX):
        raise RemoteProtocolError(f"{value} is not a segment size: it must be a power of two from 1 MiB to 1 GiB")


def _check_membership(membership: Membership) -> None:
    _check_positive(membership.generation)
    check_quorum_sizes(membership)
    if not membership.members:
        raise RemoteProtocolError("it has no members")
    for half in membership.halves():
        _check_members(half)


def _check_members(members: tuple[Member, ...]) -> None:
    ids = [member.id for member in members]
    if ids != sorted(set(ids)) or ids[0] <= 0:
        raise RemoteProtocolError(f"the ids {str(ids)[:QUOTED_CHARACTERS_MAX]} are not positive and ascending")
    for member in members:
        _check_word(member.incarnation)
        _check_address(member.address)


def _check_term_history(history: TermHistory) -> None:
    check_history(history)


def _check_crcs(page_crcs: tuple[int, ...]) -> None:
    if page_crcs and max(page_crcs) > 0xFFFFFFFF:
        raise RemoteProtocolError("a CRC has more than 32 bits")


def _check_log_tail(tail: LogTail) -> None:
    if len(tail.record_head) > RECORD_HEADER_SIZE or tail.record_crc > 0xFFFFFFFF or tail.previous_lsn >= tail.end_lsn:
        raise RemoteProtocolError(f"{str(tail)[:QUOTED_CHARACTERS_MAX]} cannot be the end of a log")


def _check_standbys(standbys: tuple[Standby, ...]) -> None:
    if len(standbys) > STANDBYS_MAX:
        raise RemoteProtocolError(f"{len(standbys)} standbys are more than the maximum of {STANDBYS_MAX}")
    for standby in standbys:
        name = standby.name
        # Of numbers that are all within 64 bits, and of no others, `|` is, too.
        numbers = standby.write_lsn | standby.flush_lsn | standby.apply_lsn | standby.xmin | standby.catalog_xmin
        if not 0 <= numbers <= LSN_MAX:
            _check_numbers(standby)
        if len(name.encode()) > STANDBY_NAME_BYTES_MAX or not name.isprintable():
            raise RemoteProtocolError(f"{name[:64]!r} cannot be the name of a standby")


def _check_sources(sources: tuple[PullSource, ...]) -> None:
    if len(sources) > SOURCES_MAX:
        raise RemoteProtocolError(f"{len(sources)} sources are more than the maximum of {SOURCES_MAX}")
    for source in sources:
        _check_positive(source.safekeeper_id)
        _check_address(source.address)
        if not source.address:
            raise RemoteProtocolError(f"safekeeper {source.safekeeper_id} has no address")


def _check_folder(folder: FolderState) -> None:
    _check_positive(folder.safekeeper_id)
    _check_word(folder.incarnation)


def _check_folders(folders: tuple[FolderState, ...]) -> None:
    if len(folders) > FOLDERS_MAX:
        raise RemoteProtocolError(f"{len(folders)} data folders are more than the maximum of {FOLDERS_MAX}")
    for folder in folders:
        _check_folder(folder)


def check_agent_name(name: str) -> None:
    """Refuse what cannot be the name of an agent. Empty is fine: a command's.

    Raises:
        RemoteProtocolError: it is too long, or has characters that cannot be in a line.
    """
    if len(name.encode()) > AGENT_NAME_BYTES_MAX or not name.isprintable():
        raise RemoteProtocolError(f"{name[:64]!r} cannot be the name of an agent")


def _check_agent_report(report: bytes) -> None:
    if len(report) > AGENT_REPORT_BYTES_MAX:
        raise RemoteProtocolError(f"{len(report)} bytes are more than the maximum of {AGENT_REPORT_BYTES_MAX}")


def _check_agent_reports(reports: tuple[KeptReport, ...]) -> None:
    if len(reports) > AGENTS_MAX:
        raise RemoteProtocolError(f"{len(reports)} reports are more than the maximum of {AGENTS_MAX}")
    names = [kept.name for kept in reports]
    if names != sorted(set(names)) or "" in names:
        raise RemoteProtocolError("the names of the agents are not ascending")
    for kept in reports:
        check_agent_name(kept.name)
        _check_agent_report(kept.report)


def _check_agent_settings(settings: AgentSettingsVersion) -> None:
    _check_positive(settings.counter)
    if _RANDOM_ID.fullmatch(settings.author) is None:
        raise RemoteProtocolError(f"{settings.author[:64]!r} is not an author: 32 hexadecimal digits are required")
    if len(settings.content) > AGENT_SETTINGS_BYTES_MAX:
        raise RemoteProtocolError(
            f"{len(settings.content)} bytes are more than the maximum of {AGENT_SETTINGS_BYTES_MAX}"
        )


def _check_events(events: tuple[Event, ...] | tuple[KeptEvent, ...]) -> None:
    if len(events) > PAGE_EVENTS_MAX:
        raise RemoteProtocolError(f"{len(events)} events are more than the maximum of {PAGE_EVENTS_MAX}")
    for each in events:
        _check_event(each.event if isinstance(each, KeptEvent) else each)


def _check_event(event: Event) -> None:
    _check_word(event.id)
    _check_word(event.kind)
    if len(event.source.encode()) > EVENT_SOURCE_BYTES_MAX or not event.source.isprintable():
        raise RemoteProtocolError(f"{event.source[:64]!r} cannot be the source of an event")
    if len(event.text.encode()) > TEXT_BYTES_MAX or not event.text.isprintable():
        raise RemoteProtocolError(f"{event.text[:64]!r} is not one line of at most {TEXT_BYTES_MAX} bytes")
    if len(event.fields) > FIELDS_MAX:
        raise RemoteProtocolError(f"{len(event.fields)} fields are more than the maximum of {FIELDS_MAX}")
    for name, value in event.fields.items():
        _check_word(name)
        if not _is_field(value):
            raise RemoteProtocolError(f"{str(value)[:64]!r} cannot be the value of a field")


def _is_field(value: Field) -> bool:
    if isinstance(value, str):
        return len(value.encode()) <= FIELD_BYTES_MAX and value.isprintable()
    return -LSN_MAX <= value <= LSN_MAX  # False for a float that is not a number.


def _check_address(address: str) -> None:
    if len(address.encode()) > ADDRESS_BYTES_MAX or not address.isprintable():
        raise RemoteProtocolError(f"{address[:64]!r} is not the address of a member")


def _check_problem(problem: str) -> None:
    if len(problem.encode()) > PROBLEM_BYTES_MAX or not problem.isprintable():
        raise RemoteProtocolError(f"{problem[:64]!r} is not one line of at most {PROBLEM_BYTES_MAX} bytes")


_CHECKS: dict[str, Callable[[Any], None]] = {
    "protocol_version": _check_positive,
    "proposer_id": _check_word,
    "live_proposer_id": _check_word_or_empty,
    "safekeeper_id": _check_positive,
    "incarnation": _check_word,
    "cluster_id": _check_word_or_empty,
    "archive_id": _check_word_or_empty,
    "segment_size": _check_segment_size,
    "membership": _check_membership,
    "generation": _check_positive,
    "leader_id": check_leader_id,
    "promised": _check_anybody,
    "history": _check_term_history,
    "page_crcs": _check_crcs,
    "log_tail": _check_log_tail,
    "standbys": _check_standbys,
    "problem": _check_problem,
    "wanted": _check_members,
    "refusal": _check_problem,
    "sources": _check_sources,
    "folders": _check_folders,
    "known": _check_folder,
    "name": check_agent_name,
    "report": _check_agent_report,
    "reports": _check_agent_reports,
    "settings": _check_agent_settings,
    "events": _check_events,
}
# The checks of these fields include their numbers: standbys report often.
_WITH_NUMBERS_CHECKED = ("standbys",)
_WITH_RANGES = (ReadRequest, DigestRequest, PeerRead)
_NEVER_EMPTY: dict[type, tuple[str, ...]] = {
    AgentExchange: ("cluster_id",),
    AgentView: ("cluster_id",),
    Bootstrap: ("cluster_id", "system_id", "segment_size", "server_version"),
    Bootstrapped: ("cluster_id",),
    ChangeMembers: ("cluster_id", "wanted"),
    Elected: ("cluster_id", "system_id", "segment_size", "server_version", "history"),
    FolderStates: ("cluster_id", "folders"),
}
