"""Both programs as processes, with every protection: listeners, SIGHUP, users, HTTP over TLS, secrets in no output."""

import asyncio
import base64
import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

import walproxy.proxy.rebootstrap
from safekeeper.base.errors import EXIT_CONFIGURATION, ConfigurationError, WalproxyError
from safekeeper.base.settings import load
from safekeeper.net.safekeeper_connection import Credentials
from safekeeper.net.tls import ClientTls, ServerTls
from safekeeper.peers.local_secret import LocalSecret
from safekeeper.pgwire.scram import parse_verifier
from tests.unit.certificates import Authority
from tests.unit.net.test_tls import converse
from tests.unit.safekeeper_process import SafekeeperProcess, safekeeper
from tests.unit.test_docs import DOCS, section
from tests.waiting import wait_for
from walproxy.lab.cluster.local_cluster import LocalProcess
from walproxy.postgres.local_server import free_port
from walproxy.proxy.config import ProxyConfig

SECRET = "0a5f36c1-the-shared-secret"
OTHER_SECRET = "7b2e91d4-another-secret"
PASSWORD = "f19c04-password-of-the-primary"
DEADLINE_S = 20.0


@contextmanager
def proxy(directory: Path, *options: str, secret: str = "", members: str) -> Iterator[LocalProcess]:
    """A `walproxy run` whose primary is not there."""
    port = free_port()
    primary = f"host=127.0.0.1 port=1 user=walproxy password={PASSWORD}"
    arguments = ["-m", "walproxy", "run", "--primary", primary, "--safekeepers", members]
    arguments += ["--http", f"127.0.0.1:{port}", "-c", "log_level=debug", *options]
    process = LocalProcess("walproxy", arguments, port, directory / f"walproxy-{port}.log")
    process.environment = {"WALPROXY_SECRET": secret} if secret else {}
    process.start()
    try:
        yield process
    finally:
        process.kill9()


def fetch(url: str, ca: Path) -> str:
    with urllib.request.urlopen(url, timeout=DEADLINE_S, context=ClientTls(ca).context) as answer:
        content: bytes = answer.read()
    return content.decode()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def test_an_unprotected_listener_stays_on_loopback_and_says_what_would_open_it(tmp_path: Path) -> None:
    with SafekeeperProcess(tmp_path / "sk", "--listen", "0.0.0.0:0") as process:
        line = process.wait_for_line("to accept other machines")
        assert " WARNING " in line and "--proposer-listen 0.0.0.0:0: listening on 127.0.0.1:0 only" in line
        with process.proposer() as proposer:
            proposer.greet()


def test_no_option_has_a_secret_as_its_value() -> None:
    for program in ("safekeeper", "walproxy"):
        command = [sys.executable, "-m", program, "run", "--secret", SECRET]
        result = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        assert result.returncode == 2
        assert "--secret" in result.stderr and SECRET not in result.stderr


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (("-c", "tls_cert=CERT"), "tls_cert has no effect without tls_key"),
        (("-c", "tls_cert=EXPIRED", "-c", "tls_key=KEY"), "expired at 2020-02-29 12:00:00 UTC: renew it"),
        (("-c", "tls_cert=missing", "-c", "tls_key=KEY"), "-c tls_cert: missing does not exist or is not a file"),
        (("-c", "allow=10.0.0.1/8"), "allow: '10.0.0.1/8' is not a network: write 10.0.0.0/8"),
        (("--secret-file", "SHORT"), "is not a text of at least 16 bytes"),
        (("-c", "pg_users=SHORT"), "line 1: not a SCRAM verifier"),
    ],
)
def test_what_cannot_protect_is_one_line_and_exit_code_3(
    tmp_path: Path, authority: Authority, options: tuple[str, ...], part: str
) -> None:
    server, expired = authority.sign("server"), authority.sign("expired", expired=True)
    (tmp_path / "short").touch(mode=0o600)
    (tmp_path / "short").write_text("name:hunter2")
    places = {"CERT": server.cert, "KEY": server.key, "EXPIRED": expired.cert, "SHORT": tmp_path / "short"}
    arguments = [re.sub("[A-Z]+$", lambda match: str(places[match[0]]), option) for option in options]
    result = safekeeper("run", "--id", "1", "--data-dir", str(tmp_path / "sk"), *arguments)
    assert result.returncode == 3
    (line,) = result.stderr.splitlines()
    assert part in line and "hunter2" not in line
    assert not (tmp_path / "sk").exists()


