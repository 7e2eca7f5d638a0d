"""A wait that reads what is not there yet goes on; outside of a wait the same look-up fails with its reason."""

import pytest

from tests.waiting import NotThereYet, entry, wait_for


def test_a_status_without_the_entry_is_not_yet_and_the_wait_goes_on() -> None:
    statuses = iter([[], [{"id": 2, "state": "streaming"}], [{"id": 1, "state": "disconnected"}]])
    wait_for(lambda: entry(next(statuses), "id", 1)["state"] == "disconnected", "it is missed", poll_s=0)


def test_a_wait_that_ends_names_what_was_missing() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"in vain until it is missed \(no entry with id = 1\)"):
        wait_for(lambda: entry([], "id", 1), "it is missed", timeout_s=0)
    with pytest.raises(NotThereYet):
        entry([], "id", 1)


def test_another_error_of_a_condition_is_not_swallowed() -> None:
    def broken() -> bool:
        raise KeyError("safekeeper1")

    with pytest.raises(KeyError):
        wait_for(broken, "never")


def test_a_description_that_cannot_be_made_does_not_hide_that_the_time_is_over() -> None:
    def no_leader() -> str:
        raise NotThereYet("no proxy leads")

    with pytest.raises(pytest.fail.Exception, match="no proxy leads"):
        wait_for(lambda: False, no_leader, timeout_s=0)
