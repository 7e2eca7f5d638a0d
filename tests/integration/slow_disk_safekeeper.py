"""A safekeeper on a disk that a test can slow down: `slow_disk_safekeeper.py CONTROL-FOLDER OPTIONS-OF-safekeeper-run`.

While the control folder holds a file `slow`, each fdatasync takes 20 ms longer; while it holds `held`, none returns.
What was written is in the operating system all the while: received, not flushed.
"""

import sys
import time
from pathlib import Path

from walproxy.bench.slow_disk import run_safekeeper

_SLOW_S = 0.02
_POLL_S = 0.005


def main() -> None:
    control = Path(sys.argv[1])

    def delay() -> None:
        if (control / "slow").exists():
            time.sleep(_SLOW_S)
        while (control / "held").exists():
            time.sleep(_POLL_S)

    sys.exit(run_safekeeper(delay, sys.argv[2:]))


main()
