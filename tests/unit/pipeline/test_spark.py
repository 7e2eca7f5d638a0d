"""What surrounds Spark, without it: its errors in one line, its home, and what is said when something is missing."""

import logging
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import click
import click.testing
import pytest
from pyspark.conf import SparkConf
from pyspark.errors import PySparkException

from safekeeper.base.errors import ConfigurationError, WalproxyError
from walproxy.cli.pipeline import pipeline
from walproxy.pipeline import spark_session as spark_sessions
from walproxy.pipeline.choices import VIEW_NAMES
from walproxy.pipeline.schemas import VIEWS
from walproxy.pipeline.spark_errors import SparkFailed, error_of, spark_errors
from walproxy.pipeline.spark_session import SparkHome, find_java, spark_home, spark_session
from walproxy.wal_sources.source import WalMissing

OURS = """[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted due to stage failure: Task 0 in stage
3.0 failed 1 times, most recent failure: Lost task 0.0 (TID 6): org.apache.spark.api.python.PythonException:
Traceback (most recent call last):
  File "/lib/walproxy/pipeline/source/tasks.py", line 119, in _decoded_rows
    decoded = decode_piece(wal_input)
              ^^^^^^^^^^^^^^^^^^^^^^^
FileNotFoundError: [Errno 2] No such file: '/wal/00000001'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/lib/walproxy/wal_sources/segment_folder.py", line 12, in read
walproxy.wal_sources.source.WalMissing: 000000010000000000000003 is missing: no WAL from 0/3000000 on

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:595)
\tat java.base/java.lang.Thread.run(Thread.java:840)
"""
OTHERS = """An error occurred while calling o12.collect. : Job aborted
Traceback (most recent call last):
  File "/lib/some.py", line 3, in read
ZeroDivisionError: division by zero

\tat org.apache.spark.Some.thing(Some.scala:1)
"""
JAVAS = """[TABLE_OR_VIEW_NOT_FOUND] The table or view `nothing` cannot be found. Verify the spelling
and correctness of the schema and catalog. SQLSTATE: 42P01; line 1 pos 14;
'Project [*]
+- 'UnresolvedRelation [nothing], [], false
"""


def test_an_error_of_ours_comes_back_out_of_a_stack_of_others() -> None:
    error = error_of(PySparkException(OURS))
    assert type(error) is WalMissing
    assert str(error) == "000000010000000000000003 is missing: no WAL from 0/3000000 on"


def test_an_error_of_others_is_its_last_line() -> None:
    error = error_of(PySparkException(OTHERS))
    assert type(error) is SparkFailed
    assert str(error) == "Spark: ZeroDivisionError: division by zero"


def test_what_spark_says_is_reported_without_its_plan() -> None:
    assert str(error_of(PySparkException(JAVAS))) == (
        "Spark: [TABLE_OR_VIEW_NOT_FOUND] The table or view `nothing` cannot be found. Verify the spelling and "
        "correctness of the schema and catalog."
    )


