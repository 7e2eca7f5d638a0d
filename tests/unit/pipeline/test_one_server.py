"""What the quorum's position is asked of, and what rows come from, is one server, though `conninfo` may name several.

A deposed primary that was started again shows commits that no quorum has.
"""

from collections.abc import Iterator
from typing import Any, cast

import pytest

from walproxy.pipeline.cdc.apply import copying
from walproxy.pipeline.cdc.server import Connection, SourceUnavailable


class Session:
    """A connection to a server of which only the time of its start is known.

    Attributes:
        is_closed: it was given back.
    """

    def __init__(self, start: str) -> None:
        self._start = start
        self.is_closed = False

    def execute(self, query: object, parameters: object = None) -> "Session":
        assert "pg_postmaster_start_time" in str(query), f"{query}: of a server that was not recognised"
        return self

    def fetchone(self) -> tuple[Any, ...]:
        return (self._start,)

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("starts", [("old", "new"), ("new", "old"), ("old", "old")], ids="-".join)
def test_a_copy_from_another_server_is_refused_before_anything_is_asked_of_it(
    starts: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = [Session(start) for start in starts]
    arriving: Iterator[Session] = iter(sessions)
    monkeypatch.setattr(copying, "connect", lambda conninfo, **options: next(arriving))
    copy = copying.snapshot("host=old,new", ["p"], cast(Connection, Session("new")))
    with pytest.raises(SourceUnavailable, match="led to different servers"):
        copy.__enter__()
    assert all(session.is_closed for session in sessions)
