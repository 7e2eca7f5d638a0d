"""The checks of the torture's workloads see what they are for, each in a history in which it was planted."""

import hashlib
from random import Random

from walproxy.lab.demo.bank import ACCOUNTS, OPENING_BALANCE, Transfer
from walproxy.lab.list_append.transactions import Append, Read, Step
from walproxy.lab.list_append.workload import WishedStatement
from walproxy.lab.torture.record import Operation, Outcome, Violation
from walproxy.lab.torture.workloads.bank import Bank, Books
from walproxy.lab.torture.workloads.interface import Try, shortened
from walproxy.lab.torture.workloads.lists import Lists, ListsAttempt
from walproxy.lab.torture.workloads.unique import InsertAttempt, Unique, payload

TRANSFERS = [Transfer(1, 3, 5, 17), Transfer(2, 5, 7, 4), Transfer(3, 7, 3, 9)]


def tried(workload: str, attempt: object, outcome: Outcome = "ok", begun_s: float = 1.0, ended_s: float = 1.1) -> Try:
    return Try(Operation(1, workload, begun_s, ended_s, outcome, str(attempt)), attempt)


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


def transfers(*outcomes: Outcome) -> list[Try]:
    return [tried("bank", each, outcome) for each, outcome in zip(TRANSFERS, outcomes, strict=True)]


def test_a_bank_whose_book_is_what_clients_received_is_fine() -> None:
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


# Rows.


def rows(*numbers: int) -> list[tuple[int, str]]:
    return [(number, hashlib.md5(payload(number).encode()).hexdigest()) for number in numbers]


def inserts(*outcomes: Outcome) -> list[Try]:
    return [tried("unique", InsertAttempt(number), outcome) for number, outcome in enumerate(outcomes, start=19)]


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


def serial(at_s: float, *steps: Step, outcome: Outcome = "ok") -> Try:
    attempt = ListsAttempt(())
    attempt.done.extend(steps)
    return tried("lists", attempt, outcome, at_s, at_s + 0.5)


def test_transactions_that_a_serial_order_explains_are_fine() -> None:
    history = [
        serial(1, Append(5, 8), Read(5, (8,))),
        serial(2, Read(5, (8,)), Append(6, 16)),
        serial(3, outcome="fail"),
    ]
    assert Lists().check({5: (8,), 6: (16,)}, history) == []


def test_an_acknowledged_append_that_the_lists_lack_at_the_end_is_lost() -> None:
    history = [serial(1, Append(5, 8)), serial(2, Read(5, (8,)), Append(5, 16))]
    [violation] = Lists().check({5: (8,)}, history)
    assert violation.rule == "Lost"
    assert "[16], appended to list 5 by client 1 at 2.000 s" in violation.message


def test_a_stale_read_of_an_acknowledged_transaction_is_found() -> None:
    first = serial(1, Append(5, 8))
    [violation] = Lists().check({5: (8,)}, [first, serial(2, Read(5, ()))])
    assert violation.rule == "G-single-realtime"
    assert "client 1 at 2.000 s began after client 1 at 1.000 s was acknowledged" in violation.message
    assert Lists().check({5: (8,)}, [first, serial(2, Read(5, ()), outcome="unknown")]) == []


def test_a_transaction_that_did_not_get_far_has_all_its_appends_and_no_read_without_a_reply() -> None:
    attempt = ListsAttempt((WishedStatement(5, None), WishedStatement(5, 8), WishedStatement(6, None)))
    assert (attempt.steps, str(attempt)) == ((Append(5, 8),), "read 5: ?; append 8 to 5; read 6: ?")
    attempt.done.append(Read(5, ()))
    assert (attempt.steps, str(attempt)) == ((Read(5, ()), Append(5, 8)), "read 5: -; append 8 to 5; read 6: ?")


def test_the_values_of_an_attempt_are_its_own() -> None:
    chance = Random(7)
    numbers = [
        {step.value // 8 for step in Lists().attempt(number, chance).steps if isinstance(step, Append)}
        for number in range(40)
    ]
    assert all(each <= {number} for number, each in enumerate(numbers))
    assert sum(map(bool, numbers)) > 20


def test_of_many_violations_the_first_are_reported_and_how_many_there_are() -> None:
    violations = shortened("Lost", [f"row {number}" for number in range(25)])
    assert len(violations) == 11
    assert violations[-1] == Violation("Lost", "15 more like these")