@pytest.mark.parametrize(
    ("raised", "made"),
    [
        ("safekeeper.base.errors.ConfigurationError: wrong", ConfigurationError),
        ("safekeeper.base.errors.CommandError: no such slot", WalproxyError),  # it is made of more than a message
        ("walproxy.pipeline.nowhere.Gone: lost", SparkFailed),
        ("safekeeper.base.lsn.Lsn: no error", SparkFailed),
    ],
)
def test_only_a_class_of_ours_that_can_be_made_is_made(raised: str, made: type[WalproxyError]) -> None:
    text = f"Traceback (most recent call last):\n{raised}\n"
    with pytest.raises(WalproxyError) as caught, spark_errors():
        raise PySparkException(text)
    assert type(caught.value) is made


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program called java, a cache folder of its own, and no SPARK_HOME."""
    program = tmp_path / "jdk" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    return program


def test_the_first_session_keeps_its_classes_for_the_next(java: Path, tmp_path: Path) -> None:
    first = spark_home(tmp_path, java)
    assert first.folder is not None
    assert first.unfinished is not None
    assert sorted(path.name for path in first.folder.iterdir()) == ["bin", "jars"]
    assert first.java_options == (f"-XX:ArchiveClassesAtExit={first.unfinished}",)
    first.unfinished.write_text("classes")
    first.keep_classes()
    second = spark_home(tmp_path, java)
    assert second.folder == first.folder
    assert second.java_options[0] == f"-XX:SharedArchiveFile={first.folder / 'classes.jsa'}"
    second.keep_classes()
    java.write_text("another one")
    assert spark_home(tmp_path, java).folder != first.folder


def test_what_a_killed_session_was_writing_is_removed_by_the_next(java: Path, tmp_path: Path) -> None:
    folder = spark_home(tmp_path, java).folder
    assert folder is not None
    for name in ("classes.jsa.999999999", f"classes.jsa.{os.getpid()}"):
        (folder / name).touch()
    spark_home(tmp_path, java)
    assert sorted(path.name for path in folder.glob("classes*")) == [f"classes.jsa.{os.getpid()}"]


def test_without_a_cache_folder_nothing_is_kept(java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert spark_home(tmp_path, java) == SparkHome(tmp_path / "home", (), None)
    assert stat.S_ISLNK((tmp_path / "home" / "jars").lstat().st_mode)


def test_a_home_that_the_operator_has_set_is_used_and_ours_is_not_taken_for_one(
    java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = spark_home(tmp_path, java)
    monkeypatch.setenv("SPARK_HOME", str(ours.folder))
    assert spark_home(tmp_path, java) == ours
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert spark_home(tmp_path, java) == SparkHome(None, (), None)
    assert spark_sessions.cache_folder() == tmp_path / "cache" / "walproxy"


def test_a_missing_java_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"^Spark needs Java 17 or newer, but found no java in JAVA_HOME"):
        find_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"no java on the PATH; install it .* or set JAVA_HOME$"):
        find_java()


# Spark drops the process that did not start, with its open pipe.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_java_that_does_not_start_spark_is_one_line(java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_sessions, "_exists", lambda: False)  # as if no earlier test had left one for the others
    java.write_text(
        "#!/bin/sh\necho UnsupportedClassVersionError: too old >&2\n"
        "for n in 1 2 3; do echo '[1s][warning][cds] Skipping class' >&2; done\nexit 1\n"
    )
    with (
        pytest.raises(
            SparkFailed, match=r"^Spark 4\.\S+ did not start; it needs Java 17 or newer; its log ends with: .*too old"
        ),
        spark_session("walproxy test"),
    ):
        raise AssertionError("a session")


def launched_environment(
    monkeypatch: pytest.MonkeyPatch, folder: Path, master: str, settings: dict[str, str]
) -> dict[str, str]:
    """Return the environment in which a JVM would be started."""
    found: dict[str, str] = {}
    monkeypatch.setattr(spark_sessions, "launch_gateway", lambda conf, popen: found.update(os.environ))
    conf = SparkConf(loadDefaults=False)
    for name, value in {**spark_sessions._settings("test", master, "1g", folder, ()), **settings}.items():
        conf.set(name, value)
    is_local = spark_sessions._is_local(master)
    assert (conf.get("spark.driver.host") == "127.0.0.1") is is_local
    spark_sessions._launch(conf, SparkHome(None, (), None), folder, (), is_local=is_local)
    return found


def test_a_cluster_runs_the_python_that_the_operator_names_and_connects_to_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SPARK_LOCAL_IP", "SPARK_LAUNCHER_OPTS"):
        monkeypatch.setenv(name, "")  # Restored after the test.
    monkeypatch.setenv("PYSPARK_PYTHON", "/env/python3")
    setting = {"spark.pyspark.python": "/set/python3"}
    cluster = launched_environment(monkeypatch, tmp_path, "spark://host:7077", setting)
    assert (cluster["PYSPARK_PYTHON"], cluster["SPARK_LOCAL_IP"]) == ("/set/python3", "")
    monkeypatch.setenv("PYSPARK_PYTHON", "/env/python3")
    assert launched_environment(monkeypatch, tmp_path, "yarn", {})["PYSPARK_PYTHON"] == "/env/python3"
    monkeypatch.setenv("PYSPARK_PYTHON", "")
    assert launched_environment(monkeypatch, tmp_path, "yarn", {})["PYSPARK_PYTHON"] == sys.executable
    monkeypatch.setenv("PYSPARK_PYTHON", "/env/python3")
    assert launched_environment(monkeypatch, tmp_path, "local", setting)["PYSPARK_PYTHON"] == "/set/python3"
    monkeypatch.setenv("PYSPARK_PYTHON", "/env/python3")
    here = launched_environment(monkeypatch, tmp_path, "local[2]", {})
    assert (here["PYSPARK_PYTHON"], here["SPARK_LOCAL_IP"]) == (sys.executable, "127.0.0.1")


@pytest.mark.parametrize(
    ("option", "value", "complaint"),
    [
        ("-c", "spark_conf=spark.executor.memory", "'spark.executor.memory' is not spark.NAME=VALUE"),
        ("-c", "spark_conf=memory=4g", "'memory=4g' is not spark.NAME=VALUE"),
        ("-c", "spark_conf=spark.master=yarn", "name the master by the key master"),
        ("-c", "master=host:7077", "'host:7077' is not spark://HOST:PORT"),
    ],
)
def test_a_master_or_a_setting_of_spark_that_is_none_is_refused(option: str, value: str, complaint: str) -> None:
    result = click.testing.CliRunner().invoke(pipeline, ["run", "/wal", "--to", "/tables", option, value])
    assert result.exit_code != 0
    assert complaint in result.output + str(result.exception)


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        ("IllegalStateException: Cannot call methods on a stopped SparkContext. It", "it does not respond, or has"),
        ("UnknownHostException: host", "Spark: UnknownHostException: host"),
    ],
)
def test_a_master_that_gives_no_session_is_named(raised: str, reason: str) -> None:
    conf = SparkConf(loadDefaults=False).set("spark.master", "spark://host:1")
    with (
        pytest.raises(SparkFailed, match=f"^no session with the master spark://host:1: {reason}"),
        spark_sessions._master_errors(conf),
    ):
        raise PySparkException(raised)


class FakeContext:
    """A context whose calls to the JVM would hang."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._accumulatorServer = SimpleNamespace()
        self._process = process

    def stop(self) -> None:
        assert self._process.poll() is not None


