"""The run in namespaces of its own: network, processes and mounts. Linux, root, iproute2 and iptables.

The command starts itself again under unshare(1). All addresses, interfaces and firewall rules exist only inside, and
when the command ends, in whatever way, the kernel ends each process in there and removes the rest. Process 1 is a
shell, which reaps the servers that outlive the process that started them.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from safekeeper.base.errors import WalproxyError

NETWORKS = Path("/run/netns")
_VARIABLE = "WALPROXY_LAB_ISOLATED"
_PROGRAMS = ("unshare", "nsenter", "ip", "iptables-restore", "mount")
_UNSHARE = ("unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--")
_TRIAL_TIMEOUT_S = 20.0
# What a run needs, tried in namespaces that end with the trial.
_TRIAL = """
set -e
mkdir -p /run/netns
mount -t tmpfs tmpfs /run/netns
ip link set lo up
ip netns add trial
ip link add br0 type bridge
ip link add veth0 type veth peer name eth0 netns trial
printf '*filter\\n-A INPUT -s 10.0.0.1 -j DROP\\nCOMMIT\\n' | nsenter --net=/run/netns/trial iptables-restore
"""


def obstacle() -> str:
    """Return why this machine does not give the run namespaces of its own; empty if it does."""
    if sys.platform != "linux":
        return "only Linux has network namespaces"
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    missing = [program for program in _PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"{', '.join(missing)} missing: install util-linux, iproute2 and iptables"
    try:
        answer = subprocess.run(
            [*_UNSHARE, "sh", "-c", _TRIAL],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_TRIAL_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if answer.returncode != 0:
        return " ".join(answer.stderr.split()) or f"unshare ended with exit code {answer.returncode}"
    return ""


def is_isolated() -> bool:
    """Return whether this process is in the namespaces of a run."""
    return _VARIABLE in os.environ


def run_isolated(words: Sequence[str]) -> int:
    """Run a command in namespaces of its own to its end; return its exit code.

    All its processes end with it, and with this process.
    """
    # With a second command the shell stays, as process 1.
    shell = ("sh", "-c", '"$@"; exit $?', "sh")
    with subprocess.Popen([*_UNSHARE, *shell, *words], env={**os.environ, _VARIABLE: "1"}) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            # The terminal has sent it to the command, too, which cleans up.
            return process.wait()


def enter() -> None:
    """Prepare the namespaces: a folder for those of the hosts, and the loopback interface.

    Raises:
        WalproxyError: it is not possible.
    """
    NETWORKS.mkdir(parents=True, exist_ok=True)
    run("mount", "-t", "tmpfs", "tmpfs", str(NETWORKS))
    run("ip", "link", "set", "lo", "up")


def run(*words: str, content: str = "") -> None:
    """Run a program of the system to its end.

    Args:
        content: its standard input.

    Raises:
        WalproxyError: it failed.
    """
    answer = subprocess.run(words, input=content, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise WalproxyError(f"{' '.join(words)} failed: {' '.join(answer.stderr.split())}")
