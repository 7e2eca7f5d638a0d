"""Whether a text is logged again."""

from safekeeper.base.log_once import LogOnce


def test_a_text_is_logged_once_until_it_changes() -> None:
    log = LogOnce()
    assert [log.is_new(text) for text in ("full", "full", "slow", "slow", "full")] == [True, False, True, False, True]
    assert log.logged == "full"


def test_after_a_reset_the_same_text_is_new() -> None:
    log = LogOnce()
    assert log.is_new("full")
    log.reset()
    assert log.logged == ""
    assert log.is_new("full")
