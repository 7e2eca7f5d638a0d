"""No bytes of a peer's raise anything but what the decoder documents: the corpus, noise, and damaged frames."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS, attempt

CORPUS = Path(__file__).parent / "corpus"
# Their seeds have messages, too, that are refused at the end.
_WITH_STRANGERS = ("authentication", "scram", "session")
# test_schedules.py plays some of the others.
_DECODERS = [name for name, target in TARGETS.items() if not target.is_slow]
_CHECKS = [HealthCheck.too_slow]


@pytest.mark.parametrize("name", TARGETS)
def test_what_the_real_encoders_write_is_understood(name: str) -> None:
    understood = [attempt(name, seed) for seed in TARGETS[name].seeds()]
    assert any(understood) if name in _WITH_STRANGERS else all(understood)


@pytest.mark.parametrize("name", TARGETS)
def test_every_input_of_the_corpus_is_understood_or_refused(name: str) -> None:
    for path in sorted((CORPUS / name).glob("*")):
        attempt(name, path.read_bytes())


@pytest.mark.parametrize("name", _DECODERS)
@settings(max_examples=40, deadline=5000, suppress_health_check=_CHECKS)
@given(data=st.binary(max_size=300))
def test_noise_is_understood_or_refused(name: str, data: bytes) -> None:
    attempt(name, data)


@pytest.mark.parametrize("name", _DECODERS)
@settings(max_examples=80, deadline=5000, suppress_health_check=_CHECKS)
@given(data=st.data())
def test_a_valid_input_that_was_damaged_is_understood_or_refused(name: str, data: st.DataObject) -> None:
    damaged = bytearray(data.draw(st.sampled_from(list(TARGETS[name].seeds()))))
    for _ in range(data.draw(st.integers(1, 4))):
        begin = data.draw(st.integers(0, len(damaged)))
        end = min(len(damaged), begin + data.draw(st.integers(0, 4)))
        damaged[begin:end] = data.draw(st.binary(max_size=4) | st.sampled_from([b"\xff" * 8, b"\0" * 8, b"9" * 5000]))
    attempt(name, bytes(damaged))


def test_the_corpus_is_small_and_of_targets_that_there_are() -> None:
    paths = [path for path in CORPUS.rglob("*") if path.is_file()]
    assert {path.parent.name for path in paths} <= set(TARGETS)
    assert sum(path.stat().st_size for path in paths) <= 200 << 10
