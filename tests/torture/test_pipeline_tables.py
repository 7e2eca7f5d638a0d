"""Tables whose writers and whose maintenance are killed, again and again: each row is there once."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.unit.table_rows import SMALL, lsns_of, open_table, small
from walproxy.pipeline.choices import TABLE_FORMATS, TableFormat

KILLS = 20
FILES = 3
ROWS = 5


def write(folder: Path, writer: str, offset: int) -> None:
    """Commit one batch after the other, for ever. The rows of a batch follow from its number."""
    with open_table(folder, "t") as table:
        last = table.last_batch(writer)
        batch = 0 if last is None else last + 1
        while True:
            files = []
            for index in range(FILES):
                begin = offset + (batch * FILES + index) * ROWS
                file = table.new_file(f"part-{index}").write([small(range(begin, begin + ROWS))])
                assert file is not None
                files.append(file)
            table.commit(writer, batch, files)
            batch += 1


def tidy_up(folder: Path) -> None:
    """Compact, expire and clean, for ever."""
    with open_table(folder, "t") as table:
        while True:
            table.compact(200_000)
            table.expire(5)
            table.remove_orphans(3600)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("table_format", TABLE_FORMATS)
def test_writers_and_maintenance_that_are_killed_again_and_again(tmp_path: Path, table_format: TableFormat) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    open_table(tmp_path, "t", table_format, SMALL).close()
    offsets = {"one": 0, "two": 10_000_000}
    roles = [*(("write", name, str(offset)) for name, offset in offsets.items()), ("tidy_up",)]
    running = {role: start(tmp_path, role) for role in roles}
    try:
        for _ in range(KILLS):
            time.sleep(chance.uniform(0.5, 6))
            role = chance.choice(roles)
            for each, process in running.items():
                if process.poll() is not None:
                    pytest.fail(f"{each}: {log_of(tmp_path, each).read_text()}")
            running[role].kill()
            running[role].wait()
            running[role] = start(tmp_path, role)
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    with open_table(tmp_path, "t") as table:
        expected = []
        for writer, offset in offsets.items():
            last = table.last_batch(writer)
            assert last is not None
            print(f"{writer}: {last + 1} batches")
            expected += range(offset, offset + (last + 1) * FILES * ROWS)
        assert lsns_of(table) == expected
        table.compact()
        table.expire(0)
        table.remove_orphans(0)
        assert lsns_of(table) == expected
        print(f"{len(list(tmp_path.rglob('*')))} files at the end")


def start(folder: Path, role: tuple[str, ...]) -> subprocess.Popen[bytes]:
    """Run a function of this file in a process of its own."""
    with log_of(folder, role).open("wb") as log:
        return subprocess.Popen([sys.executable, "-m", __name__, str(folder), *role], stderr=log)


def log_of(folder: Path, role: tuple[str, ...]) -> Path:
    """Return where a process says why it ended."""
    return folder / f"{'-'.join(role)}.log"


if __name__ == "__main__":
    where, what, *arguments = sys.argv[1:]
    if what == "write":
        write(Path(where), arguments[0], int(arguments[1]))
    else:
        tidy_up(Path(where))
