"""The format of tables in a test that both formats pass: one of them by day, both by night."""

from typing import Final

import pytest

_DELTA: Final = "delta"
_ICEBERG: Final = "iceberg"

MOSTLY_DELTA: Final = (_DELTA, pytest.param(_ICEBERG, marks=pytest.mark.nightly))
MOSTLY_ICEBERG: Final = (_ICEBERG, pytest.param(_DELTA, marks=pytest.mark.nightly))
