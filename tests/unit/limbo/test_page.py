"""The state of an entry, derived from positions and the last sample of sessions."""

from walproxy.limbo.page import level_of, missing_members, state_of


def test_an_entry_that_a_quorum_has_is_confirmed_whenever_it_is_read() -> None:
    for waits in (None, True, False):
        assert state_of(100, 100, waits=waits, has_waited=False) == "confirmed"
        assert state_of(100, 99, waits=waits, has_waited=False) != "confirmed"


def test_a_session_waits_or_has_waited_or_is_unknown() -> None:
    assert state_of(100, 0, waits=True, has_waited=True) == "waiting"
    assert state_of(100, 0, waits=False, has_waited=True) == "detached"
    assert state_of(100, 0, waits=False, has_waited=False) == "received"
    assert state_of(100, 0, waits=None, has_waited=True) == "received", "an unknown session is not a cancelled one"


def test_members_lack_what_is_above_their_position_and_a_duplicate_acknowledgement_changes_nothing() -> None:
    flush_lsns = {3: 50, 1: 100, 2: 99}
    assert missing_members(100, flush_lsns) == missing_members(100, {**flush_lsns, 1: 100}) == [2, 3]
    assert missing_members(50, flush_lsns) == []


def test_a_level_is_shown_only_where_it_is_certain() -> None:
    assert level_of("abort", waits=None, has_waited=False) == "none"
    assert level_of("commit", waits=False, has_waited=False) == "none"
    assert level_of("commit", waits=False, has_waited=True) is None
    assert level_of("commit", waits=None, has_waited=False) is None
    assert level_of("abort_prepared", waits=True, has_waited=True) is None
