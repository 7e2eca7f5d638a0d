"""A Spark session on this machine: quiet, on the loopback interface, in UTC, and quicker to start than Spark's own.

    with spark_session("walproxy query") as spark:
        spark.read.format("pgwal").load(...)

A session that exists already is used as it is and left running: under `spark-submit` the options of the cluster are the
operator's matter.

Spark's JVM writes to stderr what no user can use. Here stdout and stderr of the JVM, and of the Python processes that
it starts, go to a file of the session's temporary folder, or to the one that WALPROXY_SPARK_LOG names. It is quoted
when Spark does not start, and read when a job fails without a word of ours (see `spark_errors`).

Where the seconds of a start go (two cores, PySpark 4.3), and what is done about it:

- Python processes of Spark find `pyspark.zip` before the installed package, and compile it anew in each process: Python
  keeps no bytecode for what it reads from a zip. SPARK_HOME is set to a folder of links to the package which has no
  such zip.
- The JVM loads and verifies some 15,000 classes. They are kept in an archive of the JVM's own (class data sharing) in
  the cache folder, written once when the first session ends. Without a cache folder that can be written everything
  works as before; an archive that does not fit is ignored by the JVM.
"""

import contextlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyspark
from pyspark.conf import SparkConf
from pyspark.core.context import SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from safekeeper.errors import ConfigurationError, WalproxyError
from walproxy.pipeline.source.data_source import PgwalDataSource
from walproxy.pipeline.spark_errors import SparkFailed
from walproxy.pipeline.spark_home import TEMPORARY_PREFIX, SparkHome, spark_home

LOG_VARIABLE: Final = "WALPROXY_SPARK_LOG"
JAVA_MISSING: Final = (
    "Spark needs Java 17 or newer, and there is no {}: install it (on Debian: apt-get install openjdk-17-jre-headless) "
    "or set JAVA_HOME"
)
_QUICK: Final = ("-XX:TieredStopAtLevel=1",)
_END_TIMEOUT_S: Final = 30.0
_DEATH_S: Final = 1.0


@contextlib.contextmanager
def spark_session(
    app_name: str,
    *,
    master: str = "local[*]",
    memory: str = "2g",
    quick: bool = False,
    settings: Mapping[str, str] | None = None,
    inherited_fds: tuple[int, ...] = (),
) -> Iterator[SparkSession]:
    """Give the session that exists, or one that is made here and ended with everything that it has started.

    Args:
        app_name: how it is called in Spark's own pages and logs.
        master: `local[N]` for N cores of this machine.
        memory: of the JVM, as Java writes it. What decodes WAL lives outside of it.
        quick: the JVM has little to do by itself: it compiles fast rather than well. From the start to the end of a
            small stream 18 s of CPU time instead of 27 s were measured; long scans and sorts are slower.
        settings: further settings of Spark, which win over ours.
        inherited_fds: file descriptors that the JVM keeps open as long as it lives, a lock for instance.

    Raises:
        ConfigurationError: there is no Java.
        SparkFailed: Spark does not start.
    """
    if _exists():
        yield SparkSession.builder.appName(app_name).getOrCreate()
        return
    java = find_java()
    with tempfile.TemporaryDirectory(prefix=TEMPORARY_PREFIX, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        home = spark_home(folder, java)
        conf = SparkConf(loadDefaults=False)
        java_options = (*home.java_options, *(_QUICK if quick else ()))
        for key, value in {**_settings(app_name, master, memory, folder, java_options), **(settings or {})}.items():
            conf.set(key, value)
        gateway = _launch(conf, home, folder, inherited_fds)
        try:
            yield from _session(conf, gateway)
        except Exception as error:
            is_ours = isinstance(error, WalproxyError) and not isinstance(error, SparkFailed)
            code = None if is_ours else _exit_code(gateway.proc)
            if code is None:
                raise
            raise SparkFailed(
                f"Spark's Java process has ended with code {code}: does the machine have enough memory? Try again"
            ) from error
        finally:
            _end(gateway)
        home.keep_classes()


def _session(conf: SparkConf, gateway: Any) -> Iterator[SparkSession]:
    """Yield a session in the JVM of `gateway`, and stop it."""
    context = SparkContext(conf=conf, gateway=gateway)
    # It would print a traceback, in a thread of its own, when the JVM dies.
    context._accumulatorServer.handle_error = lambda *what: None
    session = SparkSession(context)
    try:
        # Spark would find it by itself, with every other source that is installed: one that cannot be imported hides
        # all.
        session.dataSource.register(PgwalDataSource)
        yield session
    finally:
        if gateway.proc.poll() is None:
            session.stop()


def _exit_code(process: "subprocess.Popen[bytes]") -> int | None:
    """Return the exit code of a process that has ended, or is about to: its connections break a moment before."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(_DEATH_S)
    return None


def check_java() -> None:
    """Make sure that a session can be had, before anything else is done for it.

    Raises:
        ConfigurationError: there is no Java.
    """
    if not _exists():
        find_java()


def _exists() -> bool:
    """Whether there is a session already, or spark-submit has made ready for one."""
    return SparkContext._active_spark_context is not None or "PYSPARK_GATEWAY_PORT" in os.environ


def find_java() -> Path:
    """Return the program that Spark will run as Java.

    Raises:
        ConfigurationError: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home) / "bin") if home else None)
    if found is None:
        raise ConfigurationError(JAVA_MISSING.format(f"java in JAVA_HOME ({home})" if home else "java on the PATH"))
    return Path(found)


