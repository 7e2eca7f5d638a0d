"""The walsender that is in the way is the one that the refusal names, in any language."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

import walproxy.postgres.slot_holder
from walproxy.postgres.problems import PrimaryProblem, problem_of_error
from walproxy.postgres.slot_holder import SlotHolder
from walproxy.postgres.sql_walsender import Value

REFUSALS = (
    ("walproxy", 'replication slot "walproxy" is active for PID 4711'),
    ("walproxy", "Replikations-Slot \u00bbwalproxy\u00ab ist aktiv f\u00fcr PID 4711"),
    ("walproxy", '\u30b9\u30ed\u30c3\u30c8"walproxy"\u306fPID4711\u3067\u4f7f\u7528\u4e2d\u3067\u3059'),
    ("slot_5", 'replication slot "slot_5" is active for PID 4711'),
    ("1", 'replication slot "1" is active for PID 4711'),
)


def refused(slot: str, text: str) -> str:
    """Return the refusal as `ReplicationConnection` raises it, without the advice."""
    return problem_of_error(f'stream TLI 17 from 3/5000028 with slot "{slot}"', "55006", text).plain


async def end(holder: SlotHolder, pid: str, monkeypatch: pytest.MonkeyPatch) -> int | None:
    """End the walsender; `pid` holds the slot until it is ended."""
    present: list[str | None] = [pid]

    @contextlib.asynccontextmanager
    async def sql(conninfo: str, doing: str, timeout_s: float) -> AsyncIterator[Value]:
        async def value(statement: str) -> str | None:
            if "pg_terminate_backend" in statement:
                present[0] = None
            return present[0]

        yield value

    monkeypatch.setattr(walproxy.postgres.slot_holder, "urgent_sql", sql)
    return await holder.end()


@pytest.mark.parametrize(("slot", "text"), REFUSALS)
def test_only_the_walsender_that_the_refusal_names_is_ended(
    slot: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = SlotHolder("", slot, 1.0)
    holder.refused(refused(slot, text))
    assert asyncio.run(end(holder, "4711", monkeypatch)) == 4711
    # A later refusal names another one, which was begun meanwhile.
    holder.refused(refused(slot, text.replace("4711", "4712")))
    with pytest.raises(PrimaryProblem, match="which another proxy has begun meanwhile"):
        asyncio.run(end(holder, "4712", monkeypatch))
    assert holder.is_another


def test_a_refusal_that_names_none_leaves_the_one_that_is_found_first(monkeypatch: pytest.MonkeyPatch) -> None:
    holder = SlotHolder("", "walproxy", 1.0)
    holder.refused(refused("walproxy", "it is in use"))
    assert asyncio.run(end(holder, "4711", monkeypatch)) == 4711
