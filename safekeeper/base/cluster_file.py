"""The file of a cluster, `walproxy.toml`: one for all machines and all programs.

What every program shares stands at the top. Each program has a section, and each machine a section of its own, whose
keys take precedence over those of the program, and these over those at the top:

    secret_file = "/etc/walproxy/secret"

    [safekeeper]                  # safekeeper run, on every machine
    data_dir = "/var/lib/safekeeper"

    [safekeepers.1]               # the safekeeper with this id; or under [safekeepers]: 1 = "sk1:5454"
    address = "sk1:5454"

    [servers.pg1]                 # the server of this name; or under [servers]: pg1 = "pg1:5432"
    address = "pg1:5432"

A program reads the sections that it knows (`Role`), and nothing that is not one of their keys is ignored. Which machine
it runs on is an option (--id, --name), or else the host's name: the section has it as its name, or in its address.
"""

import functools
import ipaddress
import logging
import os
import re
import stat
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.regular_files import open_regular
from safekeeper.base.settings import Address, Given, address, options_of

DEFAULT_PATH = Path("/etc/walproxy/walproxy.toml")
VARIABLE = "WALPROXY_CONFIG"
SHARED_KEYS = (
    *("secret_file", "tls_ca", "tls_cert", "tls_key"),
    *("archive", "archive_options", "lake_options", "iceberg_catalog", "slot", "application_name"),
    *("log_level", "log_format", "http_tls", "http_allow", "http_hosts", "http_password_file"),
)
"""The keys that can stand at the top."""

_log = logging.getLogger(__name__)
_ADDRESS = "address"
_HTTP_HOSTS = "http_hosts"
_MACHINES = ("safekeepers", "servers")
_LINE = re.compile(r"\(at line (\d+), ")
_SECTION_LINE = re.compile(r"\s*\[([^\[\]]+)\]")


class Role(NamedTuple):
    """What a program reads.

    Attributes:
        section: the name of its section.
        settings: declares the keys; None if `keys` does.
        machines: the name of the table with a section for each machine; "" if it has none.
        machine_key: the option that names the machine, which is not a key.
        absent: further options that are not keys of its section, because they follow from the file.
        keys: further keys.
    """

    section: str
    settings: type | None
    machines: str = ""
    machine_key: str = ""
    absent: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()

    def names(self) -> tuple[str, ...]:
        """Return the keys of its section."""
        without = {self.machine_key, *self.absent}
        options = options_of(self.settings) if self.settings is not None else {}
        declared = (name for name, option in options.items() if name not in without and not option.environment_only)
        return (*declared, *self.keys)


SECTIONS = ("safekeeper", "safekeepers", "proxy", "agent", "servers", "restore", "check", "pipeline", "apply")
"""The names of all tables, also of those of other programs."""


