"""End the walsender that holds the proxy's slot: the winner of a term takes it over from a deposed proxy."""

import asyncio
import re

from walproxy.postgres.problems import PrimaryProblem, ProblemKind
from walproxy.postgres.sql_walsender import Value, urgent_sql

_POLL_S = 0.05
_INSUFFICIENT_PRIVILEGE = "42501"


class SlotHolder:
    """The walsender that is in the way of the winner of a term, which proves that the walsender's proxy is deposed.

    Args:
        conninfo: of the primary.
        slot: the name of an existing slot.
        timeout_s: for connecting, for each statement, and for the end of the walsender.

    Attributes:
        is_another: by now another walsender holds the slot. It was begun by the winner of a later term, and is not
            ended.
    """

    def __init__(self, conninfo: str, slot: str, timeout_s: float) -> None:
        self.conninfo = conninfo
        self.slot = slot
        self.timeout_s = timeout_s
        self.is_another = False
        self._pid: str | None = None

    def refused(self, text: str) -> None:
        """Take the pid of the walsender from the first refusal to stream: by the first look, another may have the slot.

        Args:
            text: `... slot "walproxy": replication slot "walproxy" is active for PID 4711`, in any language.
        """
        if self._pid is not None:
            return
        refusal = text.partition(f'slot "{self.slot}": ')[2]
        numbers = re.findall("[0-9]+", re.sub(rf"(?<![a-z0-9_]){self.slot}(?![a-z0-9_])", "", refusal))
        if len(numbers) == 1:
            self._pid = numbers[0]

    async def end(self) -> int | None:
        """End the walsender and wait until the slot is free; return its pid, None if the slot is free already.

        Raises:
            PrimaryProblem: why that is not possible now.
        """
        async with urgent_sql(self.conninfo, f'release slot "{self.slot}"', self.timeout_s) as value:
            return await self._end(value)

    async def _end(self, value: Value) -> int | None:
        held = f"SELECT (SELECT active_pid FROM pg_replication_slots WHERE slot_name = '{self.slot}')"
        pid = await value(held)
        if pid is None:
            return None
        in_use = f'slot "{self.slot}" is in use by walsender {pid}'
        self.is_another = self._pid not in (None, pid)
        if self.is_another:
            raise PrimaryProblem(ProblemKind.SLOT_IN_USE, f"{in_use}, which another proxy has begun meanwhile")
        self._pid = pid
        try:
            await value(f"SELECT pg_terminate_backend({pid})")
        except PrimaryProblem as problem:
            if problem.sqlstate != _INSUFFICIENT_PRIVILEGE:
                raise
            may_not = f"{in_use}, which this role may not end: run SELECT pg_terminate_backend({pid}) as a superuser"
            raise PrimaryProblem(ProblemKind.SLOT_IN_USE, f"{may_not}; waiting for it", problem.sqlstate) from None
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.timeout_s
        while await value(held) == pid:
            if loop.time() > deadline:
                has_not = f"{in_use}, which has not ended within {self.timeout_s:g} s of pg_terminate_backend"
                raise PrimaryProblem(ProblemKind.SLOT_IN_USE, f"{has_not}; waiting for it")
            await asyncio.sleep(_POLL_S)
        return int(pid)
