"""Settings of a program: declared once, read from four places, validated, immutable.

A program's settings are a frozen dataclass whose fields are created by `option`. Each option can be given on the
command line, in an environment variable, in the cluster's file (safekeeper/base/cluster_file.py), or not at all: the
first of them that has it takes precedence. The value is parsed in the same way from every place, and an error names the
place and the valid form.

    @dataclass(frozen=True)
    class Settings:
        id: int = option("the safekeeper's number", parse=positive_integer)
        listen: Address = option("where to listen", parse=address, default="127.0.0.1:5454")

    settings = load(Settings, "SAFEKEEPER", command_line={"id": "1"}, environment=os.environ)

`click_options` declares the command line: what a person types. An option that is a key only is set in the file, in the
environment, or by -c KEY=VALUE, as of PostgreSQL. The names of environment variables are the prefix and the name in
capitals.
"""

import dataclasses
import hmac
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.networks import Networks

_Settings = TypeVar("_Settings")
_Parse = Callable[[Any], Any]
_Command = TypeVar("_Command", bound=Callable[..., Any])
_REQUIRED = object()
ASSIGNMENTS = "assignments"
"""The parameter of the option -c."""

_HOST_NAME = re.compile("[a-z0-9_.-]{1,253}")
# PostgreSQL: NAMEDATALEN - 1.
_NAME_LENGTH_MAX = 63
_SLOT_NAME = re.compile(rf"[a-z0-9_]{{1,{_NAME_LENGTH_MAX}}}")


class Option(NamedTuple):
    """The declaration of one option.

    Attributes:
        help: one line, without a full stop.
        parse: turns the given string or TOML value into the value; raises ValueError with the reason if it is invalid.
        default: the default in the form in which it is given; parsed in the same way.
        metavar: the placeholder for the value in the help.
        reloadable: a running process takes over a new value at SIGHUP.
        environment_only: it is a secret, which must be neither on a command line, which every list of processes shows,
            nor in a file that other users may read.
        is_flag: on the command line it has no value, and means true.
        repeatable: on the command line it may be given several times; the values are passed as a tuple.
        old_name: a shorter name on the command line and in the environment; the help does not show it.
        is_key_only: it is not an option of the command line.
        in_place_of: an option of which the file's value has no effect if this one is in the environment.
    """

    help: str
    parse: _Parse
    default: Any
    metavar: str
    reloadable: bool
    environment_only: bool
    is_flag: bool = False
    repeatable: bool = False
    old_name: str | None = None
    is_key_only: bool = False
    in_place_of: str = ""

    def names(self, name: str) -> tuple[str, ...]:
        """Return the names under which the option is accepted; `name`, its present one, is the first."""
        return (name,) if self.old_name is None else (name, self.old_name)


class Given(NamedTuple):
    """A value as it is written, and where.

    Attributes:
        place: for an error.
        value: not parsed yet.
    """

    place: str
    value: Any


class Address(NamedTuple):
    """A host and a TCP port; port 0 lets the operating system choose when listening."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def option(
    help: str,
    *,
    parse: _Parse,
    default: Any = _REQUIRED,
    metavar: str = "TEXT",
    reloadable: bool = False,
    environment_only: bool = False,
    is_flag: bool = False,
    repeatable: bool = False,
    old_name: str | None = None,
    is_key_only: bool = False,
    in_place_of: str = "",
) -> Any:
    """Declare a field of a settings dataclass; see `Option`. Without a default the option is required."""
    declared = Option(
        help,
        parse,
        default,
        metavar,
        reloadable,
        environment_only,
        is_flag,
        repeatable,
        old_name,
        is_key_only,
        in_place_of,
    )
    return dataclasses.field(metadata={"option": declared})


def key(help: str, **declared: Any) -> Any:
    """Declare a field that is a key of the file, and not an option of the command line; see `option`."""
    return option(help, is_key_only=True, **declared)


def file_option(help: str, *, is_key_only: bool = False) -> Any:
    """Declare an option for an existing file, None by default."""
    return option(help, parse=optional(existing_file), default=None, metavar="FILE", is_key_only=is_key_only)


def networks_option(help: str) -> Any:
    """Declare a key for a list of networks, None by default."""
    return key(help, parse=optional(networks), default=None, metavar="NETWORK,...", reloadable=True)


def http_hosts_option() -> Any:
    """Declare the key for the names of the HTTP listener's host."""
    return key(
        "Host names for which HTTP is served, separated by commas, besides IP addresses and localhost; by "
        "default those of [servers] and [safekeepers]",
        parse=host_names,
        default="",
        metavar="NAME,...",
        reloadable=True,
    )


