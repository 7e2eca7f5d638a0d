"""What is done beside a run, again and again."""

import threading

import pytest

from safekeeper.base.errors import WalproxyError
from walproxy.lab.torture.repeatedly import Repeatedly

DEADLINE_S = 10.0


def test_it_is_done_at_once_and_again_until_it_is_left() -> None:
    calls: list[str] = []
    third = threading.Event()

    def call() -> None:
        calls.append(threading.current_thread().name)
        if len(calls) == 3:
            third.set()

    with Repeatedly("watcher", 0.001, call):
        assert third.wait(DEADLINE_S)
    done = len(calls)
    assert set(calls) == {"watcher"} and done >= 3
    assert not any(thread.name == "watcher" for thread in threading.enumerate())


def test_what_fails_beside_a_run_fails_the_run() -> None:
    failed = threading.Event()

    def call() -> None:
        failed.set()
        raise WalproxyError("the watcher has fallen asleep")

    with pytest.raises(WalproxyError, match="fallen asleep"), Repeatedly("watcher", 0.001, call):
        assert failed.wait(DEADLINE_S)


def test_what_has_failed_is_raised_where_it_is_checked_and_at_the_end() -> None:
    def call() -> None:
        raise WalproxyError("the watcher has fallen asleep")

    watcher = Repeatedly("watcher", 0.001, call)
    watcher.check()
    watcher.start()
    for raises in (watcher.stop, watcher.check):
        with pytest.raises(WalproxyError, match="fallen asleep"):
            raises()


def test_an_error_of_the_run_itself_goes_first() -> None:
    failed = threading.Event()

    def call() -> None:
        failed.set()
        raise WalproxyError("the watcher has fallen asleep")

    with pytest.raises(ZeroDivisionError), Repeatedly("watcher", 0.001, call):
        assert failed.wait(DEADLINE_S)
        raise ZeroDivisionError
