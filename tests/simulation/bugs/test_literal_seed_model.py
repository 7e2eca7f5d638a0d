"""The first protocol, taken literally, loses committed records on each of these schedules; the scenario files of the
same letters show the real one safe."""

import pytest

from tests.simulation.bugs.literal_seed_model import SeedProxy, SeedSafekeeper, elected

Three = tuple[SeedSafekeeper, SeedSafekeeper, SeedSafekeeper]


@pytest.fixture
def three() -> Three:
    return SeedSafekeeper("S1"), SeedSafekeeper("S2"), SeedSafekeeper("S3")


def test_a_the_state_is_read_before_the_promise(three: Three) -> None:
    s1, s2, s3 = (safekeeper.holding("1a") for safekeeper in three)
    p1 = elected("one", [s1, s2, s3], s1, s2)
    p2 = SeedProxy("two", [s1, s2, s3])
    p2.greet(s1, s2)
    p1.write("2b", s1, s2)
    assert p1.commit_lsn == 2
    assert p2.propose(s1, s2)
    p2.write("2x", s1, s2)
    assert p2.commit_lsn == 2
    assert "2b" not in [*s1.log.values(), *s2.log.values(), *s3.log.values()]


def test_b_an_epoch_is_given_twice(three: Three) -> None:
    s1, s2, s3 = (safekeeper.holding("1a") for safekeeper in three)
    p2 = elected("two", [s1, s2, s3], s1, s2)
    for record in ("2x", "3x", "4x"):
        p2.write(record, s1)
    p3 = elected("three", [s1, s2, s3], s2, s3)
    p3.write("2y", s2, s3)
    assert p3.commit_lsn == 2
    assert p3.epoch == p2.epoch
    p4 = elected("four", [s1, s2, s3], s1, s2)
    assert p4.log[2] == "2x"


def test_c_an_answer_of_an_older_epoch_counts_as_all(three: Three) -> None:
    s1, s2, s3 = three
    s1.holding("1a")
    s2.holding("1a", "2a", "3a", "4a", "5a")
    s3.holding("1a")
    p2 = elected("two", [s1, s2, s3], s1, s2)
    p2.send(s1, 1)
    assert p2.commit_lsn == 5
    assert list(s1.log) == list(s3.log) == [1]


def test_d_recovery_takes_another_record_for_delivered(three: Three) -> None:
    s1, s2, s3 = three
    s1.holding("1a", "2e", epoch=2)
    s2.holding("1a", "2e", epoch=2)
    s3.holding("1a", "2o", "3o", "4o")
    p3 = elected("three", [s1, s2, s3], s1, s3)
    p3.recover(s1, s3)
    assert s3.log[2] == "2o"
    for record in ("3n", "4n", "5n"):
        p3.write(record, s1, s3)
    assert s3.epoch == 3
    p4 = elected("four", [s1, s2, s3], s2, s3)
    assert p4.log[2] == "2o"


def test_e_records_of_an_older_epoch_are_committed(three: Three) -> None:
    s1, s2, s3 = three
    s1.holding("1a")
    p2 = elected("two", [s1, s2, s3], s2, s3)
    p2.write("1b", s2)
    p3 = elected("three", [s1, s2, s3], s1, s3)
    p3.recover(s3)
    assert p3.commit_lsn == 1
    assert s3.log[1] == "1a"
    p4 = elected("four", [s1, s2, s3], s2, s3)
    assert p4.log[1] == "1b"


def test_f_a_log_is_spliced(three: Three) -> None:
    s1, s2, s3 = three
    s1.holding("1a", "2a", "3o", "4o", "5o", "6o")
    s2.holding("1a", "2a")
    s3.holding("1a", "2a")
    p2 = elected("two", [s1, s2, s3], s2, s3)
    p2.write("3n", s2)
    assert s1.accept(p2.leader_id, p2.epoch, p2.vcl)
    p2.send(s1, 3)
    p3 = elected("three", [s1, s2, s3], s1, s3)
    assert list(p3.log.values()) == ["1a", "2a", "3n", "4o", "5o", "6o"]


def test_g_the_epoch_is_lost_with_the_power(three: Three) -> None:
    s1, s2, s3 = three
    s1.holding("1a", "2a")
    s2.holding("1a", "2a")
    s3.holding("1a", "2a", "3o", "4o")
    p2 = elected("two", [s1, s2, s3], s1, s2)
    p2.write("3e", s1, s2)
    assert p2.commit_lsn == 3
    s1.lose_power()
    p3 = elected("three", [s1, s2, s3], s1, s3)
    assert p3.log[3] == "3o"


def test_h_two_proxies_of_one_server_are_both_accepted(three: Three) -> None:
    s1, s2, s3 = three
    p1 = elected("server", [s1, s2, s3], s1, s2)
    p2 = SeedProxy("server", [s1, s2, s3])
    p2.greet(s3)
    assert p2.propose(s2, s3)
    assert p1.leader_id == p2.leader_id
    p1.write("1x", s1, s2)
    p2.write("1y", s2, s3)
    assert p1.commit_lsn == p2.commit_lsn == 1
    assert s2.log[1] == "1y"
