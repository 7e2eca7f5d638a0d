"""Files for their owner only: which modes are warned of."""

import os
from pathlib import Path

import pytest

from safekeeper.base.private_files import warn_if_shared
from safekeeper.peers.shared_secret import SharedSecret
from safekeeper.serving.users import Users

ALWAYS_SHARED = (0o604, 0o644, 0o660, 0o666)
# Of a file that is root's, its group may read: as PostgreSQL has it for server keys.
GROUP_READS = 0o640


def test_a_file_that_others_can_read_is_warned_of_and_names_the_command(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "key"
    path.write_text("")
    for mode in ALWAYS_SHARED:
        path.chmod(mode)
        warn_if_shared(path, "private key")
        assert caplog.records.pop().getMessage() == (
            f"other users can read the private key in {path} (mode {mode:04o}): chmod 600 {path}"
        )
    path.chmod(0o600)
    warn_if_shared(path, "private key")
    path.chmod(GROUP_READS)
    warn_if_shared(path, "private key")
    assert len(caplog.records) == (0 if os.geteuid() == 0 else 1)
    warn_if_shared(tmp_path / "missing", "private key")


def test_secrets_and_user_files_are_looked_at(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    secret, users = tmp_path / "secret", tmp_path / "users"
    secret.write_text("s" * 32)
    users.write_text("")
    for path in (secret, users):
        path.chmod(0o644)
    SharedSecret(secret, None)
    Users(users)
    assert [record.getMessage().split(" in /")[0] for record in caplog.records] == [
        "other users can read the shared secret",
        "other users can read the verifiers of users",
    ]
