"""A program that says what it finds itself in, or ends as it is told: a fork must be the same as a start.

run facts       prints JSON
run exit CODE   exits with that, a number or a text
run fail        raises an exception that nothing catches
run wait        prints "waits" and waits for a signal
"""

import asyncio
import gc
import json
import logging
import os
import random
import resource
import signal
import sys
import threading
from pathlib import Path
from typing import Any

LIMITS = sorted({value for name, value in vars(resource).items() if name.startswith("RLIMIT_")})


def facts() -> dict[str, Any]:
    """Return what is the same in each process that is started in this way."""
    with Path("/proc/self/status").open() as lines:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in lines)
    return {
        "argv": sys.argv,
        "path": sys.path,
        "main": sys.modules["__main__"].__dict__.get("__spec__") is not None and __name__,
        "flags": repr(sys.flags),
        "folder": str(Path.cwd()),
        "environment": dict(os.environ),
        # Of the C library, for the libraries that read it themselves.
        "path_variable": os.environb[b"PATH"] == os.getenvb(b"PATH"),
        "leads_its_session": os.getsid(0) == os.getpgid(0) == os.getpid(),
        "descriptors": sorted(str(path) for path in Path("/proc/self/fd").iterdir()),
        "streams": [_stream(stream) for stream in (sys.stdin, sys.stdout, sys.stderr)],
        "input": sys.stdin.read(),
        "limits": [resource.getrlimit(number) for number in LIMITS],
        "signals": [status[name] for name in ("SigBlk", "SigIgn", "SigCgt")],
        "handlers": [repr(signal.getsignal(number)).split(" at ")[0] for number in sorted(signal.valid_signals())],
        "umask": status["Umask"],
        "threads": threading.active_count(),
        "log_handlers": logging.root.handlers,
        "frozen": gc.get_freeze_count(),
        "event_loop": asyncio._get_running_loop() is not None,
    }


def _stream(stream: Any) -> tuple[object, ...]:
    return stream.fileno(), stream.encoding, stream.errors, stream.line_buffering, stream.write_through


def main() -> None:
    """Do what the arguments say."""
    verb, *words = sys.argv[2:]
    if verb == "facts":
        print(json.dumps({"facts": facts(), "chance": random.random(), "pid": os.getpid()}))
    elif verb == "exit":
        sys.exit(int(words[0]) if words[0].isdecimal() else words[0])
    elif verb == "fail":
        raise ValueError("it fails")
    else:
        print("waits", flush=True)
        while True:
            signal.pause()


if __name__ == "__main__":
    main()
