"""The file of a cluster: which section a program reads, and what is refused with which line."""

import os
from pathlib import Path
from typing import Any

import pytest

from safekeeper.base import cluster_file
from safekeeper.base.cluster_file import ClusterFile, find_cluster_file, is_host
from safekeeper.base.errors import ConfigurationError
from safekeeper.process.config import SAFEKEEPER
from walproxy.cli.configuration import AGENT, PROXY, roles
from walproxy.recovery.config import FetchConfig, load_sources

CLUSTER = """
secret_file = "/etc/walproxy/secret"
log_level = "debug"

[safekeeper]
data_dir = "/var/lib/safekeeper"
wal_limit = "100GiB"

[safekeepers]
1 = "sk1:5454"
2 = "sk2.example.org:5454"

[safekeepers.3]
address = "10.0.0.3:5454"
wal_limit = "200GiB"
log_level = "info"

[agent]
dead_after = 3

[servers]
pg1 = "db1:5432"
pg2 = "db2:5432"
"""


def written(folder: Path, text: str) -> ClusterFile:
    path = folder / "walproxy.toml"
    path.write_text(text)
    return ClusterFile(path, roles())


@pytest.fixture
def cluster(tmp_path: Path) -> ClusterFile:
    return written(tmp_path, CLUSTER)


def test_the_names_of_the_machines_are_served_by_http_unless_others_are_listed(tmp_path: Path) -> None:
    assert written(tmp_path, CLUSTER).values(AGENT, "pg1")["http_hosts"].value == [
        "db1",
        "db2",
        "sk1",
        "sk2.example.org",
    ]
    listed = written(tmp_path, 'http_hosts = "metrics"\n' + CLUSTER)
    assert listed.values(AGENT, "pg1")["http_hosts"].value == "metrics"
    assert "http_hosts" not in written(tmp_path, '[safekeepers]\n1 = "10.0.0.1:5454"\n').values(PROXY)


def test_a_machine_overrides_its_program_and_that_the_top(cluster: ClusterFile) -> None:
    found = {name: given.value for name, given in cluster.values(SAFEKEEPER, "3").items()}
    assert found == {
        "secret_file": "/etc/walproxy/secret",
        "log_level": "info",
        "data_dir": "/var/lib/safekeeper",
        "wal_limit": "200GiB",
        "http_hosts": ["db1", "db2", "sk1", "sk2.example.org"],
    }
    others = {name: given.value for name, given in cluster.values(SAFEKEEPER, "1").items()}
    assert (others["wal_limit"], others["log_level"]) == ("100GiB", "debug")


def test_each_value_names_its_place(cluster: ClusterFile) -> None:
    found = cluster.values(SAFEKEEPER, "3")
    assert found["secret_file"].place == f"{cluster.path}: secret_file"
    assert found["data_dir"].place == f"{cluster.path}: safekeeper.data_dir"
    assert found["wal_limit"].place == f"{cluster.path}: safekeepers.3.wal_limit"


def test_a_program_reads_only_what_it_has_a_use_for(cluster: ClusterFile) -> None:
    assert cluster.values(PROXY).keys() == {"secret_file", "log_level", "http_hosts"}
    agent = {name: given.value for name, given in cluster.values(AGENT, "pg1").items()}
    assert (agent["address"], agent["dead_after"]) == ("db1:5432", 3)


@pytest.mark.parametrize(
    ("host", "safekeeper", "server"),
    [
        ("sk1", "1", None),
        ("sk1.example.org", "1", None),
        ("sk2", "2", None),
        ("pg1", None, "pg1"),
        ("DB2", None, "pg2"),
    ],
)
def test_the_name_of_the_host_chooses_the_machine(
    cluster: ClusterFile, host: str, safekeeper: str | None, server: str | None
) -> None:
    for role, expected in ((SAFEKEEPER, safekeeper), (AGENT, server)):
        if expected is not None:
            assert cluster.machine(role, None, host) == expected
        else:
            with pytest.raises(ConfigurationError, match=rf"none of \[{role.machines}\] is on the host {host}: give"):
                cluster.machine(role, None, host)


