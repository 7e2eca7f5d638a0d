"""What the demo prints of a step that does not hold: a broken guarantee, or a machine that is too slow."""

import io
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from walproxy.lab.demo import story
from walproxy.lab.demo.stage import DemoStage, Step, StepFailed, StepUnfinished


def played(error: Exception, slowdown: float, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Play a step that holds and one that raises; return the outcome's verdict and all that was printed."""
    monkeypatch.setattr(story, "slowdown", lambda: slowdown)
    console = Console(file=io.StringIO(), width=200)
    stage = DemoStage(cast("Any", SimpleNamespace(proxies=[])), clients=1)

    def act(stage: DemoStage) -> str:
        stage.notify("30 s, waiting until it replies; load average 20.0 on 2 CPUs")
        raise error

    steps = (Step("first", lambda stage: "seen"), Step("second", act), Step("third", lambda stage: "not reached"))
    outcome = story.play(stage, steps, console)
    console.print(story.summary(outcome, steps, stage))
    assert outcome.failed_step == 2 and outcome.seen == ["seen"]
    assert isinstance(console.file, io.StringIO)
    return outcome.verdict, console.file.getvalue()


@pytest.mark.parametrize("slowdown", [1.0, 10.0])
def test_an_effect_that_contradicts_a_guarantee_is_a_failure_whatever_the_load(
    slowdown: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict, text = played(StepFailed("3 acknowledged rows are lost"), slowdown, monkeypatch)
    assert verdict == "FAILED" and "a guarantee does not hold: 3 acknowledged rows are lost" in text


def test_a_wait_that_is_over_on_a_busy_machine_is_no_failure_of_a_guarantee(monkeypatch: pytest.MonkeyPatch) -> None:
    verdict, text = played(StepUnfinished("condition not met within 600 s: it replies"), 10.0, monkeypatch)
    assert verdict == "TOO SLOW"
    assert "FAILED" not in text and "this machine is too busy (load average" in text
    assert "30 s, waiting until it replies" in text


def test_a_wait_that_is_over_on_an_idle_machine_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    verdict, text = played(StepUnfinished("condition not met within 60 s: it replies"), 1.0, monkeypatch)
    assert verdict == "FAILED" and "condition not met within 60 s" in text