def secret_option() -> Any:
    """Declare the option for the secret itself: in the environment only."""
    return option(
        "The shared secret itself, in place of --secret-file",
        parse=optional(secret_value),
        default=None,
        metavar="SECRET",
        environment_only=True,
        in_place_of="secret_file",
    )


def http_tls_option() -> Any:
    """Declare the key that enables TLS on the HTTP listener."""
    return key(
        "Serve HTTP over TLS, with the certificate of tls_cert", parse=yes_or_no, default="false", metavar="BOOL"
    )


def options_of(settings_type: type) -> dict[str, Option]:
    """Return the options that a settings dataclass declares, by name, in their order."""
    return {field.name: field.metadata["option"] for field in dataclasses.fields(settings_type)}


def load(
    settings_type: type[_Settings],
    prefix: str,
    *,
    command_line: Mapping[str, Any],
    environment: Mapping[str, str],
    file: Mapping[str, Given] | None = None,
) -> _Settings:
    """Return the settings, each from the first place that has it: command line, environment, file, default.

    Args:
        settings_type: a frozen dataclass of `option` fields.
        prefix: the prefix of the environment variables, e.g. "SAFEKEEPER".
        command_line: by option name; None, or an empty tuple, means that it was not given. What was given by -c is a
            tuple of KEY=VALUE under ASSIGNMENTS.
        environment: all variables; those without the prefix are ignored.
        file: what the cluster's file has for this program.

    Raises:
        ConfigurationError: an option is unknown, missing or not valid.
    """
    options = options_of(settings_type)
    assigned = _assignments(command_line.get(ASSIGNMENTS) or (), options)
    in_file = dict(file or {})
    for name, declared in options.items():
        if declared.in_place_of and environment_variable(prefix, name) in environment:
            in_file.pop(declared.in_place_of, None)
    values = {}
    for name, declared in options.items():
        names = declared.names(name)
        given = [
            [
                Given(option_name(n, declared), command_line[n])
                for n in names
                if command_line.get(n) not in (None, ()) and not declared.environment_only
            ],
            [assigned[name]] if name in assigned else [],
            [Given(v, environment[v]) for v in (environment_variable(prefix, n) for n in names) if v in environment],
            [in_file[name]] if name in in_file else [],
        ]
        if declared.default is not _REQUIRED:
            given.append([Given(f"default of {option_name(name, declared)}", declared.default)])
        first = next((place for place in given if place), None)
        if first is None:
            variable = environment_variable(prefix, name)
            raise ConfigurationError(
                f"{option_name(name, declared)} is missing: give it, or set {variable}, or write it into the cluster's "
                "file (--config)"
            )
        values[name] = _value(declared, first)
    return settings_type(**values)


def _assignments(written: Sequence[str], options: Mapping[str, Option]) -> dict[str, Given]:
    """Return what was given by -c, by option."""
    found = {}
    for each in written:
        name, equals, value = each.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or name not in options or not options[name].is_key_only:
            known = ", ".join(name for name, declared in options.items() if declared.is_key_only)
            # The value is not quoted: it may be a secret.
            problem = f"{name} is not a key" if equals else f"{name!r} is not KEY=VALUE"
            raise ConfigurationError(f"-c: {problem}; the keys are {known}")
        found[name] = Given(f"-c {name}", value.strip())
    return found


def _value(declared: Option, given: Sequence[Given]) -> Any:
    """Return the value of an option that one place gives under its name, its shorter one, or both.

    Raises:
        ConfigurationError: it is not valid, or the two names have different values.
    """
    values = []
    for place, written in given:
        try:
            values.append(declared.parse(written))
        except ValueError as error:
            raise ConfigurationError(f"{place}: {error}") from error
    if any(value != values[0] for value in values[1:]):
        raise ConfigurationError(
            f"{' and '.join(place for place, _ in given)} are two names of one option and have different values: "
            "keep the first only"
        )
    return values[0]


def command_line_name(name: str) -> str:
    """Return the option's name on the command line."""
    return "--" + name.replace("_", "-")


def option_name(name: str, declared: Option) -> str:
    """Return the option's name in a message: as on the command line, or as its key."""
    return name if declared.is_key_only else command_line_name(name)


def environment_variable(prefix: str, name: str) -> str:
    """Return the environment variable of the option."""
    return f"{prefix}_{name.upper()}"


def config_option(command: _Command, **attributes: Any) -> _Command:
    """Add --config to a click command: its parameter `config` is the path of the cluster's file."""
    return click.option(
        "--config",
        type=click.Path(path_type=Path),
        envvar="WALPROXY_CONFIG",
        metavar="FILE",
        help="The cluster's file; by default /etc/walproxy/walproxy.toml, if it is there. [WALPROXY_CONFIG]",
        **attributes,
    )(command)