def _settings(app_name: str, master: str, memory: str, folder: Path, java_options: Sequence[str]) -> dict[str, str]:
    cores = os.cpu_count() or 1
    return {
        "spark.app.name": app_name,
        "spark.master": master,
        "spark.driver.memory": memory,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": " ".join((*java_options, "-XX:+ExitOnOutOfMemoryError")),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.shuffle.partitions": str(4 * cores),
        # Between the JVM and Python: 64 KiB by itself; a MiB carried 15 % more Arrow.
        "spark.buffer.size": str(1 << 20),
    }


def _launch(conf: SparkConf, home: SparkHome, folder: Path, inherited_fds: tuple[int, ...]) -> Any:
    """Start the JVM with its output in a file."""
    _quiet_libraries()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"  # Otherwise it looks up the name of this machine, and complains.
    os.environ["SPARK_LAUNCHER_OPTS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # It lives for half a second.
    if home.folder is not None:
        os.environ["SPARK_HOME"] = str(home.folder)
    log_path = Path(os.environ.get(LOG_VARIABLE) or folder / "spark.log")
    try:
        log = log_path.open("ab")
    except OSError as error:
        raise ConfigurationError(f"cannot write Spark's log {log_path} ({LOG_VARIABLE}): {error.strerror}") from error
    with log:
        try:
            return launch_gateway(conf, {"stdout": log, "stderr": log, "pass_fds": inherited_fds})
        except PySparkRuntimeError as error:
            lines = [line.strip() for line in log_path.read_text(errors="replace").splitlines() if line.strip()]
            raise SparkFailed(
                f"Spark {pyspark.__version__} did not start; it needs Java 17 or newer, and says: "
                + (" | ".join(lines[-3:]) or "nothing")
            ) from error


def _quiet_libraries() -> None:
    """Keep from stderr what Spark's libraries log with stacks of many lines: they raise it as well."""
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
    for handler in logging.getLogger().handlers:  # Some of it py4j logs under no name.
        handler.addFilter(_is_not_of_py4j)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in Path(record.pathname).parts


def _end(gateway: Any) -> None:
    """End the JVM, and wait until it has gone: it removes its temporary files, and may be writing its classes."""
    gateway.shutdown()
    gateway.proc.stdin.close()
    try:
        gateway.proc.wait(_END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()
    # A later session of this process starts a JVM of its own.
    SparkContext._gateway = None
    SparkContext._jvm = None
