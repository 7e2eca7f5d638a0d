"""The errors of the agent's work on its server."""

from safekeeper.base.errors import WalproxyError


class RejoinFailed(WalproxyError):
    """The old primary is not a standby yet. `RejoinRun.run` can be called again and continues."""


class LeaseUnavailable(WalproxyError):
    """The store of a lease does not reply, or cannot decide now. A held lease remains held until its time passes."""
