"""`walproxy agent` with a bug, as the harness of failovers must find it: its commits wait for no quorum."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from walproxy.__main__ import main
from walproxy.agent import agent_settings

write = agent_settings.write


def write_without_quorum(data_directory: Path, settings: Mapping[str, str], *arguments: Any) -> bool:
    return write(data_directory, {**settings, "synchronous_standby_names": ""}, *arguments)


agent_settings.write = write_without_quorum
sys.argv[1:1] = ["agent"]
main()
