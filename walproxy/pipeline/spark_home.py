"""The folder that Spark takes for its installation, and the JVM's archive of loaded classes in it.

Both only save time; whatever goes wrong here ends with Spark being started as it comes. Why they do:
walproxy/pipeline/spark_session.py.
"""

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

import pyspark

from walproxy.pipeline.cache_folder import cache_folder

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