@pytest.fixture
def hanging_jvm() -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def test_a_ctrl_c_in_the_middle_of_a_call_ends_the_jvm_without_another_call(
    hanging_jvm: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_sessions, "SparkContext", lambda conf, gateway: FakeContext(gateway.proc))
    monkeypatch.setattr(spark_sessions, "SparkSession", lambda context: SimpleNamespace(dataSource=DataSources()))
    session = spark_sessions._session(SparkConf(loadDefaults=False), SimpleNamespace(proc=hanging_jvm))
    next(session)
    with pytest.raises(KeyboardInterrupt):
        session.throw(KeyboardInterrupt())
    assert hanging_jvm.poll() == -signal.SIGKILL


class DataSources:
    def register(self, source: type) -> None:
        """Take any."""


def test_a_ctrl_c_kills_the_jvm_and_remains_one_when_what_pyspark_then_calls_fails(
    hanging_jvm: "subprocess.Popen[bytes]",
) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), spark_sessions._killed_by_interrupt(hanging_jvm):
            try:
                signal.raise_signal(signal.SIGINT)
            finally:
                raise SparkFailed("no answer")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert hanging_jvm.poll() == -signal.SIGKILL


def test_a_jvm_that_is_still_used_some_time_after_the_stop_is_killed(hanging_jvm: "subprocess.Popen[bytes]") -> None:
    stop = threading.Event()
    used, released = (spark_sessions._StopLimit(hanging_jvm, stop, 0.1) for _ in range(2))
    released.release()
    stop.set()
    assert hanging_jvm.wait(30) == -signal.SIGKILL
    assert (used.is_exceeded, released.is_exceeded) == (True, False)


def test_of_what_is_logged_only_the_stacks_of_libraries_are_left_out() -> None:
    def record(path: str) -> logging.LogRecord:
        return logging.LogRecord("root", logging.ERROR, path, 1, "Exception while sending command", None, None)

    assert not spark_sessions._is_not_of_py4j(record("/lib/python3.11/site-packages/py4j/java_gateway.py"))
    assert spark_sessions._is_not_of_py4j(record("/lib/python3.11/site-packages/walproxy/pipeline/jobs/run.py"))


def test_the_commands_are_listed_with_what_they_do_and_can_all_be_imported() -> None:
    result = click.testing.CliRunner().invoke(pipeline, ["--help"])
    assert result.exit_code == 0
    context = click.Context(pipeline)
    for name in pipeline.list_commands(context):
        assert f"\n  {name} " in result.output
        assert pipeline.get_command(context, name) is not None
    assert pipeline.get_command(context, "nothing") is None


def test_the_choices_of_options_are_those_of_the_code() -> None:
    assert VIEW_NAMES == VIEWS


@pytest.mark.parametrize("name", pipeline.list_commands(click.Context(pipeline)))
def test_help_of_a_command_needs_no_library_of_the_extra(name: str) -> None:
    program = f"""
import sys
from walproxy.cli import main
from walproxy.cli.extras import MODULES

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in MODULES["pipeline"]:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
sys.argv = ["walproxy", "pipeline", "{name}", "--help"]
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Usage: walproxy pipeline {name} ")
