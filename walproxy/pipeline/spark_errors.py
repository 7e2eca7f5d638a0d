"""Report Spark's errors in one line.

An error of ours that is raised in a worker passes through Python's traceback, two JVM threads and Py4J before a job
sees it, as some hundred lines of text. Our own line is in there: `one_error_of` finds it and raises that error again,
so that its exit code is right. What is not of our making is cut down to its first line.
"""

import contextlib
import importlib
import re
from collections.abc import Iterator
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, ParseException, PySparkException, StreamingQueryException

from safekeeper.base.errors import ConfigurationError, WalproxyError
from safekeeper.base.logs import one_line
from walproxy.postgres.patience import load_text

_OURS: Final = re.compile(r"^(?:\W*)((?:safekeeper|walproxy)(?:\.\w+)+)\.([A-Z]\w*): (.*)$", re.MULTILINE)
_ANYONES: Final = re.compile(r"^\s*((?:\w+\.)*[A-Z]\w*(?:Error|Exception|Interrupt): .*)$", re.MULTILINE)
_WORKER_LATE: Final = re.compile(r"Python worker (?:failed )?to connect back")
_LENGTH_MAX: Final = 300


class SparkFailed(WalproxyError):
    """Spark did not start, or a job of it failed in a way that is not of our making."""


class WorkerLate(SparkFailed):
    """A Python process of Spark did not connect within 10 s, for which Spark has no setting: it may be retried."""


@contextlib.contextmanager
def spark_errors() -> Iterator[None]:
    """Raise what Spark raises as an error of ours, in one line.

    Raises:
        WalproxyError: see `error_of`.
    """
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise error_of(error) from error


def error_of(error: Exception) -> WalproxyError:
    """Return the error of ours that a worker raised, or one with Spark's message in one line.

    Must be called while the session lives: only then can Spark's exceptions be read.
    """
    if isinstance(error, WalproxyError):
        return error
    text = str(error)
    # The last one is what ended the job: one that it was raised from stands above it.
    for module, name, message in reversed(_OURS.findall(text)):
        made = _made(module, name, message)
        if made is not None:
            return made
    if _WORKER_LATE.search(text):
        return WorkerLate(f"a Python process of Spark did not start within 10 s: the machine is busy ({load_text()})")
    line = _first_line(text)
    if isinstance(error, AnalysisException | ParseException) and not isinstance(error, StreamingQueryException):
        return ConfigurationError(line)
    return SparkFailed(f"Spark: {line}")


def _made(module: str, name: str, message: str) -> WalproxyError | None:
    """Return an error of the class that a traceback names; None if that is no class of ours."""
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None
    if not (isinstance(found, type) and issubclass(found, WalproxyError)):
        return None
    try:
        return found(message)
    except TypeError:  # Its constructor takes more than a message.
        return WalproxyError(message)


def _first_line(text: str) -> str:
    """Return Spark's message without the stack, the plan and the advice; of a traceback, its last line."""
    _, is_traceback, traceback = text.rpartition("Traceback (most recent call last):")
    raised = _ANYONES.search(traceback) if is_traceback else None
    if raised is not None:
        return one_line(raised[1])[:_LENGTH_MAX]
    paragraph = text.strip().partition("\n\n")[0]
    lines = [line.strip() for line in paragraph.splitlines() if line.strip() and not line.lstrip().startswith("at ")]
    line = one_line(" ".join(lines).partition(" SQLSTATE:")[0].partition("; line ")[0])
    return line[:_LENGTH_MAX]
