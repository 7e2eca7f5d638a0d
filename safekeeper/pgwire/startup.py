"""The startup packet: the client's user and the requested connection.

A packet is pairs of strings. `admission` decides whether a safekeeper can serve the client: it supports only physical
replication by protocol 3. Each other request is refused with a separate error, and a hint.
Source: https://www.postgresql.org/docs/current/protocol-message-formats.html (StartupMessage)

Pure. A client that cannot be served raises ClientRefused.
"""

from dataclasses import dataclass

from safekeeper.pgwire.events import Authenticated
from safekeeper.pgwire.refusal import ClientRefused

NAME_BYTES_MAX = 63

_PROTOCOL_MAJOR = 3
# PostgreSQL accepts any prefix of these words as true.
_TRUE = {"1", "on", *("true"[:length] for length in range(1, 5)), *("yes"[:length] for length in range(1, 4))}
_NOT_SETTINGS = {"user", "database", "replication", "application_name", "options"}


@dataclass(frozen=True, slots=True)
class AdmittedClient:
    """A client that can be served, once it is authenticated.

    `is_negotiated`: it requested a newer protocol 3.x or protocol options, to which a reply must be sent.
    """

    client: Authenticated
    is_negotiated: bool
    unknown_options: tuple[str, ...]


def admission(version: int, body: bytes) -> AdmittedClient:
    """Evaluate the startup packet of protocol `version`.

    Raises:
        ClientRefused: it is not valid, or requests what a safekeeper does not support.
    """
    major, minor = version >> 16, version & 0xFFFF
    if major != _PROTOCOL_MAJOR:
        raise ClientRefused("0A000", f"protocol {major}.{minor} is not supported: the client must use protocol 3.0")
    parameters = parse_parameters(body)
    unknown_options = tuple(name for name in parameters if name.startswith("_pq_."))
    if parameters.get("replication", "").lower() not in _TRUE:
        raise ClientRefused(
            "0A000",
            "this is a safekeeper, not a database: connect with replication=true",
            hint="It stores WAL and streams it to standbys and pg_receivewal. For SQL connect to the primary.",
        )
    user = parameters.get("user", "")
    if not user or not user.isprintable():
        raise ClientRefused("28000", "the startup packet has no user name, or one that cannot be printed")
    settings = parse_settings(parameters.get("options", ""))
    ignored = _NOT_SETTINGS.union(unknown_options)
    settings |= {name.lower(): value for name, value in parameters.items() if name not in ignored}
    client = Authenticated(user, clean_name(parameters.get("application_name", "")), settings)
    return AdmittedClient(client, bool(minor or unknown_options), unknown_options)


def parse_parameters(body: bytes) -> dict[str, str]:
    """Return the parameters of a startup packet: pairs of strings, and an empty one after them.

    Raises:
        ClientRefused: the packet is not valid, a name is repeated or empty, or a string is not UTF-8.
    """
    strings = body.split(b"\0")
    # "user\0me\0\0" splits into user, me, and two empty ends.
    if len(strings) < 2 or len(strings) % 2 or strings[-2:] != [b"", b""]:
        raise ClientRefused("08P01", "the startup packet is truncated, or has data after its end")
    try:
        texts = [text.decode() for text in strings[:-2]]
    except UnicodeDecodeError:
        raise ClientRefused("08P01", "the startup packet has a name or a value that is not UTF-8") from None
    parameters: dict[str, str] = {}
    for name, value in zip(texts[::2], texts[1::2], strict=True):
        if not name or name in parameters:
            raise ClientRefused(
                "08P01", f"the startup packet has the parameter {name[:NAME_BYTES_MAX]!r} twice or empty"
            )
        parameters[name] = value
    return parameters


def parse_settings(options: str) -> dict[str, str]:
    """Return the settings in the startup parameter `options`: `-c name=value`, `-cname=value`, `--name=value`.

    A backslash quotes the next character, also a blank. All other options of a server's command line have no effect
    here and are ignored.
    """
    words = [word for word in _split_options(options) if word]
    settings = {}
    previous = ""
    for word in words:
        if previous == "-c":
            assignment = word
        elif word.startswith(("-c", "--")):
            assignment = word[2:]
        else:
            assignment = ""
        name, equals, value = assignment.partition("=")
        if name and equals:
            settings[name.replace("-", "_").lower()] = value
        previous = word if previous != "-c" else ""
    return settings


def clean_name(text: str) -> str:
    """Return `text` as PostgreSQL stores an application_name: printable ASCII, at most 63 bytes."""
    data = text.encode()[:NAME_BYTES_MAX]
    return "".join(chr(byte) if 32 <= byte < 127 else "?" for byte in data)


def _split_options(options: str) -> list[str]:
    words, word, escaped = [], "", False
    for character in options:
        if escaped or not (character == "\\" or character.isspace()):
            word += character
            escaped = False
        elif character == "\\":
            escaped = True
        else:
            words.append(word)
            word = ""
    return [*words, word]
