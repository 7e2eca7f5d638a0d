"""What the programs of the agent's PostgreSQL get from its environment."""

import os
from pathlib import Path

import pytest

from walproxy.agent.owner_commands import Owner, run_as_owner


def test_variables_that_lead_to_another_server_or_listener_are_not_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PGHOST", "WALPROXY_SAFEKEEPERS", "PGPASSFILE"):
        monkeypatch.setenv(name, "x")
    printed = run_as_owner(
        Owner(os.getuid(), os.getgid(), "me", str(tmp_path)), ["/usr/bin/env"], timeout_s=20.0
    ).stdout.splitlines()
    assert "PGPASSFILE=x" in printed
    assert not [line for line in printed if line.startswith(("PGHOST=", "WALPROXY_SAFEKEEPERS="))]
