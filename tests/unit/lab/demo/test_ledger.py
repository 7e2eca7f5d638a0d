"""What the ledger answers about acknowledgements."""

import pytest

from walproxy.lab.demo.bank import Transfer
from walproxy.lab.demo.ledger import Acknowledgement, Ledger


@pytest.fixture
def ledger() -> Ledger:
    """Four transfers, (begun, returned): one that was under way for long returned third."""
    ledger = Ledger()
    for number, (begun_at, returned_at) in enumerate([(1.0, 1.1), (1.2, 1.5), (1.15, 3.0), (3.1, 3.2)]):
        ledger.acknowledged.append(Acknowledgement(Transfer(number, 1, 2, 10), begun_at, returned_at))
    return ledger


def test_acknowledgements_are_counted_in_a_half_open_range(ledger: Ledger) -> None:
    assert ledger.returned_between(1.1, 3.0) == 2
    assert ledger.returned_between(1.1, 3.01) == 3
    assert ledger.returned_between(4.0, 5.0) == 0


def test_the_first_transfer_begun_after_a_moment_is_not_the_first_that_returned_after_it(ledger: Ledger) -> None:
    first = ledger.first_begun_after(2.0)
    assert first is not None
    assert first.transfer.id == 3
    assert ledger.first_begun_after(3.15) is None


def test_the_longest_pause_counts_from_the_begin_and_to_the_end(ledger: Ledger) -> None:
    assert ledger.longest_pause_s(1.0, 3.3) == pytest.approx(1.5)
    assert ledger.longest_pause_s(3.1, 10.0) == pytest.approx(6.8)
    assert ledger.longest_pause_s(5.0, 7.0) == pytest.approx(2.0)


def test_the_last_id_is_the_highest_of_all_that_may_be_in_the_books(ledger: Ledger) -> None:
    assert Ledger().last_id() == 0
    assert ledger.last_id() == 3
    ledger.in_doubt.append(Transfer(7, 1, 2, 10))
    assert ledger.last_id() == 7
