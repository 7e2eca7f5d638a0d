"""Which tests a worker executes together, and which come first."""

import re
from pathlib import Path

from tests.scheduling import SPARK, rank, scope

ROOT = Path(__file__).parents[2]


def test_the_files_with_a_spark_session_are_those_that_ask_for_it() -> None:
    files = (ROOT / "tests" / "pipeline").glob("test_*.py")
    with_session = {
        file for file in files if re.search(r"^    spark: SparkSession|\(spark: Spark", file.read_text(), re.M)
    }
    assert {ROOT / path for path in SPARK} == with_session


def test_they_are_one_scope_and_other_files_are_one_each() -> None:
    assert {scope(f"{path}::test_something[spark]") for path in SPARK} == {"Spark"}
    assert scope("tests/unit/test_docs.py::test_links[a::b.md]") == "tests/unit/test_docs.py"


def test_container_tests_are_one_scope() -> None:
    files = sorted((ROOT / "tests" / "e2e").glob("test_*.py"))
    assert {scope(f"{file.relative_to(ROOT)}::test_something") for file in files} == {"containers"}


def test_containers_come_first_then_long_files() -> None:
    ids = [
        "tests/unit/test_docs.py::test_a",
        "tests/integration/cluster/test_page.py::test_b",
        f"{SPARK[0]}::test_c",
        "tests/e2e/test_losses.py::test_d",
    ]
    assert sorted(ids, key=rank) == ids[::-1]
