"""The errors of the agent's work on its server."""

from safekeeper.base.errors import WalproxyError


class ServerProblem(WalproxyError):
    """The local server did not do what was requested, or not in time. The message is one line."""


class ServerHangs(ServerProblem):
    """The server accepts the connection and does not reply in time."""


class RejoinFailed(WalproxyError):
    """The old primary is not a standby yet. `Rejoin.run` can be called again and continues."""
