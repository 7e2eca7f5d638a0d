"""What opens a listener to a network, what does not, and what a SIGHUP changes."""

import logging
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.networks import Networks
from safekeeper.base.settings import Address, load
from safekeeper.peers.local_secret import LocalSecret
from safekeeper.peers.shared_secret import SharedSecret
from safekeeper.process.config import ENVIRONMENT_PREFIX, SafekeeperConfig, load_config
from safekeeper.process.security import Protection
from safekeeper.serving.users import user_line
from tests.unit.certificates import Authority
from walproxy.proxy.config import ENVIRONMENT_PREFIX as PROXY_PREFIX
from walproxy.proxy.config import ProxyConfig
from walproxy.proxy.credentials import read_credentials, reload_credentials

SECRET = "hunter2 hunter2 hunter2"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one of everything."""
    directory = tmp_path_factory.mktemp("files")
    pair = Authority(directory).sign("server")
    shutil.copy(pair.cert, directory / "cert")
    shutil.copy(pair.key, directory / "key")
    shutil.copy(directory / "ca.pem", directory / "ca")
    for private in ("secret", "users"):
        (directory / private).touch(mode=0o600)
    (directory / "secret").write_text(SECRET + "\n")
    (directory / "users").write_text(user_line("standby1", "x"))
    return directory


def config(files: Path, environment: dict[str, str] | None = None, **options: Any) -> SafekeeperConfig:
    """Settings in which the value FILE is the file of that option's kind."""
    kinds = {
        "tls_cert": "cert",
        "tls_key": "key",
        "tls_client_ca": "ca",
        "tls_ca": "ca",
        "pg_client_ca": "ca",
        "pg_users": "users",
    }
    given = {
        name: str(files / kinds.get(name, "secret")) if value == "FILE" else value for name, value in options.items()
    }
    return load(
        SafekeeperConfig,
        ENVIRONMENT_PREFIX,
        command_line={"id": "1", "data_dir": "sk"} | given,
        environment=environment or {},
        file=None,
    )


TLS = {"tls_cert": "FILE", "tls_key": "FILE"}
ELSEWHERE = "10.0.0.1:5454"


@pytest.mark.parametrize(
    ("options", "environment", "opens"),
    [
        ({}, {}, False),
        (TLS, {}, False),
        (TLS | {"pg_client_ca": "FILE", "pg_allow": "10.0.0.0/8", "http_allow": "10.0.0.0/8"}, {}, False),
        ({"secret_file": "FILE"}, {}, True),
        ({}, {"SAFEKEEPER_SECRET": SECRET}, True),
        (TLS | {"tls_client_ca": "FILE"}, {}, True),
        ({"allow": "10.0.0.0/8"}, {}, True),
    ],
    ids=["nothing", "TLS alone", "others' protections", "secret file", "secret", "client CA", "networks"],
)
def test_the_proposers_listener_is_open_to_others_only_if_it_is_protected(
    files: Path, options: dict[str, str], environment: dict[str, str], opens: bool, caplog: pytest.LogCaptureFixture
) -> None:
    address = Protection(config(files, environment, listen=ELSEWHERE, **options)).proposers_address()
    assert address == (Address("10.0.0.1", 5454) if opens else Address("127.0.0.1", 5454))
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == (
        []
        if opens
        else [
            "--proposer-listen 10.0.0.1:5454: listening on 127.0.0.1:5454 only, because no authentication is "
            "configured: to accept other machines give --secret-file, tls_client_ca or allow"
        ]
    )


@pytest.mark.parametrize(
    ("options", "opens"),
    [
        ({}, False),
        (TLS, False),
        ({"secret_file": "FILE", "allow": "10.0.0.0/8"}, False),
        ({"pg_users": "FILE"}, True),
        (TLS | {"pg_client_ca": "FILE"}, True),
        ({"pg_allow": "::/0"}, True),
    ],
    ids=["nothing", "TLS alone", "others' protections", "users", "client CA", "networks"],
)
def test_the_replication_listener_is_open_to_others_only_if_it_is_protected(
    files: Path, options: dict[str, str], opens: bool, caplog: pytest.LogCaptureFixture
) -> None:
    address = Protection(config(files, **options)).replication_address(Address("::", 5433))
    assert address == (Address("::", 5433) if opens else Address("::1", 5433))
    assert ("to accept other machines give pg_users, pg_client_ca or pg_allow" in caplog.text) is not opens


