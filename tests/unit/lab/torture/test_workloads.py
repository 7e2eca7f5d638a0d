"""The checks of the torture's workloads see what they are for, each in a history in which it was planted."""

import hashlib
from random import Random

import pytest

from safekeeper.base.errors import ConfigurationError
from walproxy.lab.demo.bank import ACCOUNTS, OPENING_BALANCE, Transfer
from walproxy.lab.list_append.transactions import Append
from walproxy.lab.torture.record import Operation, Outcome, Violation
from walproxy.lab.torture.workloads import WORKLOADS
from walproxy.lab.torture.workloads.append import AppendAttempt, Appended, AppendWorkload, ListContent, parse_append
from walproxy.lab.torture.workloads.bank import Bank, Books, parse_transfer
from walproxy.lab.torture.workloads.interface import shortened
from walproxy.lab.torture.workloads.lists import Lists, parse_lists
from walproxy.lab.torture.workloads.unique import InsertAttempt, Unique, parse_insert, payload

TRANSFERS = [Transfer(1, 3, 5, 17), Transfer(2, 5, 7, 4), Transfer(3, 7, 3, 9)]


def operation(
    workload: str, what: object, outcome: Outcome = "ok", begun_s: float = 1.0, ended_s: float = 1.1
) -> Operation:
    return Operation(1, workload, begun_s, ended_s, outcome, str(what))


def rules(violations: list[Violation]) -> list[str]:
    return [violation.rule for violation in violations]


# The bank.


def books(*transfers: Transfer, **wrong: int) -> Books:
    """What the bank holds after these transfers; `wrong` accounts, as a7=100, have so much instead."""
    balances = dict.fromkeys(range(1, ACCOUNTS + 1), OPENING_BALANCE)
    for transfer in transfers:
        balances[transfer.source] -= transfer.amount
        balances[transfer.target] += transfer.amount
    return Books({**balances, **{int(name[1:]): balance for name, balance in wrong.items()}}, list(transfers))


def transfers(*outcomes: Outcome) -> list[Operation]:
    return [operation("bank", each, outcome) for each, outcome in zip(TRANSFERS, outcomes, strict=True)]


def test_a_bank_whose_book_is_what_clients_were_told_is_fine() -> None:
    assert Bank().check(books(*TRANSFERS), transfers("ok", "ok", "ok")) == []


def test_a_transfer_in_doubt_may_be_in_the_book_or_not() -> None:
    assert Bank().check(books(*TRANSFERS), transfers("ok", "ok", "unknown")) == []
    assert Bank().check(books(*TRANSFERS[:2]), transfers("ok", "ok", "unknown")) == []


def test_an_acknowledged_transfer_that_is_not_in_the_book_is_lost() -> None:
    [violation] = Bank().check(books(*TRANSFERS[:2]), transfers("ok", "ok", "ok"))
    assert violation == Violation("Lost", "transfer 3: 7 -> 3, 9: acknowledged at 1.100 s, and not in the book")


def test_a_transfer_with_another_amount_in_the_book_is_changed() -> None:
    changed = TRANSFERS[0]._replace(amount=18)
    assert rules(Bank().check(books(changed, *TRANSFERS[1:]), transfers("ok", "ok", "ok"))) == ["Changed"]


def test_a_transfer_that_failed_or_that_nobody_tried_is_a_stranger_in_the_book() -> None:
    assert rules(Bank().check(books(*TRANSFERS), transfers("ok", "ok", "fail"))) == ["Stranger"]
    assert rules(Bank().check(books(*TRANSFERS), transfers("ok", "ok", "ok")[:2])) == ["Stranger"]


def test_money_from_nowhere_is_seen() -> None:
    [violation] = Bank().check(books(*TRANSFERS, a9=OPENING_BALANCE + 1), transfers("ok", "ok", "ok"))
    assert violation == Violation("Balance", "account 9 has 10001, and by the book 10000")


# Lists.


