"""A standalone Spark cluster on loopback: a master and workers, real processes, from PySpark's own programs.

    with SparkCluster(folder, workers=2) as cluster:
        cluster.url                 # spark://127.0.0.1:PORT
        cluster.kill(0)             # the worker and its executor, as if its machine had lost power

Each process has a group of its own, to which its executors belong. Their Python processes have others, and end when the
executor is gone.
"""

import contextlib
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pyspark

from walproxy.pipeline.spark_session import find_java, spark_home

_DEADLINE_S: Final = 120.0
_QUICK: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


class SparkCluster:
    """A master, and workers of one core each, that can be used when made.

    Attributes:
        url: of the master.
    """

    def __init__(self, folder: Path, workers: int) -> None:
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        # Six JVMs start: with the classes that earlier sessions have kept each needs a third of the time.
        home = spark_home(folder, find_java())
        self._home = home.folder or Path(pyspark.__file__).parent
        self._java_options = " ".join((*_QUICK, *(home.java_options if home.unfinished is None else ())))
        try:
            self._start("master", "master.Master")
            self.url = self._wait_for("master", r"Starting Spark master at (spark://\S+)")
            for number in range(workers):
                self.add(number)
            for number in range(workers):
                self.wait_for(number)
        except BaseException:
            self.close()
            raise

    @property
    def settings(self) -> tuple[str, ...]:
        """Settings of a job: its executors fit the workers, and can connect to it."""
        return (
            "spark.executor.memory=512m",
            f"spark.executor.extraJavaOptions={self._java_options}",
            # A driver that is killed would write its archive of classes, and hold the lock meanwhile.
            f"spark.driver.extraJavaOptions={self._java_options}",
            "spark.driver.host=127.0.0.1",
            "spark.log.level=INFO",
        )

    def add(self, number: int) -> None:
        """Start a worker."""
        where = ("--work-dir", str(self.work(number)), "--cores", "1", "--memory", "1g")
        self._start(f"worker{number}", "worker.Worker", *where, self.url)

    def wait_for(self, number: int) -> None:
        """Wait until the master accepts a worker."""
        self._wait_for(f"worker{number}", r"(Successfully registered with master)")

    def work(self, number: int) -> Path:
        """Return the folder of a worker, where its executors log."""
        return self._folder / f"work{number}"

    def tasks(self, number: int) -> int:
        """Return how many tasks the executors of a worker have begun."""
        return sum(
            log.read_text(errors="replace").count("Running task ") for log in self.work(number).glob("*/*/stderr")
        )

    def jobs(self) -> int:
        """Return how many jobs the master has accepted."""
        return self._log("master").read_text(errors="replace").count("Registered app ")

    def kill(self, number: int) -> None:
        """Kill a worker with its executors."""
        self._kill(f"worker{number}")

    def close(self) -> None:
        """Kill all."""
        for name in [*self._processes]:
            self._kill(name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, name: str, what: str, *words: str) -> None:
        environment = {
            **os.environ,
            "SPARK_HOME": str(self._home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self._folder / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": self._java_options,
        }
        command = [str(self._home / "bin" / "spark-class"), f"org.apache.spark.deploy.{what}"]
        place = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        with self._log(name).open("wb") as log:
            self._processes[name] = subprocess.Popen(
                [*command, *place, *words], stdout=log, stderr=log, env=environment, process_group=0
            )

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _wait_for(self, name: str, says: str) -> str:
        deadline = time.monotonic() + _DEADLINE_S
        while not (found := re.search(says, text := self._log(name).read_text(errors="replace"))):
            assert self._processes[name].poll() is None and time.monotonic() < deadline, text
            time.sleep(0.05)
        return found[1]

    def _kill(self, name: str) -> None:
        process = self._processes.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
