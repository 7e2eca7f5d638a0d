"""Spark without an activated virtual environment: with `pgwal.spark.configure()`, and with PYSPARK_PYTHON."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipeline.small_wal import decoded_rows, small_wal, write_wal
from tests.unit.wal_builder import MIB

COUNT = 'print("rows:", spark.read.format("pgwal").option("path", {folder!r}).load().count())'
SESSION = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
"""
CONFIGURE = """
import pgwal.spark
pgwal.spark.configure()
"""
SHELL = Path(sys.executable).with_name("pyspark")


@pytest.fixture
def other_python(tmp_path: Path) -> str:
    """A PATH whose python3 is that of the machine, without the packages of the environment."""
    folder = tmp_path / "bin"
    folder.mkdir()
    python3 = folder / "python3"
    python3.write_text(f'#!/bin/sh\nexec {sys._base_executable} "$@"\n')
    python3.chmod(0o700)
    return f"{folder}:{os.defpath}"


def run(command: list[str | Path], path: str, code: str = "", **variables: str) -> "subprocess.CompletedProcess[str]":
    removed = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME", "VIRTUAL_ENV", "PYTHONPATH")
    environment = {name: value for name, value in os.environ.items() if name not in removed}
    environment |= {"PATH": path, **variables}
    return subprocess.run(command, input=code, env=environment, capture_output=True, text=True)


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_spark_has_the_data_sources_when_it_is_configured_before_the_first_session(
    tmp_path: Path, other_python: str
) -> None:
    folder = write_wal(tmp_path / "pg_wal", small_wal(2 * MIB + 100_000))
    rows = f"rows: {decoded_rows(folder, 'records').num_rows}"
    count = COUNT.format(folder=folder)
    program = tmp_path / "program.py"
    program.write_text(SESSION + CONFIGURE)
    too_late = run([sys.executable, program], other_python)
    last = too_late.stderr.splitlines()[-1]
    assert "Spark's Python, python3, cannot import walproxy's data sources" in last
    assert last.endswith(f"stop the session, and set PYSPARK_PYTHON to {sys.executable}")
    program.write_text(CONFIGURE + SESSION + count)
    configured = run([sys.executable, program], other_python)
    assert rows in configured.stdout, configured.stderr
    # Without a terminal Python takes a program from stdin, and does not start the shell, unless it is told.
    variables = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON_OPTS": "-i"}
    shell = run([SHELL, "--master", "local[1]"], other_python, f"{count}\n", **variables)
    assert rows in shell.stdout, shell.stderr
