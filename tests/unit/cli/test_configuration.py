"""What the commands read from the cluster's file, and what follows from it."""

from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from safekeeper.base.errors import ConfigurationError, WalproxyError
from safekeeper.base.settings import Address
from safekeeper.process.config import load_config
from tests.unit.proxy.statuses import status
from walproxy.cli import configuration
from walproxy.cli.configuration import load_agent, load_connection, load_proxy
from walproxy.cli.proxy_pages import ProxyPages, proxy_pages
from walproxy.proxy.config import ConnectionConfig, MembersConfig
from walproxy.proxy.status_client import NO_ACCESS, Access, NoAnswer
from walproxy.proxy.status_fields import ProxyStatus

SAFEKEEPERS = ((1, Address("sk1", 5454)), (2, Address("sk2", 5454)), (3, Address("sk3", 5454)))
# Three servers with agents and three safekeepers: what the guide shows.
CLUSTER = """
[safekeeper]
data_dir = "/var/lib/safekeeper"
pg_listen = "0.0.0.0:5461"

[safekeepers]
1 = "sk1:5454"
2 = "sk2:5454"
3 = "sk3:5454"

[agent]
pgdata = "/var/lib/postgresql/17/main"
bin_dir = "/usr/lib/postgresql/17/bin"
conninfo = "host=/var/run/postgresql user=postgres dbname=postgres"
proxy_http = "0.0.0.0:5453"

[servers]
pg1 = "db1:5432"
pg2 = "db2:5433"

[servers.pg3]
address = "db3:5432"
priority = 50
"""


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(configuration.os, "environ", {})
    monkeypatch.setattr("safekeeper.base.cluster_file.DEFAULT_PATH", tmp_path / "none.toml")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "walproxy.toml"
    path.write_text(CLUSTER)
    return path


def on_host(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: name)


