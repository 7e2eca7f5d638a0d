"""A Spark session: quiet, in UTC, and quicker to start than Spark's own; on this machine on the loopback interface.

    with spark_session("walproxy query") as spark:
        spark.read.format("pgwal").load(...)

A session that exists already is used as it is and left running: under `spark-submit` the options of the cluster are the
operator's matter.

With the master of a cluster the driver is still a process of this machine. Its executors connect to it, at the address
that Spark selects (`spark.driver.host`), and start Python by the path that this process names.

Spark's JVM writes to stderr what no user can use. Here stdout and stderr of the JVM, and of the Python processes that
it starts, go to a file of the session's temporary folder, or to the one that WALPROXY_SPARK_LOG names. It is quoted
when Spark does not start, and read when a job fails without a word of ours (see `spark_errors`).

A signal is for this process alone. The JVM has a process group of its own, so that a Ctrl-C, or a SIGTERM to the group,
does not end it in the middle of a batch; it ends when this process does, because its stdin ends. And the handler of
SIGINT that PySpark installs is removed: it calls the JVM in the middle of another call on the same connection, and
replaces that of a job which finishes its batch first. Where nothing else handles SIGINT, it kills the JVM: without one
PySpark waits for the end of the job that was interrupted.

A call to a JVM that hangs does not return. So each step that ends a session has a time limit, after which the JVM is
killed.

Where the seconds of a start go (two cores, PySpark 4.3), and what is done about it:

- Python processes of Spark find `pyspark.zip` before the installed package, and compile it again in each process:
  Python keeps no bytecode for what it reads from a zip. SPARK_HOME is set to a folder of links to the package which has
  no such zip.
- The JVM loads and verifies some 15,000 classes. They are kept in an archive of the JVM's own (class data sharing) in
  the cache folder, written once when the first session ends. Without a cache folder that can be written everything
  works as before; an archive that does not fit is ignored by the JVM.
"""

import contextlib
import hashlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

import pyspark
from pyspark.conf import SparkConf
from pyspark.core.context import SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from safekeeper.base.errors import ConfigurationError, WalproxyError
from walproxy.pipeline.lake.disk import cache_folder
from walproxy.pipeline.source.data_source import PgwalDataSource
from walproxy.pipeline.spark_errors import SparkFailed, spark_errors

TEMPORARY_PREFIX: Final = "walproxy-spark-"
_LINKS: Final = ("bin", "jars")
_CLASSES: Final = "classes.jsa"


class SparkHome(NamedTuple):
    """The environment that a session is started with.

    Attributes:
        folder: the value of SPARK_HOME; None to leave it as it is.
        java_options: the JVM's options for its archive of classes.
        unfinished: where this session's JVM writes that archive when it ends; None if it does not.
    """

    folder: Path | None
    java_options: tuple[str, ...]
    unfinished: Path | None

    def keep_classes(self) -> None:
        """Let the next session use the classes that the JVM, which has ended, has written."""
        if self.unfinished is not None:
            with contextlib.suppress(OSError):
                self.unfinished.rename(self.unfinished.with_name(_CLASSES))


def spark_home(temporary: Path, java: Path) -> SparkHome:
    """Return the home of a session; `temporary` is its own folder, for the case that nothing can be kept.

    One that the operator has set (SPARK_HOME) is used as it is.
    """
    if os.environ.get("SPARK_HOME") and not _is_ours(Path(os.environ["SPARK_HOME"])):
        return SparkHome(None, (), None)
    package = Path(pyspark.__file__).parent
    try:
        folder = _cached(package, java)
    except OSError:
        folder = temporary / "home"
        _link(package, folder)
        return SparkHome(folder, (), None)
    classes = folder / _CLASSES
    with contextlib.suppress(OSError):
        _remove_leftovers(folder)
    if classes.exists():
        return SparkHome(folder, (f"-XX:SharedArchiveFile={classes}", "-Xshare:auto"), None)
    unfinished = folder / f"{_CLASSES}.{os.getpid()}"
    return SparkHome(folder, (f"-XX:ArchiveClassesAtExit={unfinished}",), unfinished)


def _cached(package: Path, java: Path) -> Path:
    """Return the folder of links for this Spark and this Java, made if it is missing.

    The archive of classes is good only for the JVM that wrote it and the jars in their place.

    Raises:
        OSError: it cannot be made, or not be written into.
    """
    real = java.resolve()
    what = f"{package.resolve()} {real} {real.stat().st_mtime_ns}"
    folder = cache_folder() / f"spark-{pyspark.__version__}-{hashlib.sha256(what.encode()).hexdigest()[:12]}"
    if " " in str(folder):
        raise NotADirectoryError(str(folder))  # The JVM's options are separated by spaces.
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix="spark-", dir=folder.parent))
        _link(package, made)
        try:
            made.rename(folder)
        except OSError:  # Another process was faster.
            for name in _LINKS:
                (made / name).unlink()
            made.rmdir()
    if not os.access(folder, os.W_OK) and not (folder / _CLASSES).exists():
        raise PermissionError(str(folder))
    return folder


