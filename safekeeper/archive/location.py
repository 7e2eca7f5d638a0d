"""Opens an archive's store from its URL and options.

A plain path or `file://` is a local folder; `s3://`, `gs://` and `az://` are remote. Options are obstore's
configuration keys for that kind of store, and a few of its HTTP client. Credentials come from options or the
environment, never from a URL, because messages show it.
"""

import os
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import unquote, urlsplit

from obstore.exceptions import BaseError, UnknownConfigurationKeyError
from obstore.store import AzureStore, GCSStore, LocalStore, S3Store, from_url

from safekeeper.archive.local_folder import make_folder
from safekeeper.archive.store_errors import reason_of
from safekeeper.base.errors import ConfigurationError
from safekeeper.base.regular_files import read_regular

Client: TypeAlias = LocalStore | S3Store | GCSStore | AzureStore

# A few quick attempts here: the callers retry indefinitely, and report that meanwhile.
REQUEST_RETRIES = 3
_RETRIES: Any = {
    "retry_timeout": timedelta(seconds=10),
    "backoff": {
        "init_backoff": timedelta(milliseconds=100),
        "max_backoff": timedelta(seconds=2),
        "base": 2,
    },
}
# An answer of many megabytes may take longer than the wait for its first or next byte.
_WHOLE_ANSWER_FACTOR = 20
# obstore types this for options written in source code; here they come from the operator.
_client_from_url: Any = from_url
_CLIENT_FLAGS = frozenset({"allow_http", "allow_invalid_certificates"})
_CLIENT_KEYS = _CLIENT_FLAGS | {"proxy_url", "root_certificate"}
# Other options of obstore: they must be given elsewhere, or are set here.
_CLIENT_KEYS_REFUSED = re.compile(
    r"timeout|\w+_timeout|http[12]_\w+|pool_\w+|proxy_\w+|default_\w+|user_agent|randomize_\w+"
)
_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AZURE_ENDPOINT")


class Location(NamedTuple):
    """An opened location: its name for messages, its client, and its folder if it is a local one.

    Attributes:
        with_checksums: returns a client whose puts have a checksum, if the store is S3 and no option says which.
    """

    url: str
    client: Client
    folder: Path | None
    with_checksums: Callable[[], Client] | None = None


def open_location(
    url: str,
    options: Mapping[str, str],
    timeout_s: float,
    retries: int = REQUEST_RETRIES,
    *,
    makes_folder: bool = False,
) -> Location:
    """Return the client of the store at `url`.

    Args:
        makes_folder: create a local folder that does not exist.

    Raises:
        ConfigurationError: the URL or an option is not valid, or the local folder does not exist or cannot be created.
    """
    if not url:
        raise ConfigurationError("the archive's URL is empty: write a folder, or s3://BUCKET/PREFIX, gs:// or az://")
    if "://" not in url:
        return _open_folder(Path(url), options, makes_folder)
    scheme = url.partition("://")[0].lower()
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ConfigurationError(f"the archive's URL, {scheme}://..., is invalid") from None
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ConfigurationError(
            f"the archive's URL, {scheme}://..., has more than a host and a path: "
            "give settings and credentials as options, or in the environment"
        )
    if scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise ConfigurationError(f"{url} has a remote host: write file:///path")
        return _open_folder(Path(unquote(parts.path)), options, makes_folder)
    if scheme not in ("s3", "gs", "az"):
        raise ConfigurationError(f"{url} is not an archive: write a folder, or s3://BUCKET/PREFIX, gs:// or az://")
    if not parts.netloc:
        raise ConfigurationError(f"{url} has no bucket: write {scheme}://BUCKET/PREFIX")
    return _open_remote(
        "/".join((f"{scheme}://{parts.netloc}", *filter(None, parts.path.split("/")))), options, timeout_s, retries
    )


def _open_folder(folder: Path, options: Mapping[str, str], makes_folder: bool) -> Location:
    if options:
        raise ConfigurationError(f"the archive in the folder {folder} has no options: remove {', '.join(options)}")
    folder = folder.absolute()
    try:
        if makes_folder:
            make_folder(folder)
        elif not folder.is_dir():
            raise ConfigurationError(f"{folder} is not a folder: correct the archive's URL")
        client = LocalStore(folder)
    except (OSError, BaseError) as error:
        raise ConfigurationError(f"cannot use {folder} as an archive: {reason_of(error)}") from error
    return Location(str(folder), client, folder)


def _open_remote(url: str, options: Mapping[str, str], timeout_s: float, retries: int) -> Location:
    client_options: dict[str, Any] = {
        "connect_timeout": timedelta(seconds=min(timeout_s, 5)),
        "read_timeout": timedelta(seconds=timeout_s),
        "timeout": timedelta(seconds=timeout_s * _WHOLE_ANSWER_FACTOR),
        "allow_http": endpoint_is_plain(options),
    }
    config: dict[str, str] = {}
    for name, value in options.items():
        key = name.lower()
        if key in _CLIENT_KEYS:
            client_options[key] = _client_value(url, key, value)
        elif _CLIENT_KEYS_REFUSED.fullmatch(key):
            raise ConfigurationError(f"the store {url} has no option {name!r}")
        else:
            config[key] = value

    def client_of(**further: str) -> Client:
        client: Client = _client_from_url(
            url,
            config={**config, **further},
            client_options=client_options,
            retry_config={**_RETRIES, "max_retries": retries},
        )
        return client

    try:
        client = client_of()
    except UnknownConfigurationKeyError as error:
        key_named = re.search(r"[Kk]ey: '([^']*)'", str(error))
        name = key_named[1] if key_named else ", ".join(options)
        raise ConfigurationError(f"the store {url} has no option {name!r}") from error
    except (BaseError, ValueError, TypeError) as error:
        secrets = [value for value in options.values() if value]
        raise ConfigurationError(f"cannot use {url}: {reason_of(error, secrets)}") from error
    has_choice = isinstance(client, S3Store) and not any("checksum" in key for key in config)
    return Location(url, client, None, (lambda: client_of(checksum_algorithm="SHA256")) if has_choice else None)


def endpoint_is_plain(options: Mapping[str, str]) -> bool:
    """Return whether the operator gave an endpoint without TLS, which obstore allows only explicitly."""
    named = [value for name, value in options.items() if "endpoint" in name.lower()]
    named += [os.environ.get(name, "") for name in _ENDPOINT_VARIABLES]
    return any(endpoint.lower().startswith("http://") for endpoint in named)


def _client_value(url: str, key: str, value: str) -> bool | str:
    if key in _CLIENT_FLAGS:
        if value.lower() not in ("true", "false"):
            raise ConfigurationError(f"the store {url}: option {key!r} must be true or false")
        return value.lower() == "true"
    if key == "root_certificate":
        try:
            return read_regular(Path(value)).decode()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"the store {url}: cannot read the root certificate {value}: {error}") from error
    return value