def test_a_password_becomes_a_line_for_the_file_of_users(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "safekeeper", "user", "standby1"]
    result = subprocess.run(
        command, input=f"{PASSWORD}\n", capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")
    name, _, verifier = result.stdout.rstrip("\n").partition(":")
    assert name == "standby1" and PASSWORD not in result.stdout
    parse_verifier(verifier)
    for arguments, given, part in (
        (["a:b"], "x\n", "cannot be a user's name"),
        (["bob"], "\n", "password must not be empty"),
    ):
        result = subprocess.run(
            [*command[:-1], *arguments], input=given, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
        assert result.returncode == 3 and result.stdout == ""
        (line,) = result.stderr.splitlines()
        assert part in line


def test_sighup_renews_a_certificate_and_a_bad_one_changes_nothing(tmp_path: Path, authority: Authority) -> None:
    cert, key = tmp_path / "cert", tmp_path / "key"

    def install(name: str) -> bytes:
        pair = authority.sign(name)
        shutil.copy(pair.cert, cert)
        shutil.copy(pair.key, key)
        return ssl.PEM_cert_to_DER_cert(cert.read_text().split("-----END CERTIFICATE-----")[0] + END)

    def shown(port: int) -> bytes:
        return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(("127.0.0.1", port), timeout=DEADLINE_S))

    first = install("first")
    with SafekeeperProcess(
        tmp_path / "sk", "-c", f"tls_cert={cert}", "-c", f"tls_key={key}", "-c", "http_tls=true"
    ) as process:
        assert shown(process.port) == shown(process.http_port) == first
        second = install("second")
        process.signal(signal.SIGHUP)
        assert "the certificates of the proposer listener" in process.wait_for_line("certificates, users and secrets")
        assert shown(process.port) == shown(process.http_port) == second
        key.write_text("nonsense")
        process.signal(signal.SIGHUP)
        assert " ERROR " in process.wait_for_line("could not reload the certificates of the proposer listener")
        process.wait_for_line("changed: nothing")
        assert shown(process.port) == shown(process.http_port) == second
        assert json.loads(fetch(f"https://127.0.0.1:{process.http_port}/status", authority.ca))["id"] == 1


END = "-----END CERTIFICATE-----\n"


def test_http_is_for_the_networks_that_are_named_and_a_sighup_names_others(tmp_path: Path) -> None:
    file = tmp_path / "sk.toml"
    file.write_text('http_allow = ["192.0.2.0/24"]\n')
    with SafekeeperProcess(tmp_path / "sk", "--config", str(file)) as process:
        with pytest.raises((urllib.error.URLError, ConnectionError)):
            process.get("/healthz")
        process.wait_for_line("refused HTTP to 127.0.0.1:")
        file.write_text('http_allow = ["192.0.2.0/24", "127.0.0.1"]\n')
        process.signal(signal.SIGHUP)
        process.wait_for_line("changed: http_allow")
        assert process.get("/healthz") == (200, {"ok": True})


def test_http_requires_the_password_in_the_file_and_a_sighup_reads_another_one(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.touch(mode=0o600)
    file.write_text("the first password\n")
    with SafekeeperProcess(tmp_path / "sk", "-c", f"http_password_file={file}") as process:

        def fetched(path: str, password: str = "") -> tuple[int, bytes]:
            connection = http.client.HTTPConnection("127.0.0.1", process.http_port, timeout=DEADLINE_S)
            credentials = base64.b64encode(b"prometheus:" + password.encode()).decode()
            connection.request("GET", path, headers={"Authorization": f"Basic {credentials}"} if password else {})
            reply = connection.getresponse()
            content = reply.read()
            connection.close()
            return reply.status, content

        for path in ("/", "/status", "/metrics", "/events", "/live", "/nothing"):
            assert fetched(path) == (401, b"401: Unauthorized")
        process.wait_for_line("its request has no password (http_password_file)")
        assert (fetched("/healthz"), fetched("/readyz")) == ((200, b""), (503, b""))
        assert fetched("/healthz", "another password")[0] == 401
        process.wait_for_line("its password is wrong (http_password_file)")
        assert fetched("/metrics", "the first password")[0] == fetched("/status", "the first password")[0] == 200
        file.write_text("the second password")
        process.signal(signal.SIGHUP)
        process.wait_for_line("changed: the password of HTTP")
        assert (fetched("/status", "the first password")[0], fetched("/status", "the second password")[0]) == (401, 200)


def test_walproxy_commands_send_the_password_of_a_file_or_of_the_url_and_show_it_nowhere(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.touch(mode=0o600)
    file.write_text("a password @ with /all?")
    quoted = quote("a password @ with /all?", safe="")

    environment = dict(os.environ)

    def run(command: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        line = [sys.executable, "-m", "walproxy", command, "--json", *arguments]
        return subprocess.run(line, capture_output=True, text=True, timeout=DEADLINE_S, check=False, env=environment)

    with proxy(tmp_path, "-c", f"http_password_file={file}", members="1=127.0.0.1:1") as process:
        wait_for(lambda: "starts as run" in process.log_path.read_text(), "the proxy listens")
        place = f"127.0.0.1:{process.http_port}"
        for command in ("status", "limbo"):
            environment["WALPROXY_HTTP_PASSWORD_FILE"] = str(file)
            assert run(command, "--url", f"http://{place}").returncode == 0
            del environment["WALPROXY_HTTP_PASSWORD_FILE"]
            assert run(command, "--url", f"http://any:{quoted}@{place}/").returncode == 0
            refused = run(command, "--url", f"http://{place}")
            assert refused.returncode == 1 and "set http_password_file" in refused.stderr
            wrong = run(command, "--url", f"http://any:hunter2hunter2hunter2@{place}")
            assert wrong.returncode == 1 and f"walproxy: http://{place}/{command} returned 401" in wrong.stderr
            assert "hunter2" not in wrong.stderr
        checked = json.loads(run("check", "--url", f"http://any:{quoted}@{place}").stdout)
        assert checked["level"] != "UNKNOWN" and quoted not in str(checked)
        assert quoted not in process.log_path.read_text()


@pytest.mark.parametrize(
    ("content", "part"),
    [("short", "the password in FILE is not a text of at least 16 bytes"), (None, "does not exist")],
)
def test_a_password_that_cannot_be_used_is_one_line(tmp_path: Path, content: str | None, part: str) -> None:
    file = tmp_path / "password"
    if content is not None:
        file.touch(mode=0o600)
        file.write_text(content)
    command = [sys.executable, "-m", "safekeeper", "run", "--id", "1", "--data-dir", str(tmp_path / "sk")]
    command += ["-c", f"http_password_file={file}"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert ended.returncode == EXIT_CONFIGURATION
    assert part.replace("FILE", str(file)) in ended.stderr.splitlines()[-1] and "Traceback" not in ended.stderr


def test_walproxy_status_over_tls_trusts_the_named_ca_only(tmp_path: Path, authority: Authority) -> None:
    pair, other = authority.sign("proxy"), Authority(tmp_path, "other")
    options = ("-c", "http_tls=true", "-c", f"tls_cert={pair.cert}", "-c", f"tls_key={pair.key}")

    def status(url: str, ca: Path | None) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "walproxy", "status", "--json", "--url", url]
        environment = os.environ | ({"WALPROXY_TLS_CA": str(ca)} if ca is not None else {})
        return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False, env=environment)

    with proxy(tmp_path, *options, members="1=127.0.0.1:1") as process:
        wait_for(lambda: "starts as run" in process.log_path.read_text(), "the proxy listens")
        url = f"https://127.0.0.1:{process.http_port}"
        good = status(url, authority.ca)
        assert good.returncode == 0 and json.loads(good.stdout)["safekeepers"][0]["id"] == 1
        for place, ca, part in (
            (url, other.ca, "it is not signed by a CA of the configured file; name its CA with tls_ca"),
            (url, None, "name its CA with tls_ca"),
            (url, tmp_path / "none", "could not read the certificates of CAs"),
            (url.replace("https", "http"), None, "127.0.0.1"),
        ):
            bad = status(place, ca)
            assert bad.returncode in (1, 3)
            (line,) = bad.stderr.splitlines()
            assert part in line and line.startswith("walproxy: ")


def outside_of(pid: int) -> str:
    """What others on this machine can see of a process."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode()


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc")
def test_secrets_and_passwords_show_in_no_log_page_or_list_of_processes(tmp_path: Path, authority: Authority) -> None:
    server, client = authority.sign("server"), authority.sign("client")
    (tmp_path / "secret").touch(mode=0o600)
    (tmp_path / "secret").write_text(SECRET)
    users = subprocess.run(
        [sys.executable, "-m", "safekeeper", "user", "standby1"],
        input=f"{PASSWORD}\n",
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    ).stdout
    (tmp_path / "users").touch(mode=0o600)
    (tmp_path / "users").write_text(users)
    listeners = [
        *("-c", f"tls_cert={server.cert}", "-c", f"tls_key={server.key}", "-c", f"tls_client_ca={authority.ca}"),
        *("--secret-file", str(tmp_path / "secret"), "-c", f"pg_users={tmp_path / 'users'}"),
        *("--pg-listen", "127.0.0.1:0", "-c", "log_level=debug"),
    ]
    credentials = ("-c", f"tls_ca={authority.ca}", "-c", f"tls_cert={client.cert}", "-c", f"tls_key={client.key}")
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(SafekeeperProcess(tmp_path / "sk", *listeners, forked=False))
        good, bad = (
            stack.enter_context(proxy(tmp_path, *credentials, secret=secret, members=f"1=127.0.0.1:{process.port}"))
            for secret in (SECRET, OTHER_SECRET)
        )
        wait_for(lambda: "connected to safekeeper 1" in good.log_path.read_text(), "the proxy is let in")
        wait_for(lambda: "refuses the proof" in bad.log_path.read_text(), "the other one is not")
        process.wait_for_line("its proof of the shared secret is wrong")
        wait_for(lambda: good.status() and bad.status(), "both answer")
        process.signal(signal.SIGHUP)
        process.wait_for_line("reloaded certificates, users and secrets")
        for each in (good, bad):
            assert each.pid is not None
            os.kill(each.pid, signal.SIGHUP)
            wait_for(
                lambda log=each.log_path: "reloaded certificates, users and secrets" in log.read_text(),
                "it reads its files again",
            )  # type: ignore[misc]
            # The primary's password stands in this one, because the test put it there.
            assert SECRET not in outside_of(each.pid) and OTHER_SECRET not in outside_of(each.pid)
        reported = "\n".join(
            (
                *process.lines,
                good.log_path.read_text(),
                bad.log_path.read_text(),
                json.dumps([good.status(), bad.status(), process.get("/status")]),
                outside_of(process.process.pid),
            )
        )
    verifier = users.partition("$")[2].rstrip("\n")
    for hidden in (SECRET, OTHER_SECRET, PASSWORD, *re.split(r"[$:]", verifier)[1:]):
        assert hidden not in reported


def test_a_connection_string_that_is_wrong_does_not_show_its_password() -> None:
    arguments = ("--primary", f"host=db1 password=my {PASSWORD}", "--safekeepers", "1=127.0.0.1:1")
    command = [sys.executable, "-m", "walproxy", "run", *arguments, "--http", "127.0.0.1:0"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert result.returncode == 3
    assert PASSWORD not in result.stderr and "(not shown)" in result.stderr


def test_a_rebootstrap_needs_the_same_credentials_as_a_proxy(tmp_path: Path, authority: Authority) -> None:
    server, client = authority.sign("server"), authority.sign("client")
    (tmp_path / "secret").touch(mode=0o600)
    (tmp_path / "secret").write_text(SECRET)
    listeners = [
        *("-c", f"tls_cert={server.cert}", "-c", f"tls_key={server.key}", "-c", f"tls_client_ca={authority.ca}"),
        *("--secret-file", str(tmp_path / "secret")),
    ]
    with SafekeeperProcess(tmp_path / "sk", *listeners) as process:
        given = {"primary": "host=db1", "safekeepers": f"1=127.0.0.1:{process.port}", "tls_ca": str(authority.ca)}
        given |= {"tls_cert": str(client.cert), "tls_key": str(client.key)}

        async def greeted(config: ProxyConfig) -> int:
            talks = await walproxy.proxy.rebootstrap.greet_all(config)
            await talks[1].close()
            return talks[1].greeting.safekeeper_id

        def greet(environment: dict[str, str], **options: str) -> int:
            config = load(ProxyConfig, "WALPROXY", command_line=given | options, environment=environment, file=None)
            return asyncio.run(greeted(config))

        assert greet({}, secret_file=str(tmp_path / "secret")) == greet({"WALPROXY_SECRET": SECRET}) == 1
        with pytest.raises(ConfigurationError, match=r"safekeeper 1 at .* refuses the proof of the shared secret"):
            greet({"WALPROXY_SECRET": OTHER_SECRET})
        with pytest.raises(
            WalproxyError, match="the safekeeper requires a shared secret: set secret_file or WALPROXY_SECRET"
        ):
            greet({})
        with pytest.raises(ConfigurationError, match="it is not signed by a CA of the configured file"):
            greet({"WALPROXY_SECRET": SECRET}, tls_ca=str(Authority(tmp_path, "other").ca))


def test_on_loopback_only_processes_of_the_same_user_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SafekeeperProcess(tmp_path / "sk") as process:
        file = LocalSecret().file
        assert str(file) in process.wait_for_line(
            "proxies on this machine must authenticate with the shared secret: that of user"
        )
        given = {"primary": "host=db1", "safekeepers": f"1=localhost:{process.port}"}
        config = load(ProxyConfig, "WALPROXY", command_line=given, environment={}, file=None)

        def greet() -> None:
            async def run() -> None:
                talks = await walproxy.proxy.rebootstrap.greet_all(config)
                await talks[1].close()

            asyncio.run(run())

        greet()
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
        other = re.escape(str(tmp_path / "other/walproxy/secret"))
        with pytest.raises(
            ConfigurationError, match=rf"the secrets differ, use the same one \(ours is that of .* {other}\)"
        ):
            greet()
        assert str(file) in process.wait_for_line("its proof of the shared secret is wrong")
        monkeypatch.setattr(walproxy.proxy.rebootstrap, "read_peer_credentials", lambda config: Credentials())
        with pytest.raises(
            WalproxyError, match="the safekeeper requires a shared secret: set secret_file or WALPROXY_SECRET"
        ):
            greet()


def test_a_given_secret_or_a_client_certificate_takes_the_place_of_the_users_own(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    server = authority.sign("server")
    (tmp_path / "secret").write_text(SECRET)
    tls = ["-c", f"tls_cert={server.cert}", "-c", f"tls_key={server.key}", "-c", f"tls_client_ca={authority.ca}"]
    for options in (tls, ["--secret-file", str(tmp_path / "secret")]):
        with SafekeeperProcess(tmp_path / "sk", *options) as process:
            assert not any("must authenticate with" in line for line in process.lines)
    assert not (tmp_path / "state").exists()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the program openssl")
def test_the_commands_of_the_documentation_make_certificates_that_work(tmp_path: Path) -> None:
    for heading in ("Shared secret", "Certificates"):
        (commands,) = re.findall(r"^```sh\n(.*?)^```$", section("security.md", heading), re.MULTILINE | re.DOTALL)
        subprocess.run(["bash", "-euc", commands], cwd=tmp_path, capture_output=True, timeout=60, check=True)
    assert len((tmp_path / "walproxy.secret").read_text().strip()) == 64
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())
    ca = tmp_path / "ca.pem"
    server = ServerTls(tmp_path / "sk2.pem", tmp_path / "sk2.key", ca)
    for host, problem in (("10.0.0.2", ""), ("sk2", ""), ("10.0.0.1", "mismatch")):
        client = ClientTls(ca, tmp_path / "proxy.pem", tmp_path / "proxy.key")
        of_server, of_client = converse(server.channel(), client.channel(host))
        assert problem in of_client and bool(of_client) is bool(problem) is bool(of_server)
    channel, client_channel = server.channel(), ClientTls(ca, tmp_path / "standby1.pem", tmp_path / "standby1.key")
    assert converse(channel, client_channel.channel("sk2")) == ("", "")
    assert channel.peer_common_name == "standby1"
    # A safekeeper's certificate is for servers only: it opens no listener.
    of_server, _ = converse(server.channel(), ClientTls(ca, tmp_path / "sk1.pem", tmp_path / "sk1.key").channel("sk2"))
    assert "the peer's certificate is refused" in of_server


def test_every_protection_is_in_the_page_about_security() -> None:
    text = (DOCS / "guide" / "security.md").read_text()
    assert "`--secret-file`" in text
    keys = (
        "tls_cert",
        "tls_key",
        "tls_ca",
        "tls_client_ca",
        "allow",
        "pg_users",
        "pg_client_ca",
        "pg_allow",
        "http_allow",
    )
    assert not [key for key in keys if f"`{key}`" not in text]
    assert "`http_tls" in text