def lists(*elements: Appended, **lengths: int) -> ListContent:
    """Lists with these elements, as long as they are unless `lengths` says more, as k1=7."""
    counted = {key: sum(each.key == key for each in elements) for key in (1, 2)}
    return ListContent({**counted, **{int(name[1:]): length for name, length in lengths.items()}}, list(elements))


def append(key: int, position: int | None, value: int, outcome: Outcome = "ok", at_s: float | None = None) -> Operation:
    begun_s = float(value) if at_s is None else at_s
    what = f"append {value} to list {key}: position {'?' if position is None else position}"
    return operation("append", what, outcome, begun_s, begun_s + 0.5)


def test_lists_that_hold_what_was_appended_are_fine() -> None:
    state = lists(Appended(1, 1, 10), Appended(1, 2, 11), Appended(2, 1, 12))
    history = [append(1, 1, 10), append(1, 2, 11), append(2, 1, 12, "unknown"), append(2, None, 13, "fail")]
    assert AppendWorkload().check(state, history) == []


def test_an_acknowledged_append_that_is_not_in_its_list_is_lost() -> None:
    [violation] = AppendWorkload().check(lists(Appended(1, 1, 10)), [append(1, 1, 10), append(1, 2, 11)])
    assert violation.rule == "Lost"
    assert "append 11 to list 1: position 2" in violation.message


def test_an_element_at_another_position_than_its_client_was_told_is_changed() -> None:
    assert rules(AppendWorkload().check(lists(Appended(1, 1, 10)), [append(1, 2, 10)])) == ["Changed"]


def test_a_list_shorter_than_its_length_has_lost_something() -> None:
    assert rules(AppendWorkload().check(lists(Appended(1, 1, 10), k1=2), [append(1, 1, 10)])) == ["Lost"]


def test_an_element_that_is_there_twice_is_seen() -> None:
    state = lists(Appended(1, 1, 10), Appended(1, 2, 10))
    assert "Twice" in rules(AppendWorkload().check(state, [append(1, 1, 10)]))


def test_a_position_that_was_given_away_twice_is_seen() -> None:
    state = lists(Appended(1, 1, 10), Appended(1, 1, 11))
    assert "Twice" in rules(AppendWorkload().check(state, [append(1, 1, 10), append(1, 1, 11, at_s=10.1)]))


def test_an_element_whose_append_had_failed_is_a_stranger() -> None:
    assert rules(AppendWorkload().check(lists(Appended(1, 1, 10)), [append(1, 1, 10, "fail")])) == ["Stranger"]
    assert rules(AppendWorkload().check(lists(Appended(1, 1, 10)), [])) == ["Stranger"]


def test_an_append_before_one_that_had_ended_when_it_began_is_reordered() -> None:
    state = lists(Appended(1, 2, 10), Appended(1, 1, 11))
    [violation] = AppendWorkload().check(state, [append(1, 2, 10), append(1, 1, 11)])
    assert violation.rule == "Reordered"
    assert violation.message.startswith("append 11 to list 1: position 1: begun at 11.000 s, after append 10 to list 1")


def test_appends_at_the_same_time_may_come_in_any_order() -> None:
    state = lists(Appended(1, 2, 10), Appended(1, 1, 11))
    assert AppendWorkload().check(state, [append(1, 2, 10, at_s=5.0), append(1, 1, 11, at_s=5.4)]) == []


# Rows.


def rows(*numbers: int) -> list[tuple[int, str]]:
    return [(number, hashlib.md5(payload(number).encode()).hexdigest()) for number in numbers]


def inserts(*outcomes: Outcome) -> list[Operation]:
    return [operation("unique", InsertAttempt(number), outcome) for number, outcome in enumerate(outcomes, start=19)]


def test_rows_that_are_there_once_are_fine() -> None:
    assert Unique().check(rows(19, 20), inserts("ok", "unknown", "fail")) == []
    assert Unique().check(rows(19), inserts("ok", "unknown", "fail")) == []


def test_an_acknowledged_row_that_is_missing_is_lost() -> None:
    assert rules(Unique().check(rows(20), inserts("ok", "ok"))) == ["Lost"]


