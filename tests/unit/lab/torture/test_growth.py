"""The verdict of a soak: who has grown, from samples."""

from collections.abc import Callable

import pytest

from walproxy.lab.torture.growth import Windows, growth_of, violations_of, windows_of
from walproxy.lab.torture.record import Sample

MIB = 1 << 20
HOUR = 3600.0


def samples(
    process: str,
    mib: Callable[[float], float] = lambda at_s: 50.0,
    descriptors: Callable[[float], int] = lambda at_s: 20,
    until_s: float = HOUR,
) -> list[Sample]:
    """A sample every ten seconds."""
    return [
        Sample(float(at_s), process, round(mib(at_s) * MIB), descriptors(at_s)) for at_s in range(0, int(until_s), 10)
    ]


def rules(found: list[Sample], seconds: float = HOUR) -> list[str]:
    return [violation.rule for violation in violations_of(found, seconds, lambda process: process != "postgres")]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (3600, (600, 1200, 2880)),  # An hour: minutes 10 to 20, and the last 12.
        (7200, (600, 1200, 5760)),
        (1200, (200, 440, 960)),
        (120, (20, 44, 96)),
    ],
)
def test_the_last_fifth_is_compared_with_ten_minutes_behind_the_warm_up_or_with_a_share(
    seconds: float, expected: tuple[float, float, float]
) -> None:
    assert windows_of(seconds) == pytest.approx(Windows(*expected))


def test_what_is_flat_when_it_is_warm_has_not_grown() -> None:
    found = samples("walproxy", lambda at_s: 30 + 20 * min(at_s / 600, 1))
    [growth] = growth_of(found, HOUR, lambda process: True)
    assert (growth.early_bytes, growth.late_bytes, growth.percent) == (50 * MIB, 50 * MIB, 0.0)
    assert rules(found) == []


@pytest.mark.parametrize(("late_mib", "expected"), [(52.4, []), (52.6, ["MemoryGrows"])])
def test_five_per_cent_more_memory_are_fine_and_not_more(late_mib: float, expected: list[str]) -> None:
    assert rules(samples("safekeeper1", lambda at_s: late_mib if at_s >= 2880 else 50.0)) == expected


@pytest.mark.parametrize(("late", "expected"), [(25, []), (26, ["DescriptorsGrow"])])
def test_five_more_file_descriptors_are_fine_and_not_more(late: int, expected: list[str]) -> None:
    assert rules(samples("safekeeper1", descriptors=lambda at_s: late if at_s >= 2880 else 20)) == expected


def test_a_slow_leak_is_named_with_its_figures() -> None:
    # Medians at 15 and at 54 minutes: 39 minutes of 0.1 MiB each.
    found = samples("safekeeper2", lambda at_s: 50 + 0.1 * at_s / 60)
    [violation] = violations_of(found, HOUR, lambda process: True)
    assert violation.message == "safekeeper2 has grown by 7.6 %, from 51.5 to 55.4 MiB in RAM; up to 5 % is fine"


def test_a_moment_of_much_memory_is_a_peak_and_no_growth() -> None:
    found = samples("walproxy", lambda at_s: 500 if 3000 <= at_s < 3100 else 50)
    [growth] = growth_of(found, HOUR, lambda process: True)
    assert (growth.percent, growth.peak_bytes) == (0.0, 500 * MIB)
    assert rules(found) == []


def test_postgresql_may_grow_and_is_shown() -> None:
    found = samples("postgres", lambda at_s: 50 + at_s / 60) + samples("walproxy")
    assert [(each.process, each.is_judged) for each in growth_of(found, HOUR, lambda name: name != "postgres")] == [
        ("postgres", False),
        ("walproxy", True),
    ]
    assert rules(found) == []


def test_who_ends_before_the_run_does_is_missed() -> None:
    assert rules(samples("walproxy", until_s=3000) + samples("safekeeper1")) == ["ProcessEnded"]


def test_who_comes_too_late_to_be_compared_is_not_passed_over() -> None:
    late = [sample for sample in samples("safekeeper3") if sample.at_s > 2000]
    assert rules(late + samples("walproxy")) == ["TooFewSamples"]
