"""The process that has a program's modules imported, and forks a child for each daemon or command that a test starts.

`python -m tests.forking.server KEY DESCRIPTOR`: KEY is one of PRELOADED and begins with the program, DESCRIPTOR is one
end of a socket whose other end tests/forking/daemons.py holds. The imports are most of what a start costs; a child has
them.

A child is, as far as a test can see, what `subprocess.Popen` of `python -m PROGRAM` would be: it has its own pid,
session, working directory, environment, limits, signal mask and descriptors, and nothing else that is open here. It
leaves `serve` with its request, and nothing of this module is left but two frames below the program: exceptions and
exit codes are the interpreter's. This process has one thread, no event loop and no logging handler, so no child
inherits one; Python seeds `random` anew in each child. What a child shares with its siblings: the seed of hash(), the
addresses of the imported modules, and the command line that `ps` shows.

No child outlives this process: the kernel ends it. This process ends when the other end of its socket is closed. An
ended child stays a zombie, and its pid its own, until the other end asks how it ended.
"""

import ctypes
import importlib
import json
import os
import resource
import runpy
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Any, TypedDict

SAFEKEEPER = ("safekeeper.cli", "safekeeper.process.service")
# The agent, and the operator's commands that the integration tests run dozens of times.
COMMANDS = (
    *("agent", "archive", "discarded", "events", "failover", "levels", "limbo", "members", "ready-to-promote"),
    *("rebootstrap", "restore", "switchover", "wal-fetch"),
)
COMMANDS_KEY = "walproxy COMMAND"
# What `python -m PROGRAM run` imports before it serves. Not the program itself, which is run in a child.
PRELOADED = {
    "safekeeper": SAFEKEEPER,
    "walproxy": ("walproxy.cli", "walproxy.cli.run"),
    # Not with the daemon: a test measures how much memory a proxy has.
    COMMANDS_KEY: ("walproxy.cli", *(f"walproxy.cli.{name.replace('-', '_')}" for name in COMMANDS)),
    "walproxy.lab.testing.faulty_disk": (*SAFEKEEPER, "walproxy.lab.testing.unsynced"),
    "tests.forking.probe": (),
}
MESSAGE_BYTES = 200_000
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_STANDARD = (0, 1, 2)


class Request(TypedDict):
    """A child to be made; with it come the descriptors of its standard streams.

    Attributes:
        words: the program's arguments.
        environment, folder, umask, limits, mask: of the process that asks, as `subprocess.Popen` would leave them to a
            child; `limits` are (number, soft, hard), `mask` numbers of signals.
    """

    words: list[str]
    environment: dict[str, str]
    folder: str
    umask: int
    limits: list[tuple[int, int, int]]
    mask: list[int]


def serve(connection: socket.socket) -> tuple[Request, Sequence[int]] | None:
    """Answer until the other end is closed, and return None; in each child, return what it is to become.

    A number asks for the end of that child, if it has come; any other message is a `Request` of a new one.
    """
    while True:
        message, descriptors, _, _ = socket.recv_fds(connection, MESSAGE_BYTES, len(_STANDARD))
        if not message:
            return None
        asked: Any = json.loads(message)
        if isinstance(asked, int):
            pid, status = os.waitpid(asked, os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        else:
            answer = os.fork()
            if answer == 0:
                connection.close()
                return asked, descriptors
            for descriptor in descriptors:
                os.close(descriptor)
        connection.send(json.dumps(answer).encode())


def become(request: Request, descriptors: Sequence[int], parent: int) -> None:
    """Give this process what the request says it has, and nothing besides."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != parent:
        os._exit(1)  # The parent has ended before this process could ask to end with it.
    os.setsid()
    for number, descriptor in zip(_STANDARD, descriptors, strict=True):
        os.dup2(descriptor, number)
    os.closerange(len(_STANDARD), os.sysconf("SC_OPEN_MAX"))
    os.chdir(request["folder"])
    os.umask(request["umask"])
    for number, soft, hard in request["limits"]:
        resource.setrlimit(number, (soft, hard))
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[0] = request["folder"]
    sys.argv[1:] = request["words"]
    signal.pthread_sigmask(signal.SIG_SETMASK, request["mask"])


def main() -> None:
    """Import what the program needs, serve, and run the program in each child."""
    key, descriptor = sys.argv[1], int(sys.argv[2])
    for module in PRELOADED[key]:
        importlib.import_module(module)
    parent = os.getpid()
    with socket.socket(fileno=descriptor) as connection:
        child = serve(connection)
    if child is not None:
        become(*child, parent)
        del child
        runpy.run_module(key.split()[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