def click_options(settings_type: type, prefix: str) -> Callable[[_Command], _Command]:
    """Return a decorator that adds the options of `settings_type`, --config and, if there are keys, -c to a command.

    The values are passed as given, None if not given: `load` parses them.
    """

    def decorate(command: _Command) -> _Command:
        options = options_of(settings_type)
        decorated = config_option(command)
        keys = [name for name, declared in options.items() if declared.is_key_only]
        if keys:
            decorated = click.option(
                "-c",
                ASSIGNMENTS,
                metavar="KEY=VALUE",
                multiple=True,
                help=f"Set a key of the file for this run; can be repeated. The keys are {', '.join(keys)}.",
            )(decorated)
        for name, declared in reversed(options.items()):
            if declared.environment_only or declared.is_key_only:
                continue
            for each in reversed(declared.names(name)):
                decorated = _click_option(each, declared, prefix, name)(decorated)
        return decorated

    return decorate


def _click_option(spelling: str, declared: Option, prefix: str, name: str) -> Callable[[_Command], _Command]:
    """Return the click option for one of the names of an option."""
    notes = [f"[{environment_variable(prefix, name)}]"]
    if declared.default is not _REQUIRED and declared.default not in (None, ""):
        notes.insert(0, f"Default: {declared.default}.")
    shown: dict[str, Any] = {"help": f"{declared.help}. {' '.join(notes)}", "hidden": spelling != name}
    if declared.is_flag:
        return click.option(command_line_name(spelling), spelling, is_flag=True, default=None, **shown)
    return click.option(
        command_line_name(spelling), spelling, metavar=declared.metavar, multiple=declared.repeatable, **shown
    )


def changed_options(old: Any, new: Any) -> tuple[list[str], list[str]]:
    """Return the names of the options that differ: (those that a running process can change, those that cannot)."""
    reloadable: list[str] = []
    fixed: list[str] = []
    for name, declared in options_of(type(new)).items():
        if getattr(old, name) != getattr(new, name):
            (reloadable if declared.reloadable else fixed).append(name)
    return reloadable, fixed


# Parsers. Each takes the given string or TOML value and returns the value, or raises ValueError with one line.


def text(written: Any) -> str:
    """Parse a string that is not empty."""
    if not isinstance(written, str) or not written.strip() or "\0" in written:
        raise ValueError(f"{written!r} is not a string")
    return written


def slot_name(written: Any) -> str:
    """Parse the name of a replication slot."""
    if not isinstance(written, str) or _SLOT_NAME.fullmatch(written) is None:
        raise ValueError(
            f"{written!r} cannot be a slot's name: use lower-case letters, digits and underscores, at most 63"
        )
    return written


def application_name(written: Any) -> str:
    """Parse a name for synchronous_standby_names: PostgreSQL replaces other characters, so it would never match."""
    name = text(written)
    is_plain = name.isascii() and name.isprintable() and name == name.strip()
    if not is_plain or len(name) > _NAME_LENGTH_MAX or '"' in name or name == "*":
        raise ValueError(
            f"{name!r} cannot be a name in synchronous_standby_names: use printable ASCII without double quotes, "
            f"at most {_NAME_LENGTH_MAX}, and not *"
        )
    return name


def folder(written: Any) -> Path:
    """Parse the path of a folder."""
    return Path(text(written))


def existing_file(written: Any) -> Path:
    """Parse the path of an existing file."""
    path = Path(text(written))
    try:
        if path.is_file():
            return path
    except OSError as error:  # E.g. a name that is not valid for a file.
        raise ValueError(f"{path} does not exist or is not a file: {error.strerror or error}") from error
    raise ValueError(f"{path} does not exist or is not a file")


def networks(written: Any) -> Networks:
    """Parse NETWORK,..., or a TOML list of them; see Networks."""
    if isinstance(written, list) and all(isinstance(part, str) for part in written):
        written = ",".join(written)
    return Networks.parse(text(written))


def host_names(written: Any) -> frozenset[str]:
    """Parse NAME,..., or a TOML list of them; in lower case."""
    parts = written.split(",") if isinstance(written, str) else written
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise ValueError(f"{written!r} is not a list of host names")
    names = {part.strip().lower().removesuffix(".") for part in parts} - {""}
    for name in sorted(names):
        if _HOST_NAME.fullmatch(name) is None:
            raise ValueError(f"{name!r} is not the name of a host: write it without http:// and port")
    return frozenset(names)


def key_values(written: Any) -> Mapping[str, str]:
    """Parse KEY=VALUE,..., or a TOML table of strings."""
    if isinstance(written, str):
        pairs = [part.partition("=") for part in written.split(",") if part.strip()]
        if any(not key.strip() or not equals for key, equals, _ in pairs):
            # It is not quoted: a value may be a secret.
            raise ValueError("not every part has the form KEY=VALUE")
        written = {key.strip(): value.strip() for key, _, value in pairs}
    if not isinstance(written, dict) or not all(isinstance(value, str) for value in written.values()):
        raise ValueError("not every part has the form KEY=VALUE")
    return dict(written)