def test_the_option_chooses_the_machine_whatever_the_host_is(cluster: ClusterFile) -> None:
    assert cluster.machine(SAFEKEEPER, "3", "sk1") == "3"
    with pytest.raises(ConfigurationError, match=r"\[servers\] has no pg3: add it, or give another --name; it has pg1"):
        cluster.machine(AGENT, "pg3", "pg1")


def test_two_machines_on_one_host_need_the_option(tmp_path: Path) -> None:
    cluster = written(tmp_path, '[servers]\na = "host:5432"\nb = "host:5433"\n')
    with pytest.raises(ConfigurationError, match=r"a and b of \[servers\] are on the host host: give --name, one of a"):
        cluster.machine(AGENT, None, "host")


def test_without_a_table_of_machines_every_machine_is_the_same(tmp_path: Path) -> None:
    cluster = written(tmp_path, "[safekeeper]\nslots_max = 3\n")
    assert cluster.machine(SAFEKEEPER, "7", "anywhere") is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("slots = 1", "the top has the unknown key slots; the keys are secret_file, "),
        ("wal_limit = 1", "the top has wal_limit, which is a key of [safekeeper]"),
        ("http_listen = 1", "the top has http_listen, which is a key of [safekeeper] and [proxy] and [agent]"),
        ("[proxies]", "the top has the unknown key proxies; the keys are "),
        ("[proxy]\nwal_limit = 1", "[proxy] has wal_limit, which is a key of [safekeeper]"),
        ("[proxy]\nsafekeepers = 1", "[proxy] has safekeepers, which is a section of its own: write [safekeepers]"),
        ("[agent]\nname = 'a'", "[agent] has the unknown key name; the keys are "),
        ("[safekeepers.1]\naddress = 'a:1'\npgdata = 'x'", "[safekeepers.1] has pgdata, which is a key of [agent]"),
        (
            "[servers.a]\naddress = 'a:1'\nnonsense = 1",
            "[servers.a] has the unknown key nonsense; the keys are address",
        ),
        ("[proxy]\nsecret = 'hunter2'", "[proxy] has the unknown key secret; the keys are "),
        ("proxy = 1", "proxy is not a table: write [proxy]"),
        ("servers = 1", "servers is not a table: write NAME = "),
        ("[servers]\na = 5", "servers.a is neither a table nor "),
        ("[servers]\na = 'a:1'\na = 'b:1'", "line 3: servers.a is written twice"),
        ("[servers.a]\naddress = 'a:1'\n[servers.a]\naddress = 'b:1'", "line 3: servers.a is written twice"),
        ("[servers]\na = 'a:1'\n[servers.a]\npriority = 1", "line 3: servers.a is written twice"),
    ],
)
def test_what_no_program_reads_is_one_line_with_file_and_key(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        written(tmp_path, text)
    line = str(refused.value)
    assert line.startswith(f"{tmp_path}/walproxy.toml: {problem}")
    assert "\n" not in line and "hunter2" not in line


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[servers.a]\npriority = 1", 'servers.a has no address: write address = "HOST:PORT"'),
        ("[servers]\na = 'a'", "servers.a.address: 'a' is not an address"),
        ("[servers]\na = 'x:1'\nb = 'x:1'", "servers.b has the address of servers.a, x:1"),
    ],
)
def test_an_address_that_cannot_be_is_one_line_with_file_and_key(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        written(tmp_path, text).addresses("servers")
    assert str(refused.value).startswith(f"{tmp_path}/walproxy.toml: {problem}")


def test_the_keys_of_other_programs_are_left_to_them(tmp_path: Path) -> None:
    path = tmp_path / "walproxy.toml"
    path.write_text("[agent]\nnonsense = 1\n")
    assert ClusterFile(path, (SAFEKEEPER,)).values(SAFEKEEPER) == {}


def test_a_host_is_known_with_and_without_its_domain() -> None:
    assert is_host("db1", "db1.example.org") and is_host("db1.example.org", "db1") and is_host("DB1.", "db1")
    assert not is_host("db1.example.org", "db1.example.com") and not is_host("db1", "db10")


@pytest.fixture
def unreadable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A default file that this user may not read, also if it is root."""
    path = tmp_path / "unreadable.toml"
    monkeypatch.setattr(cluster_file, "DEFAULT_PATH", path)

    def refuse(opened: Path) -> Any:
        raise PermissionError(13, "Permission denied", str(opened))

    monkeypatch.setattr(cluster_file, "open_regular", refuse)
    return path


def test_a_default_file_that_this_user_may_not_read_counts_as_absent(
    unreadable: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert find_cluster_file(None) is None
    assert find_cluster_file(None) is None
    assert caplog.messages == [f"{unreadable} is ignored, because this user may not read it"]
    with pytest.raises(ConfigurationError, match=r"could not read .*: Permission denied"):
        ClusterFile(unreadable, roles())  # As with --config.


def test_a_restore_command_does_not_warn_of_it_for_each_segment(
    unreadable: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"archive": "/archive"}
    loaded = load_sources(FetchConfig, given, {}, find_cluster_file(None, is_silent=True), is_silent=True)
    assert loaded.archive == "/archive" and caplog.messages == []
    load_sources(FetchConfig, given, {}, None)
    assert len(caplog.messages) == 1


def test_a_default_file_is_found_if_it_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "walproxy.toml"
    monkeypatch.setattr(cluster_file, "DEFAULT_PATH", path)
    assert find_cluster_file(None) is None
    path.mkdir()
    assert find_cluster_file(None) is None
    path.rmdir()
    path.touch()
    assert find_cluster_file(None) == path
    assert find_cluster_file(tmp_path / "other.toml") == tmp_path / "other.toml"


@pytest.mark.parametrize(
    ("mode", "owner", "group", "is_accepted"),
    [
        (0o644, 1000, 100, True),
        (0o664, 1000, 1000, True),  # As a checkout has it whose umask is 002.
        (0o664, 1000, 100, False),
        (0o646, 1000, 1000, False),
        (0o666, 0, 0, False),
    ],
)
def test_a_file_that_others_can_change_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: int, owner: int, group: int, is_accepted: bool
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with_status(monkeypatch, mode, owner, group)
    if is_accepted:
        written(tmp_path, CLUSTER)
    else:
        with pytest.raises(ConfigurationError, match=rf"other users can change .* \(mode {mode:04o}\).*: chmod go-w "):
            written(tmp_path, CLUSTER)


@pytest.mark.parametrize(("user", "warnings"), [(0, 1), (1000, 0)])
def test_root_is_warned_once_of_a_file_of_another_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture, user: int, warnings: int
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    with_status(monkeypatch, 0o644, 1000, 1000)
    written(tmp_path, CLUSTER)
    written(tmp_path, CLUSTER)
    assert [each.split(" ", 1)[1] for each in caplog.messages] == warnings * [
        f"belongs to user 1000, and root runs the commands in it: chown root {tmp_path / 'walproxy.toml'}"
    ]


def test_a_password_in_the_file_is_not_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    written(tmp_path, '[agent]\nconninfo = "host=/run password=x"\n')
    assert caplog.messages == []


def with_status(monkeypatch: pytest.MonkeyPatch, mode: int, owner: int, group: int) -> None:
    """Let every open file have this mode and these owners."""
    monkeypatch.setattr(
        os, "fstat", lambda descriptor: os.stat_result((0o100000 | mode, 0, 0, 1, owner, group, *[0] * 4))
    )
