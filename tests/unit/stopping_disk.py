"""A disk on which the world stops: a process that is killed between two steps, or a power cut that loses names.

`StoppingDisk` counts the steps and stops before one of them. It also writes them down, and `power_cuts` shows what a
disk may show afterwards: a name that was not synced may be there or not, each for itself.
"""

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from walproxy.pipeline.tables.disk import Disk


class Stopped(Exception):
    """The process is no more."""


class Step(NamedTuple):
    """A name that appeared or vanished, or a folder that was synced.

    Attributes:
        content: of the file that has the name now; None if the name is a folder's, a link's or gone.
        target: of a symbolic link.
        gone: a name that vanished in the same step.
    """

    verb: str
    path: Path
    content: bytes | None = None
    target: str | None = None
    gone: Path | None = None


class StoppingDisk(Disk):
    """Stops before the step `stop_at`, counted from 0.

    Args:
        watched: a folder in which others write files, whose content they sync, but not the name.

    Attributes:
        steps: what was done.
    """

    def __init__(self, stop_at: int | None = None, watched: Path | None = None) -> None:
        self._stop_at = stop_at
        self._watched = watched
        self._seen: set[Path] = set()
        self.count = 0
        self.steps: list[Step] = []

    def write(self, path: Path, content: bytes) -> None:
        self._before_a_step()
        super().write(path, content)
        self.steps.append(Step("name", path, content))

    def link(self, old: Path, new: Path) -> None:
        self._before_a_step()
        super().link(old, new)
        self.steps.append(Step("name", new, new.read_bytes()))

    def rename(self, old: Path, new: Path) -> None:
        self._before_a_step()
        super().rename(old, new)
        if new.is_symlink():
            self.steps.append(Step("name", new, target=str(new.readlink()), gone=old))
        else:
            self.steps.append(Step("name", new, new.read_bytes(), gone=old))

    def symlink(self, target: str, path: Path) -> None:
        self._before_a_step()
        super().symlink(target, path)
        self.steps.append(Step("name", path, target=target))

    def unlink(self, path: Path) -> None:
        self._before_a_step()
        super().unlink(path)
        self.steps.append(Step("gone", path, gone=path))

    def touch(self, path: Path) -> None:
        self._before_a_step()
        super().touch(path)

    def make_folder(self, folder: Path) -> None:
        self._before_a_step()
        new = [path for path in (folder, *folder.parents) if not path.exists()]
        super().make_folder(folder)
        self.steps += [Step("folder", path) for path in reversed(new)]

    def sync_folder(self, folder: Path) -> None:
        self._before_a_step()
        super().sync_folder(folder)
        self.steps.append(Step("sync", folder))

    def _before_a_step(self) -> None:
        if self._watched is not None:
            new = set(self._watched.iterdir()) - self._seen
            self.steps += [Step("name", path, path.read_bytes()) for path in sorted(new)]
            self._seen |= new
        if self.count == self._stop_at:
            raise Stopped
        self.count += 1


class StopsBehindTheEntry(StoppingDisk):
    """Stops when the log has its new entry, and nothing of it is carried out."""

    def link(self, old: Path, new: Path) -> None:
        super().link(old, new)
        self._stop_at = self.count


def power_cuts(before: Path, table: Path, steps: list[Step]) -> Iterator[None]:
    """Put into `table`, one after the other, what a disk may show if the power fails after the steps.

    None of the names that were not synced is lost, or one, or two, or all of them.

    Args:
        before: a copy of the folder `table` as it durably was before the first of the steps.
    """
    pending: list[int] = []
    for index, step in enumerate(steps):
        if step.verb == "sync":
            pending = [each for each in pending if steps[each].path.parent != step.path]
        else:
            pending.append(index)
    counts = {count for count in (0, 1, 2, len(pending)) if count <= len(pending)}
    for lost in itertools.chain.from_iterable(itertools.combinations(pending, count) for count in sorted(counts)):
        shutil.rmtree(table)
        shutil.copytree(before, table, symlinks=True)
        for index, step in enumerate(steps):
            if step.verb != "sync" and index not in lost and step.path.parent.is_dir():
                _redo(step)
        yield


def _redo(step: Step) -> None:
    if step.verb == "folder":
        step.path.mkdir(exist_ok=True)
    elif step.verb == "name":
        step.path.unlink(missing_ok=True)
        if step.target is not None:
            step.path.symlink_to(step.target)
        elif step.content is not None:
            step.path.write_bytes(step.content)
    if step.gone is not None:
        step.gone.unlink(missing_ok=True)