def optional(parse: _Parse) -> _Parse:
    """Return the parser for an option that is not required: its default is None."""
    return lambda written: None if written is None else parse(written)


def yes_or_no(written: Any) -> bool:
    """Parse true or false."""
    if isinstance(written, bool):
        return written
    if isinstance(written, str) and written.lower() in ("true", "yes", "on", "1"):
        return True
    if isinstance(written, str) and written.lower() in ("false", "no", "off", "0"):
        return False
    raise ValueError(f"{written!r} is not true or false")


class Secret:
    """A secret of the settings: never printed, equal to one with the same bytes.

    Attributes:
        value: its bytes.
    """

    def __init__(self, value: bytes) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "Secret(...)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self.value, other.value)

    __hash__ = None  # type: ignore[assignment]  # No dictionary needs one.


SECRET_BYTES_MIN = 16


def secret_value(written: Any) -> Secret:
    """Parse a secret of 16 bytes or more, which cannot be guessed; surrounding blanks and line breaks are removed."""
    value = written.strip().encode() if isinstance(written, str) else b""
    if len(value) < SECRET_BYTES_MIN:
        # It is not quoted, even if it is not valid.
        raise ValueError(f"a secret must have at least {SECRET_BYTES_MIN} bytes: make one with openssl rand -hex 32")
    return Secret(value)


# Numbers are sent in MessagePack and in frames of 64 bits; no count or id needs half of that.
_INTEGER_MAX = 2**63 - 1


def positive_integer(written: Any) -> int:
    """Parse a whole number above 0 that fits into 63 bits."""
    number = _number(written, int)
    if number < 1:
        raise ValueError(f"{written!r} is not a whole number above 0")
    if number > _INTEGER_MAX:
        raise ValueError(f"{written!r} is too large: the highest number is {_INTEGER_MAX}")
    return int(number)


def seconds(written: Any) -> float:
    """Parse a time in seconds above 0."""
    number = _number(written, float)
    if not 0 < number < 1e9:
        raise ValueError(f"{written!r} is not a number of seconds above 0")
    return float(number)


def seconds_or_never(written: Any) -> float:
    """Parse a time in seconds; 0 stands for never."""
    return 0.0 if _number(written, float) == 0 else seconds(written)


_POWERS = {"K": 10, "M": 20, "G": 30, "T": 40}
_UNITS = {"": 1, "B": 1} | {letter + ending: 1 << power for letter, power in _POWERS.items() for ending in ("B", "IB")}


def size_bytes(written: Any) -> int:
    """Parse a size in bytes, also with a unit, a power of 1024 as in PostgreSQL: `1048576`, `64MB`, `1 GiB`."""
    if isinstance(written, str):
        digits = written.strip().rstrip("BbIiKkMmGgTt").strip()
        unit = _UNITS.get(written.strip()[len(digits) :].strip().upper())
        if digits.isascii() and digits.isdecimal() and unit is not None:
            return int(digits) * unit
    elif type(written) is int and written >= 0:
        return written
    raise ValueError(f"{written!r} is not a size: write bytes, or a number with kB, MB, GB or TB")


def positive_size(written: Any) -> int:
    """Parse a size in bytes above 0; see `size_bytes`."""
    size = size_bytes(written)
    if size == 0:
        raise ValueError(f"{written!r} is too small: write a size like 256MB")
    return size


def address(written: Any) -> Address:
    """Parse HOST:PORT, or [HOST]:PORT for an IPv6 address."""
    host, colon, port = text(written).rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{written!r} is not an address: write an IPv6 address as [HOST]:PORT, for example [::1]:5454")
    if not colon or not host or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
        raise ValueError(f"{written!r} is not an address: write HOST:PORT, for example 127.0.0.1:5454")
    try:
        host.encode("idna")
    except UnicodeError:
        raise ValueError(f"{written!r} is not an address: {host!r} cannot be the name of a host") from None
    return Address(host, int(port))


def one_of(*allowed: str) -> Callable[[Any], str]:
    """Return the parser for one of the words `allowed`."""

    def parse(written: Any) -> str:
        word = written.lower() if isinstance(written, str) else written
        if word not in allowed:
            raise ValueError(f"{written!r} is not one of {', '.join(allowed)}")
        return str(word)

    return parse


def _number(written: Any, kind: type[int] | type[float]) -> int | float:
    if isinstance(written, bool) or not isinstance(written, str | int | kind):
        raise ValueError(f"{written!r} is not a number")
    try:
        return kind(written)
    except (ValueError, OverflowError):
        raise ValueError(f"{written!r} is not a number") from None
