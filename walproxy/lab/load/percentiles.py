"""Percentiles of measured times."""

import math
from collections.abc import Sequence


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest of `values` that `percent` per cent of them do not exceed (the nearest rank)."""
    return sorted(values)[max(math.ceil(len(values) * percent / 100), 1) - 1]