def _link(package: Path, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for name in _LINKS:
        (folder / name).symlink_to(package / name)


def _is_ours(folder: Path) -> bool:
    """Whether an earlier session of this process, or of the one that started it, has set it."""
    return folder.parent == cache_folder() or folder.parent.name.startswith(TEMPORARY_PREFIX)


def _remove_leftovers(folder: Path) -> None:
    """Remove what sessions were writing that were killed."""
    for path in folder.glob(f"{_CLASSES}.*"):
        if not Path(f"/proc/{path.suffix[1:]}").exists():
            path.unlink(missing_ok=True)


LOG_VARIABLE: Final = "WALPROXY_SPARK_LOG"
JAVA_MISSING: Final = (
    "Spark needs Java 17 or newer, but found no {}; install it (on Debian: apt-get install openjdk-17-jre-headless) "
    "or set JAVA_HOME"
)
_QUICK: Final = ("-XX:TieredStopAtLevel=1",)
_END_TIMEOUT_S: Final = 30.0
_DEATH_S: Final = 1.0
_POLL_S: Final = 0.2
_STOPPED: Final = "Cannot call methods on a stopped SparkContext"


@contextlib.contextmanager
def spark_session(
    app_name: str,
    *,
    master: str = "local[*]",
    memory: str = "2g",
    quick: bool = False,
    settings: Mapping[str, str] | None = None,
    inherited_fds: tuple[int, ...] = (),
    stop: threading.Event | None = None,
    stop_timeout_s: float = 45.0,
) -> Iterator[SparkSession]:
    """Give the session that exists, or one that is made here and ended with everything that it has started.

    Args:
        app_name: how it is called in Spark's own pages and logs.
        master: `local[N]` for N cores of this machine; the URL of a cluster's master.
        memory: of the JVM, as Java writes it. What decodes WAL lives outside of it.
        quick: the JVM has little to do by itself: it compiles fast rather than well. From the start to the end of a
            small stream 18 s of CPU time instead of 27 s were measured; long scans and sorts are slower.
        settings: further settings of Spark, which win over ours.
        inherited_fds: file descriptors that the JVM keeps open as long as it lives, a lock for instance.
        stop: once it is set, the JVM of a session made here is killed after `stop_timeout_s`, so that every call to it
            fails. None: it is never killed while the session is used.

    Raises:
        ConfigurationError: there is no Java.
        SparkFailed: Spark does not start, has died, or was killed after `stop`.
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
        gateway = _launch(conf, home, folder, inherited_fds, is_local=_is_local(master))
        limit = _StopLimit(gateway.proc, stop, stop_timeout_s)
        try:
            with _killed_by_interrupt(gateway.proc):
                yield from _session(conf, gateway)
        except Exception as error:
            is_ours = isinstance(error, WalproxyError) and not isinstance(error, SparkFailed)
            code = None if is_ours else _exit_code(gateway.proc)
            if code is None:
                raise
            if limit.is_exceeded:
                raise SparkFailed(f"Spark did not end within {stop_timeout_s:g} s, and was killed") from error
            raise SparkFailed(
                f"Spark's Java process has ended with code {code}: does the machine have enough memory? Try again"
            ) from error
        finally:
            limit.release()
            _end(gateway)
        if gateway.proc.returncode >= 0:  # One that was killed may have written a part of them.
            home.keep_classes()


class _StopLimit:
    """Kill a JVM that is still used some time after the event `stop`.

    In a thread of its own: the main thread may be waiting for an answer of that JVM.

    Attributes:
        is_exceeded: the JVM was killed.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", stop: threading.Event | None, timeout_s: float) -> None:
        self.is_exceeded = False
        self._released = threading.Event()
        if stop is not None:
            arguments = (process, stop, timeout_s)
            threading.Thread(target=self._watch, args=arguments, name="stop limit", daemon=True).start()

    def release(self) -> None:
        """Leave the JVM alone from now on."""
        self._released.set()

    def _watch(self, process: "subprocess.Popen[bytes]", stop: threading.Event, timeout_s: float) -> None:
        while not stop.wait(_POLL_S):
            if self._released.is_set():
                return
        if not self._released.wait(timeout_s):
            self.is_exceeded = True
            process.kill()


def _session(conf: SparkConf, gateway: Any) -> Generator[SparkSession, None, None]:
    """Yield a session in the JVM of `gateway`, and stop it."""
    with _master_errors(conf):
        context = _context(conf, gateway)
    # It would print a traceback, in a thread of its own, when the JVM dies.
    context._accumulatorServer.handle_error = lambda *what: None
    ends: SparkContext | SparkSession = context
    try:
        with _master_errors(conf):
            ends = session = SparkSession(context)
        # Spark would find it by itself, with every other source that is installed: one that cannot be imported hides
        # all.
        session.dataSource.register(PgwalDataSource)
        yield session
    except KeyboardInterrupt:
        # The answer to the call that was interrupted is still to come, and the next call would take it for its own.
        gateway.proc.kill()
        gateway.proc.wait()
        raise
    finally:
        if gateway.proc.poll() is None:
            with _killed_after(gateway.proc, _END_TIMEOUT_S):
                ends.stop()
        else:
            with warnings.catch_warnings(action="ignore"):  # That the JVM has died is raised by `spark_session`.
                context.stop()


@contextlib.contextmanager
def _master_errors(conf: SparkConf) -> Iterator[None]:
    """Name the master in an error. After a minute without a reply of it Spark stops the context."""
    try:
        with spark_errors():
            yield
    except SparkFailed as error:
        reason = "it does not respond, or has removed the job" if _STOPPED in str(error) else str(error)
        raise SparkFailed(f"no session with the master {conf.get('spark.master')}: {reason}") from error


def _context(conf: SparkConf, gateway: Any) -> SparkContext:
    """Make the context, and leave the handler of SIGINT as it was."""
    handler = signal.getsignal(signal.SIGINT)
    context = SparkContext(conf=conf, gateway=gateway)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)
    return context


