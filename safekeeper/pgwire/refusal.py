"""The error that ends a client's connection, with everything that is sent to the client."""

from safekeeper.base.errors import RemoteProtocolError


class ClientRefused(RemoteProtocolError):
    """The connection ends, and the client can decode the reason: it receives a FATAL error with this SQLSTATE and hint.

    `log_message` is for the log, if the client must not learn as much; the exception's own text is for the client.
    """

    def __init__(self, sqlstate: str, message: str, *, hint: str = "", log_message: str = "") -> None:
        super().__init__(log_message or message)
        self.sqlstate = sqlstate
        self.message = message
        self.hint = hint
