"""The password file of a lab's standbys: the user's own, readable for the user that runs the servers."""

import os
from pathlib import Path

from safekeeper.peers.local_secret import LocalSecret, passfile_line
from walproxy.postgres.binaries import server_user


def reader_passfile(folder: Path) -> Path:
    """Write the password file of libpq with which a server logs in to this user's safekeepers; return its path.

    Raises:
        ConfigurationError: see LocalSecret.
    """
    path = folder / "pgpass"
    content = passfile_line(LocalSecret().reader_password())
    path.touch(mode=0o600)
    path.write_bytes(content)
    user = server_user()
    if user is not None:
        os.chown(path, user.uid, user.gid)
    return path