def test_a_row_that_is_there_twice_is_seen() -> None:
    assert rules(Unique().check(rows(19, 19, 20), inserts("ok", "ok"))) == ["Twice"]


def test_a_row_with_other_content_is_changed() -> None:
    assert rules(Unique().check([*rows(19), (20, "00")], inserts("ok", "ok"))) == ["Changed"]


def test_a_row_that_had_failed_or_that_nobody_inserted_is_a_stranger() -> None:
    assert rules(Unique().check(rows(19, 20), inserts("ok", "fail"))) == ["Stranger"]
    assert rules(Unique().check(rows(19, 20), inserts("ok"))) == ["Stranger"]


def test_one_row_in_twenty_is_larger_than_two_pages() -> None:
    assert sum(len(payload(number)) > 16 << 10 for number in range(200)) == 10


# Serializable transactions.


def serial(at_s: float, what: str, outcome: Outcome = "ok") -> Operation:
    return operation("lists", what, outcome, at_s, at_s + 0.5)


def test_transactions_that_a_serial_order_explains_are_fine() -> None:
    history = [
        serial(1, "append 8 to 5; read 5: 8"),
        serial(2, "read 5: 8; append 16 to 6"),
        serial(3, "read 6: ?", "fail"),
    ]
    assert Lists().check({5: (8,), 6: (16,)}, history) == []


def test_an_acknowledged_append_that_the_lists_lack_at_the_end_is_lost() -> None:
    [violation] = Lists().check({5: (8,)}, [serial(1, "append 8 to 5"), serial(2, "read 5: 8; append 16 to 5")])
    assert violation.rule == "Lost"
    assert "[16], appended to list 5 by client 1 at 2.000 s" in violation.message


def test_a_stale_read_of_an_acknowledged_transaction_is_found() -> None:
    [violation] = Lists().check({5: (8,)}, [serial(1, "append 8 to 5"), serial(2, "read 5: -")])
    assert violation.rule == "G-single-realtime"
    assert "client 1 at 2.000 s began after client 1 at 1.000 s was acknowledged" in violation.message
    assert Lists().check({5: (8,)}, [serial(1, "append 8 to 5"), serial(2, "read 5: -", "unknown")]) == []


# All of them.


def test_what_an_attempt_says_of_itself_can_be_read_again() -> None:
    chance = Random(7)
    transfer, append_attempt, insert, _ = (workload.attempt(12, chance) for workload in WORKLOADS)
    assert isinstance(transfer, Transfer)
    assert parse_transfer(str(transfer)) == transfer
    assert isinstance(append_attempt, AppendAttempt)
    parsed = parse_append(str(append_attempt))
    assert (parsed.value, parsed.position) == (12, None)
    assert parse_insert(str(insert)) == 12
    serials = [parse_lists(str(Lists().attempt(number, chance))) for number in range(40)]
    numbers = [{step.value // 8 for step in steps if isinstance(step, Append)} for steps in serials]
    assert all(each <= {number} for number, each in enumerate(numbers))
    assert sum(map(bool, numbers)) > 20


@pytest.mark.parametrize("parse", [parse_transfer, parse_append, parse_insert, parse_lists])
def test_a_history_that_cannot_be_read_is_refused(parse: object) -> None:
    assert callable(parse)
    with pytest.raises(ConfigurationError, match="'withdraw 12' in the history is not"):
        parse("withdraw 12")


def test_each_check_passes_over_operations_of_other_workloads() -> None:
    assert Bank().check(books(), [*inserts("ok"), append(1, 1, 10)]) == []
    assert AppendWorkload().check(lists(), [*inserts("ok"), *transfers("ok", "ok", "ok")]) == []
    assert Lists().check({}, [*inserts("ok"), append(1, 1, 10)]) == []
    assert Unique().check([], [append(1, 1, 10), *transfers("ok", "ok", "ok")]) == []


def test_of_many_violations_the_first_are_told_and_how_many_there_are() -> None:
    violations = shortened("Lost", [f"row {number}" for number in range(25)])
    assert len(violations) == 11
    assert violations[-1] == Violation("Lost", "15 more like these")
