"""Follow the README's five minutes as a reader would: three terminals, psql, and the README's own code blocks.

The blocks are read from README.md, so a command that does not work there fails here, and a block that is added or moved
has to be added here: `STEPS` names them in order. What the text between the blocks promises is checked after each.

`.ci/walk` runs this file on a fresh Debian, as root and as ordinary users. tests/integration/lab/test_readme.py does it
on this machine, on other ports and without the installation. It needs nothing but Python.
"""

import argparse
import contextlib
import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

SECTION = "Five minutes on your own PostgreSQL"
# The language of each code block of the section, and what it is for.
STEPS = [
    ("sh", "install"),
    ("sh", "start the safekeepers"),
    ("sql", "create the role"),
    ("", "lines of pg_hba.conf"),
    ("sh", "start the proxy"),
    ("sql", "let commits wait"),
    ("sh", "watch"),
    ("sh", "kill one"),
    ("sql", "insert"),
    ("sh", "kill another one"),
    ("sh", "start both"),
    ("sql", "let commits wait for nothing"),
    ("sh", "end the safekeepers"),
    ("sql", "clean up"),
]
INSTALL_S_MAX = 900.0
STEP_S_MAX = 60.0

_POLL_S = 0.05
_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE 'INSERT INTO visits%'"


class WalkFailed(Exception):
    """The README promises something that did not happen."""


def section_of(readme: str) -> str:
    """Return the text of the section that is followed."""
    match = re.search(rf"^## {re.escape(SECTION)}$(.*?)^## ", readme, re.MULTILINE | re.DOTALL)
    if match is None:
        raise WalkFailed(f"the README has no section {SECTION!r}")
    return match[1]


