"""How long a sealer waits for others, and what it says. (The consensus: unit/proposer/test_proposer_purposes.py.)"""

import asyncio

import pytest

import walproxy.failover.sealer
from safekeeper.base.settings import Address
from safekeeper.net.safekeeper_connection import Credentials
from tests.unit.event_loop import DEADLINE_S, on_the_loop, until
from walproxy.failover.sealer import NotSealed, Sealer, sealing_run
from walproxy.proposer.purpose import Seal

DEAD = ((1, Address("127.0.0.1", 1)), (2, Address("127.0.0.1", 1)))


def sealer() -> Sealer:
    return Sealer(DEAD, takeover=False, credentials=Credentials(), timeout_s=DEADLINE_S, waiting=lambda problem: None)


@on_the_loop
async def test_a_proxy_that_is_alive_is_left_alone_and_one_that_was_just_killed_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(walproxy.failover.sealer, "_RIVAL_PATIENCE_S", 0.1)
    rival = sealer()
    running = asyncio.create_task(rival.run())
    try:
        sealing = asyncio.create_task(rival.pursue(Seal(1)))
        rival.proposer.candidacy.is_spare = True
        await until(lambda: rival._rival_since is not None)
        rival.proposer.candidacy.is_spare = False  # It was dead.
        await asyncio.sleep(0.2)
        assert not sealing.done()
        rival.proposer.candidacy.is_spare = True
        with pytest.raises(NotSealed, match="another proxy leads and has a primary: nothing is sealed"):
            await sealing
    finally:
        running.cancel()


@on_the_loop
async def test_without_a_quorum_the_reason_is_shown_while_it_waits_and_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(walproxy.failover.sealer, "_WAITING_INTERVAL_S", 0.05)
    shown: list[str] = []
    with pytest.raises(
        NotSealed,
        match=r"no term that seals timeline 1 after 1\.3 s: safekeeper 1: could not connect .*; safekeeper 2: ",
    ):
        async with sealing_run(DEAD, timeout_s=1.3, waiting=shown.append) as run:
            await run.pursue(Seal(1))
    assert shown and "safekeeper 1: could not connect" in shown[-1]


class Led:
    """A proposer whose term is led, or lost."""

    def __init__(self, elected: object) -> None:
        self.leadership: object | None = elected
        self.tail_elected: object | None = elected


@on_the_loop
async def test_a_term_that_is_lost_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    run = sealer()
    led = Led(object())
    monkeypatch.setattr(run, "proposer", led)
    run._handle(list)
    assert run.elected is led.leadership
    run.check()
    led.leadership = led.tail_elected = None
    run._handle(list)
    with pytest.raises(NotSealed, match=r"the term that .* is not led on"):
        run.check()
    assert run.elected is not None, "what it has sealed is known"