@contextlib.contextmanager
def _killed_by_interrupt(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    """Kill the JVM at a SIGINT that raises KeyboardInterrupt, so that what PySpark then calls fails at once.

    Raises:
        KeyboardInterrupt: also where the failure of such a call has taken its place.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    is_interrupted = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal is_interrupted
        is_interrupted = True
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_DEATH_S)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except Exception as error:
        if is_interrupted:
            raise KeyboardInterrupt from error
        raise
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def _killed_after(process: "subprocess.Popen[bytes]", timeout_s: float) -> Iterator[None]:
    """Kill a process while it is waited for, if that takes too long."""
    timer = threading.Timer(timeout_s, process.kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


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


def _is_local(master: str) -> bool:
    return master.startswith("local")


def _settings(app_name: str, master: str, memory: str, folder: Path, java_options: Sequence[str]) -> dict[str, str]:
    cores = os.cpu_count() or 1
    loopback = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    return {
        **(loopback if _is_local(master) else {}),
        "spark.app.name": app_name,
        "spark.master": master,
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": " ".join((*java_options, "-XX:+ExitOnOutOfMemoryError")),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.local.dir": str(folder),
        # Of a Python process that has started; 15 s by itself. Where Spark has no setting: `WorkerLate`.
        "spark.python.authenticate.socketTimeout": "10m",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.shuffle.partitions": str(4 * cores),
        # Between the JVM and Python: 64 KiB by itself; a MiB carried 15 % more Arrow.
        "spark.buffer.size": str(1 << 20),
    }


def _launch(conf: SparkConf, home: SparkHome, folder: Path, inherited_fds: tuple[int, ...], *, is_local: bool) -> Any:
    """Start the JVM with its output in a file."""
    _quiet_libraries()
    # PySpark reads this variable only; spark-submit sets it from the setting.
    python = conf.get("spark.pyspark.python") or (None if is_local else os.environ.get("PYSPARK_PYTHON"))
    os.environ["PYSPARK_PYTHON"] = python or sys.executable
    if is_local:
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
            popen = {"stdout": log, "stderr": log, "pass_fds": inherited_fds, "process_group": 0}
            return launch_gateway(conf, popen)
        except PySparkRuntimeError as error:
            log_lines = log_path.read_text(errors="replace").splitlines()
            # A JVM that writes its archive of classes logs a line for each one that is left out.
            lines = [line.strip() for line in log_lines if line.strip() and "[cds]" not in line]
            raise SparkFailed(
                f"Spark {pyspark.__version__} did not start; it needs Java 17 or newer; its log ends with: "
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
    with _killed_after(gateway.proc, _END_TIMEOUT_S):
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()
    # A later session of this process starts a JVM of its own.
    SparkContext._gateway = None
    SparkContext._jvm = None
