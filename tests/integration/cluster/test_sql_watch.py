"""A proxy that could not take over without SQL shows it before it has to: the one that leads, and a spare."""

from tests.integration.cluster.cluster_fixtures import field_of, wait_for
from tests.integration.conftest import EVERY, NewGated
from walproxy.lab.cluster.local_cluster import LocalProcess


def sql_problem(proxy: LocalProcess) -> str | None:
    problem = (field_of(proxy, "primary") or {}).get("sql_problem")
    return str(problem) if problem else None


@EVERY
def test_a_missing_line_of_pg_hba_conf_and_a_wrong_database_are_shown_before_a_takeover(new_gated: NewGated) -> None:
    cluster = new_gated()
    with cluster.start_gated():
        cluster.postgres.execute("CREATE DATABASE shop")
        hba = cluster.postgres.data_directory / "pg_hba.conf"
        hba.write_text("host shop all 127.0.0.1/32 reject\n" + hba.read_text())
        cluster.postgres.reload()
        spares = {}
        for dbname in ("shop", "shopp"):
            spares[dbname] = cluster.make_proxy(f"of-{dbname}", conninfo=cluster.postgres.conninfo(dbname=dbname))
            cluster.proxies.append(spares[dbname])
            cluster.start_proxy(spares[dbname])
        wait_for(lambda: all(sql_problem(spare) for spare in spares.values()), "the spares have checked")
        assert all(field_of(spare, "spare") for spare in spares.values())
        assert "`host shop postgres 127.0.0.1/32 scram-sha-256`" in str(sql_problem(spares["shop"]))
        assert 'database "shopp" does not exist' in str(sql_problem(spares["shopp"]))
        assert "SQL on the primary is not possible" in spares["shopp"].log_tail(100)
        assert sql_problem(cluster.proxy) is None
