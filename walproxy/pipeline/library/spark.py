"""The Python program that Spark starts.

Spark finds and runs `pgwal`, `pgcdc` and `pgtable` in Python processes of its own. It starts PYSPARK_PYTHON, or else
the `python3` of the PATH, which is another installation unless a virtual environment is activated: then it reports that
the data source does not exist. The variable is read when the JVM starts, so it must be set before the first session.
"""

import os
import subprocess
import sys
from typing import Final

from pyspark import SparkContext

from safekeeper.base.errors import ConfigurationError

_VARIABLE: Final = "PYSPARK_PYTHON"
_DRIVER_VARIABLE: Final = "PYSPARK_DRIVER_PYTHON"
_TIMEOUT_S: Final = 60.0


def configure() -> str:
    """Make sessions that this process starts later use a Python that has walproxy; return that program.

    It is the one that PYSPARK_PYTHON names, or else the program that runs this process. Call it before the first
    session. On a cluster the setting applies to the driver; executors use `spark.pyspark.python`.

    Raises:
        ConfigurationError: that Python cannot import walproxy's data sources, or a session has started with another.
    """
    program = os.environ.get(_VARIABLE) or sys.executable
    context = SparkContext._active_spark_context
    if context is not None:
        program = context.pythonExec
    if program != sys.executable:
        _check(program, is_started=context is not None)
    os.environ[_VARIABLE] = program
    # Some parts of Spark use this one where both are set.
    os.environ.setdefault(_DRIVER_VARIABLE, program)
    return program


def _check(program: str, is_started: bool) -> None:
    try:
        result = subprocess.run(
            [program, "-c", "import pyspark_pgwal"], capture_output=True, text=True, timeout=_TIMEOUT_S
        )
        reason = _last_line(result) if result.returncode else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = str(error)
    if reason:
        advice = f"stop the session, and set {_VARIABLE}" if is_started else f"set {_VARIABLE}"
        raise ConfigurationError(
            f"Spark's Python, {program}, cannot import walproxy's data sources ({reason}): {advice} to {sys.executable}"
        )


def _last_line(result: "subprocess.CompletedProcess[str]") -> str:
    return (result.stderr.strip().splitlines() or [f"exit code {result.returncode}"])[-1]