class ClusterFile:
    """A file, read and checked.

    Attributes:
        path: where it is.

    Args:
        roles: those whose keys are checked: of every other section only the name is.

    Raises:
        ConfigurationError: the file cannot be read, or has something that no program reads; one line with file and key.
    """

    def __init__(self, path: Path, roles: Sequence[Role]) -> None:
        self.path = path
        self._roles = roles
        self._content = _read(path)
        self._check()

    def machines(self, table: str) -> dict[str, Mapping[str, Any]]:
        """Return the sections of the machines in a table, by name; a text is an address."""
        written = self._content.get(table, {})
        if not isinstance(written, dict):
            raise ConfigurationError(f'{self.path}: {table} is not a table: write NAME = "HOST:PORT" below [{table}]')
        found: dict[str, Mapping[str, Any]] = {}
        for name, section in written.items():
            found[name] = {_ADDRESS: section} if isinstance(section, str) else section
            if not isinstance(found[name], dict):
                raise ConfigurationError(f'{self.path}: {table}.{name} is neither a table nor "HOST:PORT"')
        return found

    def addresses(self, table: str) -> dict[str, Address]:
        """Return the addresses of the machines in a table, by name.

        Raises:
            ConfigurationError: one is missing, not valid, or that of another machine, too.
        """
        found: dict[str, Address] = {}
        for name, section in self.machines(table).items():
            place = f"{self.path}: {table}.{name}"
            if _ADDRESS not in section:
                raise ConfigurationError(f'{place} has no address: write address = "HOST:PORT"')
            try:
                parsed = address(section[_ADDRESS])
            except ValueError as error:
                raise ConfigurationError(f"{place}.{_ADDRESS}: {error}") from error
            other = next((each for each in found if found[each] == parsed), None)
            if other is not None:
                raise ConfigurationError(f"{place} has the address of {table}.{other}, {parsed}")
            found[name] = parsed
        return found

    def machine(self, role: Role, given: str | None, host_name: str) -> str | None:
        """Return the name of this machine's section, None if the file has no table of machines for this role.

        Args:
            given: as the option names it, None if it does not.
            host_name: of this host.

        Raises:
            ConfigurationError: the file has none of this name, or none for this host, or several.
        """
        machines = self.machines(role.machines) if role.machines else {}
        if not machines:
            return None
        option, listed = f"--{role.machine_key}", ", ".join(machines)
        if given is not None:
            if given not in machines:
                raise ConfigurationError(
                    f"{self.path}: [{role.machines}] has no {given}: add it, or give another {option}; it has {listed}"
                )
            return given
        places = self.addresses(role.machines)
        here = [name for name in machines if is_host(name, host_name)]
        here = here or [name for name, place in places.items() if is_host(place.host, host_name)]
        if len(here) != 1:
            problem = f"{' and '.join(here)} of [{role.machines}] are" if here else f"none of [{role.machines}] is"
            raise ConfigurationError(f"{self.path}: {problem} on the host {host_name}: give {option}, one of {listed}")
        return here[0]

    def values(self, role: Role, machine: str | None = None) -> dict[str, Given]:
        """Return what the file has for a role: by option, the place and the value as written.

        Without `http_hosts` these are the names of the hosts: commands read the pages of other machines.
        """
        found: dict[str, Given] = {}
        keys = role.names()
        for place, section in self._sections(role, machine):
            for name in keys:
                if name in section:
                    found[name] = Given(f"{self.path}: {place}{name}", section[name])
        if _HTTP_HOSTS in keys and _HTTP_HOSTS not in found:
            names = _names_of_hosts(place for table in _MACHINES for place in self.addresses(table).values())
            if names:
                found[_HTTP_HOSTS] = Given(f"{self.path}: {' and '.join(_MACHINES)}", sorted(names))
        return found

    def _sections(self, role: Role, machine: str | None) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the sections that a role reads; a later one takes precedence."""
        yield "", {key: value for key, value in self._content.items() if key in SHARED_KEYS}
        yield f"{role.section}.", self._table(role.section)
        if machine is not None:
            yield f"{role.machines}.{machine}.", self.machines(role.machines)[machine]

    def has(self, section: str) -> bool:
        """Return whether the file has a section."""
        return section in self._content

    def _table(self, section: str) -> Mapping[str, Any]:
        table = self._content.get(section, {})
        if not isinstance(table, dict):
            raise ConfigurationError(f"{self.path}: {section} is not a table: write [{section}]")
        return table

    def _check(self) -> None:
        for key in self._content:
            if key not in SHARED_KEYS and key not in SECTIONS:
                self._refuse(key, "", (*SHARED_KEYS, *(f"[{name}]" for name in SECTIONS)))
        for role in self._roles:
            keys = role.names()
            for key in self._table(role.section):
                if key not in keys:
                    self._refuse(key, role.section, keys)
            keys = (_ADDRESS, *(key for key in keys if key != _ADDRESS))
            for name, section in self.machines(role.machines).items() if role.machines else ():
                for key in section:
                    if key not in keys:
                        self._refuse(key, f"{role.machines}.{name}", keys)

    def _refuse(self, key: str, section: str, keys: Sequence[str]) -> None:
        place = f"[{section}] has" if section else "the top has"
        if key in SECTIONS:
            raise ConfigurationError(f"{self.path}: {place} {key}, which is a section of its own: write [{key}]")
        owners = [f"[{role.section}]" for role in self._roles if key in role.names()]
        if owners:
            raise ConfigurationError(f"{self.path}: {place} {key}, which is a key of {' and '.join(owners)}")
        if section and key in SHARED_KEYS:
            raise ConfigurationError(f"{self.path}: {place} {key}, which has no effect there: write it at the top")
        raise ConfigurationError(f"{self.path}: {place} the unknown key {key}; the keys are {', '.join(keys)}")


def find_cluster_file(given: Path | None, *, is_silent: bool = False) -> Path | None:
    """Return the path of the file: the one given by option or variable, else the default one if it is there.

    A default one that this user may not read counts as absent: the command may have all that it needs without.

    Args:
        is_silent: log no warning for that.
    """
    if given is not None:
        return given
    try:
        open_regular(DEFAULT_PATH).close()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except PermissionError:
        if not is_silent:
            _warn_unreadable(DEFAULT_PATH)
        return None
    except OSError:
        pass  # Its reader reports it.
    return DEFAULT_PATH


@functools.cache  # A command looks for it more than once.
def _warn_unreadable(path: Path) -> None:
    _log.warning("%s is ignored, because this user may not read it", path)


@functools.cache  # A daemon reads the file again at SIGHUP.
def _warn_foreign(path: Path, owner: int) -> None:
    _log.warning("%s belongs to user %d, and root runs the commands in it: chown root %s", path, owner, path)


def is_host(name: str, host_name: str) -> bool:
    """Return whether a name is that of a host, with or without its domain."""
    name, host_name = (each.lower().removesuffix(".") for each in (name, host_name))
    return name == host_name or name == host_name.partition(".")[0] or name.partition(".")[0] == host_name


def _names_of_hosts(places: Iterable[Address]) -> set[str]:
    """Return the hosts of addresses that are names, and not IP addresses."""
    found = set()
    for place in places:
        try:
            ipaddress.ip_address(place.host)
        except ValueError:
            found.add(place.host)
    return found


def _read(path: Path) -> dict[str, Any]:
    try:
        with open_regular(path) as stream:
            _check_access(path, os.fstat(stream.fileno()))
            content = stream.read()
        text = content.decode()
    except OSError as error:
        raise ConfigurationError(f"could not read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is not TOML: {error}") from error
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        twice = _given_twice(text, str(error))
        if twice is not None:
            raise ConfigurationError(f"{path}: {twice}") from error
        raise ConfigurationError(f"{path} is not TOML: {error}") from error


def _check_access(path: Path, status: os.stat_result) -> None:
    """Refuse a file that users other than its owner can change: it has commands, which programs run.

    Its readers may be many: what is secret is in files of its own, which it names.
    """
    # The group that a user has alone has the user's number, and the umask of such a user permits it to write.
    is_of_group = status.st_mode & stat.S_IWGRP and status.st_gid != status.st_uid
    if is_of_group or status.st_mode & stat.S_IWOTH:
        raise ConfigurationError(
            f"other users can change {path} (mode {stat.S_IMODE(status.st_mode):04o}), and it has commands that "
            f"programs run: chmod go-w {path}"
        )
    if os.geteuid() == 0 != status.st_uid:
        _warn_foreign(path, status.st_uid)


def _given_twice(text: str, error: str) -> str | None:
    """Return which key the text has twice, None if the error is another one."""
    if not ("overwrite" in error or "twice" in error):
        return None
    lines = text.splitlines()
    if (line := _LINE.search(error)) is not None:  # Else it is the last one.
        lines = lines[: int(line[1])]
    section = next((match[1].strip() for each in reversed(lines) if (match := _SECTION_LINE.match(each))), "")
    key = lines[-1].partition("=")[0].strip() if "=" in lines[-1] else ""
    return f"line {len(lines)}: {'.'.join(filter(None, (section, key)))} is written twice"
