"""What a job reports, over HTTP: before its first step, while it waits, and with a quarantined table."""

import http.client
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.networks import Networks
from safekeeper.base.settings import Address
from safekeeper.net.tls import ServerTls
from tests.unit.certificates import Authority
from walproxy.pipeline.cdc.apply.status_files import ApplyStatus, StatusFiles, TableStatus
from walproxy.pipeline.cdc.apply.status_pages import served_pages
from walproxy.pipeline.lake.location import LakeLocation

LOOPBACK = Address("127.0.0.1", 0)


@pytest.fixture
def status() -> StatusFiles:
    return StatusFiles(LakeLocation.parse("/nowhere"))


@pytest.fixture
def address(status: StatusFiles) -> Iterator[Address]:
    with served_pages(status, LOOPBACK) as address:
        yield address


def got(address: Address, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_the_pages_are_served_over_tls_with_a_certificate(status: StatusFiles, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = ServerTls(*authority.sign("job"))
    context = ssl.create_default_context(cafile=authority.ca)
    with served_pages(status, LOOPBACK, tls) as address:
        with urllib.request.urlopen(f"https://{address}/status", timeout=10, context=context) as reply:
            assert reply.status == 200
        with pytest.raises(http.client.BadStatusLine):
            urllib.request.urlopen(f"http://{address}/status", timeout=10)


def report(**tables: TableStatus) -> ApplyStatus:
    return ApplyStatus("lake", "0/1A0", 5, 6, 7, 100.5, tables, 99.5)


def test_before_the_first_step_it_is_not_ready_and_alive(address: Address) -> None:
    assert got(address, "/healthz")[0] == 200
    code, text = got(address, "/readyz")
    assert code == 503 and "no step was completed yet" in text
    assert json.loads(got(address, "/status")[1]) == {"problem": None, "report": None}
    assert got(address, "/metrics")[1].splitlines()[-1] == "walproxy_apply_waiting 0"


def test_after_a_step_the_report_is_there(status: StatusFiles, address: Address) -> None:
    status.last = report(**{"public.t": TableStatus("following", "0/1A0/0")})
    assert got(address, "/readyz")[0] == 200
    shown = json.loads(got(address, "/status")[1])["report"]
    assert (shown["slot"], shown["position"], shown["lag_bytes"], shown["retained_bytes"]) == ("lake", "0/1A0", 5, 6)
    assert shown["tables"] == {"public.t": {"state": "following", "position": "0/1A0/0"}}
    lines = got(address, "/metrics")[1].splitlines()
    assert {
        "walproxy_apply_position_bytes 416",
        "walproxy_apply_current_time_seconds 99.5",
        'walproxy_apply_table_quarantined{table="public.t"} 0',
        "walproxy_apply_waiting 0",
    } <= set(lines)


def test_a_job_that_waits_or_has_a_quarantined_table_is_not_ready(status: StatusFiles, address: Address) -> None:
    status.last = report(**{"public.t": TableStatus("quarantined", None, "why", 1.0)})
    code, text = got(address, "/readyz")
    assert code == 503 and "quarantined: public.t" in text
    status.problem = "could not connect to the primary"
    assert "could not connect to the primary" in got(address, "/readyz")[1]
    assert json.loads(got(address, "/status")[1])["problem"] == status.problem
    assert "walproxy_apply_waiting 1" in got(address, "/metrics")[1].splitlines()


def test_while_a_table_is_copied_it_is_not_ready_and_its_ranges_are_shown(
    status: StatusFiles, address: Address
) -> None:
    tables = {"public.t": TableStatus("copying", ranges_done=3, ranges=8), "public.u": TableStatus("quarantined")}
    status.last = report(**tables)
    assert "quarantined: public.u; copying: public.t" in got(address, "/readyz")[1]
    assert json.loads(got(address, "/status")[1])["report"]["tables"]["public.t"] == {
        "state": "copying",
        "ranges_done": 3,
        "ranges": 8,
    }
    lines = got(address, "/metrics")[1].splitlines()
    assert {
        'walproxy_apply_copy_ranges{table="public.t"} 8',
        'walproxy_apply_copy_ranges_done{table="public.t"} 3',
    } <= set(lines)


def test_a_client_of_another_network_is_refused_and_a_port_in_use_is_one_line(status: StatusFiles) -> None:
    with served_pages(status, LOOPBACK, networks=Networks.parse("192.0.2.0/24")) as address:
        with pytest.raises((urllib.error.URLError, ConnectionError)):
            got(address, "/status")
        with pytest.raises(ConfigurationError, match="could not serve HTTP at"), served_pages(status, address):
            pass
