"""Find out whether a store refuses all but one of the puts that race for one name.

A commit to a Delta table is such a put: the one that wins is the next version. Some stores ignore the condition, and
some check it and then write, so that two puts that arrive together both succeed. A sequence of puts does not show that;
a race does, mostly. In a store that passes wrongly the later put replaces a version: the job that wrote the earlier one
finds another position with its next commit (rule X1), and ends.
"""

import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from safekeeper.archive.objects import PROBE_FOLDER
from safekeeper.archive.store import ObjectStore
from safekeeper.base.errors import ConfigurationError

_PUTS: Final = 8
_ROUNDS: Final = 3


def require_single_winner(store: ObjectStore) -> None:
    """Let puts race for a name, several times.

    Raises:
        ConfigurationError: more than one has succeeded.
        ArchiveError: the store.
    """
    with ThreadPoolExecutor(_PUTS) as pool:
        for _ in range(_ROUNDS):
            key = f"{PROBE_FOLDER}/{uuid.uuid4().hex}"
            try:
                winners = sum(pool.map(_racer(store, key), range(_PUTS)))
            finally:
                store.delete([key])
            # None at all: the reply to the winner was lost, and its client repeated the request.
            if winners > 1 or not store.probe():
                raise ConfigurationError(
                    f"{store.url} accepts several puts of one object that must not exist (If-None-Match), so commits "
                    "to Delta tables and states of jobs could be lost there: use a store with conditional puts, or a "
                    "folder"
                )


def _racer(store: ObjectStore, key: str) -> Callable[[int], bool]:
    return lambda number: store.put(key, b"%d" % number, absent=True)
