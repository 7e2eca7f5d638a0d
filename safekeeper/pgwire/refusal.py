"""Why a client is sent away, with all that it is told about it."""

from safekeeper.base.errors import RemoteProtocolError


class ClientRefused(RemoteProtocolError):
    """The conversation is over, and the client can understand why: it gets a FATAL error with this SQLSTATE and hint.

    `log_message` is for our log where the client must not learn as much; the exception's own text is that.
    """

    def __init__(self, sqlstate: str, message: str, *, hint: str = "", log_message: str = "") -> None:
        super().__init__(log_message or message)
        self.sqlstate = sqlstate
        self.message = message
        self.hint = hint