@pytest.mark.parametrize(
    ("options", "obstacle", "secrets"),
    [
        ({}, False, (False, True)),
        ({"secret_file": "FILE"}, False, (True, False)),
        (TLS, True, (False, True)),
        (TLS | {"tls_ca": "FILE"}, False, (False, True)),
        (TLS | {"tls_ca": "FILE", "tls_client_ca": "FILE"}, False, (False, False)),
        (TLS | {"tls_ca": "FILE", "secret_file": "FILE"}, False, (True, False)),
    ],
    ids=["nothing", "secret", "TLS without a CA", "TLS", "mutual TLS", "TLS and secret"],
)
def test_a_safekeeper_proves_to_the_others_what_they_require(
    files: Path, options: dict[str, str], obstacle: bool, secrets: tuple[bool, bool]
) -> None:
    protection = Protection(config(files, **options))
    assert ("set its tls_ca" in protection.obstacle_to_peers) is obstacle
    peers = protection.peers
    assert (peers.secret is not None, peers.local_secret is not None) == secrets
    assert (peers.tls is not None) == ("tls_ca" in options)


def test_a_listener_on_loopback_says_why_it_stays_there(files: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert Protection(config(files)).proposers_address() == Address("127.0.0.1", 5454)
    assert [record.levelno for record in caplog.records] == [logging.INFO] * 2
    assert [record.getMessage() for record in caplog.records] == [
        "--proposer-listen listens on loopback, 127.0.0.1:5454: none of --secret-file, tls_client_ca or allow is given",
        f"proxies on this machine must authenticate with the shared secret: {LocalSecret().origin}",
    ]


def test_a_certificate_that_expires_soon_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority = Authority(tmp_path)
    caplog.set_level(logging.INFO)
    for name, days in (("late", 100), ("soon", 10)):
        pair = authority.sign(name, valid_until=datetime.now(UTC) + timedelta(days=days))
        Protection(config(tmp_path, tls_cert=str(pair.cert), tls_key=str(pair.key)))
    reported = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert [level for level, _ in reported] == ["INFO", "WARNING"]
    assert reported[1][1].startswith(f"the certificate in {tmp_path / 'ca-soon.pem'} expires at 2")
    assert reported[1][1].endswith("UTC: renew it") and "renew" not in reported[0][1]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"tls_cert": "FILE"}, "tls_cert has no effect without tls_key: give both"),
        ({"tls_key": "FILE"}, "tls_key has no effect without tls_cert: give both"),
        ({"tls_client_ca": "FILE"}, "tls_client_ca has no effect without tls_cert and tls_key"),
        ({"pg_client_ca": "FILE"}, "pg_client_ca has no effect without tls_cert and tls_key"),
        ({"http_tls": "true"}, "http_tls has no effect without tls_cert and tls_key"),
    ],
)
def test_half_a_protection_is_none(files: Path, options: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        Protection(config(files, **options))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"tls_cert": "cert"}, "tls_cert has no effect without tls_key: give both"),
        ({"tls_cert": "cert", "tls_key": "key"}, "tls_cert has no effect without tls_ca or http_tls"),
    ],
)
def test_half_of_a_proxys_credentials_is_none(files: Path, options: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        read_credentials(proxy_config(files, **options))


def proxy_config(files: Path, **options: str) -> ProxyConfig:
    given = {name: str(files / value) if value != "true" else value for name, value in options.items()}
    given |= {"primary": "host=db1", "safekeepers": "1=sk1:5454"}
    return load(ProxyConfig, PROXY_PREFIX, command_line=given, environment={}, file=None)


def test_a_secret_in_two_places_is_refused(files: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"SAFEKEEPER_SECRET_FILE \(--secret-file\) and SAFEKEEPER_SECRET are both given"
    ):
        Protection(config(files, {"SAFEKEEPER_SECRET": SECRET}, secret_file="FILE"))
    both = {"SAFEKEEPER_SECRET": SECRET, "SAFEKEEPER_SECRET_FILE": str(files / "secret")}
    with pytest.raises(ConfigurationError, match="are both given"):
        Protection(config(files, both))


@pytest.mark.parametrize("place", ["", "[safekeeper]\n"])
def test_the_variable_of_the_secret_overrides_the_secret_of_the_clusters_file(tmp_path: Path, place: str) -> None:
    file = tmp_path / "walproxy.toml"
    file.write_text(f'{place}secret_file = "{tmp_path / "none"}"\n')
    given = {"id": "1", "data_dir": str(tmp_path / "sk1")}
    loaded = load_config(given, {"SAFEKEEPER_SECRET": SECRET}, file)
    assert loaded.secret_file is None
    secret = Protection(loaded).secret
    assert secret is not None and secret.value == SECRET.encode()
    with pytest.raises(ConfigurationError, match=r"secret_file: .*none does not exist"):
        load_config(given, {}, file)


@pytest.mark.parametrize("content", [b"", b"\n", b"hunter2 hunter2", b"hunter2 hunter2 \xff\xfe"])
def test_what_is_no_secret_is_refused_and_not_quoted(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "secret"
    file.write_bytes(content)
    with pytest.raises(
        ConfigurationError, match=r"is not a text of at least 16 bytes: make one with openssl"
    ) as refused:
        SharedSecret(file, None)
    assert "hunter2" not in str(refused.value) and refused.value.__suppress_context__
    if content.strip().isascii():
        with pytest.raises(
            ConfigurationError, match="SAFEKEEPER_SECRET: a secret must have at least 16 bytes"
        ) as refused:
            config(tmp_path, {"SAFEKEEPER_SECRET": content.decode()})
        assert "hunter2" not in str(refused.value)


def test_a_secret_is_the_same_in_a_file_and_in_the_environment(files: Path) -> None:
    in_file = Protection(config(files, secret_file="FILE")).secret
    in_environment = Protection(config(files, {"SAFEKEEPER_SECRET": f" {SECRET}\n"})).secret
    assert in_file is not None and in_environment is not None
    assert in_file.value == in_environment.value == SECRET.encode()


def test_settings_that_are_printed_hide_the_secret(files: Path) -> None:
    assert SECRET not in repr(config(files, {"SAFEKEEPER_SECRET": SECRET}))
    assert SECRET not in repr(vars(Protection(config(files, {"SAFEKEEPER_SECRET": SECRET})).secret))


def test_a_secret_stands_neither_in_a_command_line_nor_in_a_configuration_file(files: Path, tmp_path: Path) -> None:
    assert config(files, secret=SECRET).secret is None
    file = tmp_path / "sk.toml"
    file.write_text(f'secret = "{SECRET}"\n')
    with pytest.raises(ConfigurationError, match="the top has the unknown key secret; the keys are") as refused:
        load_config({}, {}, file)
    assert SECRET not in str(refused.value)


def test_a_reload_takes_what_has_changed_and_says_so(
    files: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("cert", "key", "ca", "secret", "users"):
        shutil.copy(files / name, tmp_path / name)
    options = TLS | {"tls_client_ca": "FILE", "secret_file": "FILE", "pg_users": "FILE", "http_tls": "true"}
    before = config(tmp_path, allow="10.0.0.0/8", **options)
    protection = Protection(before)
    assert protection.secret is not None and protection.users is not None
    caplog.set_level(logging.INFO)
    protection.reload(before)
    assert caplog.messages[0] == "reloaded certificates, users and secrets; changed: nothing"

    (tmp_path / "secret").write_text("another secret of the cluster")
    (tmp_path / "users").write_text("# nobody any more\n")
    renewed = Authority(tmp_path, "new").sign("server")
    shutil.copy(renewed.cert, tmp_path / "cert")
    caplog.clear()
    protection.reload(config(tmp_path, allow="192.0.2.0/24", pg_allow="10.0.0.0/8", **options))
    assert protection.secret.value == b"another secret of the cluster"
    assert dict(protection.users.verifiers) == {}
    assert protection.allow.proposers == Networks.parse("192.0.2.0/24")
    assert protection.allow.replication == Networks.parse("10.0.0.0/8")
    # The certificate is new, its key is not: three listeners keep the old one, for one reason.
    (error,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert error == (
        "could not reload the certificates of the proposer listener, the certificates of the replication listener, "
        f"the certificate of HTTP: {tmp_path / 'key'} is not the private key of the certificate in "
        f"{tmp_path / 'cert'}; the previous one stays in use"
    )
    assert caplog.messages[-2].endswith("secrets; changed: the users, the shared secret")

    shutil.copy(renewed.key, tmp_path / "key")
    protection.reload(config(tmp_path, **options))
    assert caplog.messages[-4].endswith(
        "changed: the certificates of the proposer listener, the certificates of the replication listener, "
        "the certificate of HTTP"
    )
    # What may be all that protects the listener is not taken away while it is open.
    assert protection.allow.proposers == Networks.parse("192.0.2.0/24")
    assert caplog.messages[-2] == "allow is unchanged: its removal requires a restart"


def test_a_proxy_reads_its_files_again(files: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("ca", "secret"):
        shutil.copy(files / name, tmp_path / name)
    credentials = read_credentials(proxy_config(tmp_path, tls_ca="ca", secret_file="secret"))
    assert credentials.secret is not None
    caplog.set_level(logging.INFO)
    (tmp_path / "secret").write_text("another secret of the cluster")
    (tmp_path / "ca").write_text("nothing")
    reload_credentials(credentials, None)
    assert credentials.secret.value == b"another secret of the cluster"
    assert caplog.messages[-1] == "reloaded certificates, users and secrets; changed: the shared secret"
    assert "could not reload the certificates for safekeepers: could not use the certificates of CAs" in caplog.text