def blocks_of(readme: str) -> dict[str, str]:
    """Return the code blocks of the section, by what they are for.

    Raises:
        WalkFailed: they are not those of STEPS.
    """
    found = []
    for indent, language, body in _BLOCK.findall(section_of(readme)):
        lines = [line.removeprefix(indent) for line in body.splitlines()]
        found.append((language, "\n".join(lines)))
    if [language for language, _ in found] != [language for language, _ in STEPS]:
        raise WalkFailed(f"the code blocks of the section are {[language for language, _ in found]}: change STEPS")
    return {name: text for (_, name), (_, text) in zip(STEPS, found, strict=True)}


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = STEP_S_MAX) -> None:
    """Wait until `condition()` holds.

    Raises:
        WalkFailed: it did not within `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise WalkFailed(f"waited {timeout_s:g} s, and it did not happen that {what}")
        time.sleep(_POLL_S)


def _processes_of_session(session_id: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            # After the command in brackets: state, parent, process group, session.
            if int(path.read_text().rpartition(")")[2].split()[3]) == session_id:
                found.append(int(path.parent.name))
    return found


class Terminal:
    """A bash in a pseudo-terminal, into which commands are typed."""

    def __init__(self, name: str, folder: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self.output = ""
        self._commands = 0
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            os.chdir(folder)
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "--noediting", "-i"], dict(environment))
        self.run("stty -echo; PS1=; PS2=")

    def type(self, text: str) -> None:
        """Type a line, and do not wait for anything."""
        os.write(self._terminal, f"{text}\n".encode())

    def interrupt(self) -> None:
        """Press Ctrl-C, and wait for the prompt."""
        os.write(self._terminal, b"\x03")
        self.run("true")

    def run(self, text: str, timeout_s: float = STEP_S_MAX) -> None:
        """Type commands, and wait until the last one has ended.

        Raises:
            WalkFailed: it failed, or took longer.
        """
        self._commands += 1
        begin = len(self.output)
        # In two parts, so that the echo of the command is not taken for its answer.
        self.type(f"{text}\necho done-{self._commands}-''with-$?")
        answer = re.compile(rf"done-{self._commands}-with-(\d+)")
        wait_until(lambda: self.read() and answer.search(self.output, begin) is not None, f"{text!r} ended", timeout_s)
        status = answer.search(self.output, begin)
        assert status is not None  # waited for above
        if status[1] != "0":
            raise WalkFailed(f"{text!r} failed with {status[1]}: {self.output[begin:]}")

    def read(self) -> bool:
        """Take in what was printed; return True."""
        while select.select([self._terminal], [], [], 0)[0]:
            try:
                data = os.read(self._terminal, 65536)
            except OSError:  # Linux: the other side is closed.
                break
            if not data:
                break
            self.output += data.decode(errors="replace")
        return True

    def close(self) -> None:
        """End bash and everything that still runs in its session; safekeepers take SIGHUP for a reload."""
        for pid in _processes_of_session(self._pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        os.close(self._terminal)
        os.waitpid(self._pid, 0)


class Walk:
    """One walk through the section.

    Args:
        readme: the text of README.md.
        checkout: where this project is.
        psql: the command that connects as a superuser, with its arguments.
        environment: of the terminals; HOME is where `~/walproxy` will be.
        status_url: where the proxy's HTTP listener is.
        safekeeper_url: where those of the safekeepers are, with `%d` for their number.
        edit: what is done to each code block before it is typed.
        log: takes a line for each step.
    """

    def __init__(
        self,
        readme: str,
        checkout: Path,
        psql: Sequence[str],
        environment: Mapping[str, str],
        *,
        status_url: str = "http://127.0.0.1:7667",
        safekeeper_url: str = "http://127.0.0.1:767%d",
        edit: Callable[[str], str] = lambda block: block,
        log: Callable[[str], None] = print,
    ) -> None:
        self._blocks = {name: edit(block) for name, block in blocks_of(readme).items()}
        self._psql = [*psql, "-X", "-v", "ON_ERROR_STOP=1"]
        self._status_url = status_url
        self._safekeeper_url = safekeeper_url
        self._log = log
        self._environment = {**environment, "TERM": "xterm"}
        self._terminals = [Terminal(f"terminal {number}", checkout, self._environment) for number in (1, 2, 3)]

    def follow(self, *, install: bool = True) -> None:
        """Follow all steps.

        Raises:
            WalkFailed: one did not do what the README says.
        """
        first, second, third = self._terminals
        if install:
            self._type(first, "install", INSTALL_S_MAX)
        self._type(first, "start the safekeepers")
        wait_until(lambda: all(self._safekeeper(number) for number in (1, 2, 3)), "three safekeepers answer")
        self._sql("create the role")
        self._say("start the proxy")
        second.type(self._blocks["start the proxy"])
        try:
            wait_until(lambda: self._streaming() == 3, "the proxy streams to three safekeepers")
        except WalkFailed as error:
            second.read()
            raise WalkFailed(f"{error}; the proxy printed: {second.output}") from None
        self._sql("let commits wait")
        wait_until(lambda: self._ask("SELECT sync_state FROM pg_stat_replication") == "sync", "commits wait for it")
        self._say("watch")
        third.type(self._blocks["watch"])
        wait_until(lambda: third.read() and third.output.count("streaming") >= 4, "the table shows three of them")
        third.interrupt()
        self._type(first, "kill one")
        wait_until(lambda: self._streaming() == 2, "one is gone")
        self._sql("insert")
        self._type(first, "kill another one")
        wait_until(lambda: self._streaming() <= 1, "two are gone")
        self._say("insert")
        inserting = subprocess.Popen([*self._psql, "-c", self._blocks["insert"]], env=self._environment)
        try:
            wait_until(lambda: self._ask(_WAITING) == "1", "the INSERT waits with SyncRep")
            self._type(first, "start both")
            inserting.wait(STEP_S_MAX)
        finally:
            inserting.kill()
            inserting.wait()
        if inserting.returncode != 0:
            raise WalkFailed("the INSERT failed")
        wait_until(lambda: self._streaming() == 3, "both are back")
        if self._ask("SELECT count(*) FROM visits") != "2":
            raise WalkFailed("not both rows are there")
        self._sql("let commits wait for nothing")
        second.interrupt()
        self._type(first, "end the safekeepers")
        wait_until(lambda: not any(self._safekeeper(number) for number in (1, 2, 3)), "all safekeepers have ended")
        self._sql("clean up")
        if self._ask("SELECT count(*) FROM pg_replication_slots") != "0":
            raise WalkFailed("the slot is still there")

    def close(self) -> None:
        """Close the terminals."""
        for terminal in self._terminals:
            terminal.close()

    def _say(self, name: str) -> None:
        self._log(f"--- {name}\n{self._blocks[name]}")

    def _type(self, terminal: Terminal, name: str, timeout_s: float = STEP_S_MAX) -> None:
        self._say(name)
        terminal.run(self._blocks[name], timeout_s)

    def _sql(self, name: str) -> None:
        self._say(name)
        command = [*self._psql, "-f", "-"]
        answer = subprocess.run(
            command,
            input=self._blocks[name],
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=STEP_S_MAX,
        )
        if answer.returncode != 0:
            raise WalkFailed(f"{shlex.join(command)} failed: {answer.stderr}")

    def _ask(self, query: str) -> str:
        answer = subprocess.run(
            [*self._psql, "-Atc", query], env=self._environment, capture_output=True, text=True, check=True, timeout=30
        )
        return answer.stdout.strip()

    def _status(self, url: str) -> dict[str, Any] | None:
        try:
            with urllib.request.urlopen(f"{url}/status", timeout=5) as answer:
                status: dict[str, Any] = json.load(answer)
                return status
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return None

    def _safekeeper(self, number: int) -> bool:
        return self._status(self._safekeeper_url % number) is not None

    def _streaming(self) -> int:
        """Return to how many safekeepers the proxy streams; -1 if it does not answer."""
        status = self._status(self._status_url)
        return -1 if status is None else [each["state"] for each in status["safekeepers"]].count("streaming")


def main() -> None:
    """Follow the README of the current folder, with the user and the environment of this process."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--psql", default="sudo -u postgres psql", help="connects as a superuser")
    words = parser.parse_args()
    walk = Walk(Path("README.md").read_text(), Path.cwd(), shlex.split(words.psql), os.environ)
    try:
        walk.follow()
    except WalkFailed as error:
        sys.exit(f"README.md: {error}")
    finally:
        walk.close()
    print("--- every step did what README.md says")


if __name__ == "__main__":
    main()
