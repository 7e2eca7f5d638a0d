"""Time limits that a busy machine extends."""

import os

import pytest

from walproxy.postgres import patience
from walproxy.postgres.patience import TimeLimit, load_text, slowdown


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which the test sets."""
    moment = [100.0]
    monkeypatch.setattr(patience.time, "monotonic", lambda: moment[0])
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    return moment


def set_load(monkeypatch: pytest.MonkeyPatch, load: float) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))


def test_an_idle_machine_has_the_limit_as_given(now: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    set_load(monkeypatch, 0.5)
    limit = TimeLimit(10.0)
    now[0] += 10.0
    assert not limit.is_over and slowdown() == 1.0
    now[0] += 0.1
    assert limit.is_over and limit.passed_s == pytest.approx(10.1)


def test_a_load_extends_the_limit_also_if_it_falls_again(now: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    set_load(monkeypatch, 20.0)
    limit = TimeLimit(10.0)
    now[0] += 11.0
    assert not limit.is_over and load_text() == "load average 20.0 on 2 CPUs"
    set_load(monkeypatch, 0.0)
    now[0] += 80.0
    assert not limit.is_over
    now[0] += 10.0
    assert limit.is_over