def test_a_safekeeper_needs_no_option_on_its_machine(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_host(monkeypatch, "sk2.example.org")
    config = load_config({}, {}, file)
    assert (config.id, config.data_dir) == (2, Path("/var/lib/safekeeper"))
    assert (config.proposer_listen, config.pg_listen) == (Address("sk2", 5454), Address("0.0.0.0", 5461))
    assert load_config({"id": "3"}, {}, file).id == 3
    assert load_config({}, {"SAFEKEEPER_ID": "1"}, file).id == 1
    assert load_config({"proposer_listen": "127.0.0.1:1"}, {}, file).proposer_listen == Address("127.0.0.1", 1)


def test_an_agent_needs_no_option_on_its_machine(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_host(monkeypatch, "db3")
    config = load_agent({}, file)
    assert (config.name, config.address, config.priority) == ("pg3", Address("db3", 5432), 50)
    assert config.safekeepers == SAFEKEEPERS
    readers = conninfo_to_dict(config.standby_conninfo)
    assert readers == {"host": "sk1,sk2,sk3", "port": "5461,5461,5461", "user": "postgres"}
    assert load_agent({"name": "pg2"}, file).priority == 100


def test_a_connection_string_that_names_hosts_is_left_alone(file: Path) -> None:
    file.write_text(CLUSTER.replace("[agent]", '[agent]\nstandby_conninfo = "host=relay user=x"'))
    assert load_agent({"name": "pg1"}, file).standby_conninfo == "host=relay user=x"
    file.write_text(CLUSTER.replace("[agent]", '[agent]\nstandby_conninfo = "user=x sslmode=require"'))
    assert conninfo_to_dict(load_agent({"name": "pg1"}, file).standby_conninfo)["host"] == "sk1,sk2,sk3"
    file.write_text(CLUSTER.replace("pg_listen", "http_listen"))
    with pytest.raises(ConfigurationError, match="standby_conninfo is missing"):
        load_agent({"name": "pg1"}, file)


def test_a_proxy_looks_for_the_primary_among_the_servers(file: Path) -> None:
    config = load_proxy({"assignments": ("commit_timeout=3",)}, file)
    assert conninfo_to_dict(config.primary) == {"host": "db1,db2,db3", "port": "5432,5433,5432"}
    assert (config.safekeepers, config.commit_timeout) == (SAFEKEEPERS, 3)
    file.write_text(CLUSTER + '[proxy]\nprimary = "user=walproxy dbname=postgres"\n')
    found = conninfo_to_dict(load_connection(ConnectionConfig, {}, file).primary)
    assert (found["host"], found["user"]) == ("db1,db2,db3", "walproxy")
    assert load_proxy({"primary": "host=other"}, file).primary == "host=other"


def test_a_connection_to_the_safekeepers_needs_no_primary(file: Path) -> None:
    file.write_text('[safekeepers]\n1 = "sk1:5454"\n')
    assert load_connection(MembersConfig, {}, file).safekeepers == SAFEKEEPERS[:1]
    with pytest.raises(ConfigurationError, match="--primary is missing: give it, or set WALPROXY_PRIMARY, or write it"):
        load_connection(ConnectionConfig, {}, file)


def test_an_assignment_of_something_else_than_a_key_is_refused(file: Path) -> None:
    for wrong in ("primary=host=a", "nonsense=1", "commit_timeout"):
        with pytest.raises(ConfigurationError, match=r"^-c: .*; the keys are tls_ca, "):
            load_proxy({"assignments": (wrong,)}, file)


@pytest.mark.parametrize(
    ("host", "urls"),
    [
        ("db1", ("http://127.0.0.1:5453", "http://db2:5453", "http://db3:5453")),
        ("pg3", ("http://127.0.0.1:5453", "http://db1:5453", "http://db2:5453")),
        ("sk1", ("http://db1:5453", "http://db2:5453", "http://db3:5453")),
    ],
)
def test_with_agents_the_proxy_is_looked_for_beside_each_server(
    file: Path, monkeypatch: pytest.MonkeyPatch, host: str, urls: tuple[str, ...]
) -> None:
    on_host(monkeypatch, host)
    assert proxy_pages(None, file).urls == urls


def test_a_proxy_on_loopback_is_looked_for_on_its_own_machine_only(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(CLUSTER.replace('proxy_http = "0.0.0.0:5453"', ""))
    on_host(monkeypatch, "db2")
    assert proxy_pages(None, file).urls == ("http://127.0.0.1:5453",)
    on_host(monkeypatch, "sk1")
    with pytest.raises(ConfigurationError, match="no server is on the host sk1, and their proxies serve HTTP on loop"):
        proxy_pages(None, file)


def test_a_wrong_value_of_http_is_one_line_with_its_place(file: Path) -> None:
    file.write_text('http_tls = "maybe"\n')
    with pytest.raises(ConfigurationError, match=f"^{file}: http_tls: "):
        proxy_pages(None, file)
    file.write_text('[proxy]\nhttp_listen = "nowhere"\n')
    with pytest.raises(ConfigurationError, match=rf"^{file}: proxy\.http_listen: "):
        proxy_pages(None, file)


def test_three_servers_of_one_machine_have_their_proxies_on_ports_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "walproxy.toml"
    servers = (f'[servers.pg{i}]\naddress = "127.0.0.1:543{i}"\nproxy_http = "127.0.0.1:545{i}"\n' for i in (1, 2))
    path.write_text("[agent]\n" + "".join(servers))
    assert proxy_pages(None, path).urls == ("http://127.0.0.1:5451", "http://127.0.0.1:5452")


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("", "http://127.0.0.1:7667"),
        ('[proxy]\nhttp_listen = "10.0.0.9:7000"', "http://10.0.0.9:7000"),
        ('[proxy]\nhttp_listen = "0.0.0.0:7000"', "http://127.0.0.1:7000"),
        ('http_tls = true\n[proxy]\nhttp_listen = "10.0.0.9:7000"', "https://10.0.0.9:7000"),
    ],
)
def test_without_agents_the_proxy_is_where_the_file_has_it(file: Path, text: str, url: str) -> None:
    file.write_text(text)
    assert proxy_pages(None, file).urls == (url,)
    assert proxy_pages("http://given:1", file).urls == ("http://given:1",)


def test_without_a_file_everything_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    assert proxy_pages(None, None) == ProxyPages(("http://127.0.0.1:7667",), NO_ACCESS)
    monkeypatch.setattr(configuration.os, "environ", {"WALPROXY_URL": "http://set:1"})
    assert proxy_pages(None, None).urls == ("http://set:1",)
    with pytest.raises(ConfigurationError, match=r"^no safekeepers: .* or set WALPROXY_SAFEKEEPERS to ID=HOST:PORT"):
        load_connection(MembersConfig, {}, None)
    monkeypatch.setattr(configuration.os, "environ", {"WALPROXY_SAFEKEEPERS": "1=sk1:5454"})
    assert load_connection(MembersConfig, {}, None).safekeepers == SAFEKEEPERS[:1]


@pytest.mark.parametrize("streaming, shown", [("b", "b"), (None, "a")])
def test_the_proxy_that_streams_is_shown_rather_than_one_that_waits(
    monkeypatch: pytest.MonkeyPatch, streaming: str | None, shown: str
) -> None:
    def state(url: str, access: Access) -> ProxyStatus:
        if url == "c":
            raise WalproxyError("it is not the status of a walproxy")
        return status(state="streaming" if url == streaming else "waiting_for_primary")

    monkeypatch.setattr("walproxy.cli.proxy_pages.fetch_status", state)
    assert ProxyPages(("c", "a", "b"), NO_ACCESS).fetch(lambda url, _: url) == (shown if streaming else "c")
    assert ProxyPages(("a", "b"), NO_ACCESS).fetch(lambda url, _: url) == shown


def test_the_first_proxy_that_replies_is_shown() -> None:
    def fetch(url: str, access: Access) -> str:
        if url != "b":
            raise NoAnswer(f"no reply from {url}")
        return url

    assert ProxyPages(("a", "b", "c"), NO_ACCESS).fetch(fetch) == "b"
    with pytest.raises(NoAnswer, match=r"^no reply from a$"):
        ProxyPages(("a",), NO_ACCESS).fetch(fetch)
    with pytest.raises(NoAnswer, match=r"^no reply from a proxy: no reply from a; no reply from c$"):
        ProxyPages(("a", "c"), NO_ACCESS).fetch(fetch)
