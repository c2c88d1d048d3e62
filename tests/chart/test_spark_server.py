"""The Spark Connect server as compose and the chart run it: it starts, and a deployed suite's
snapshot uses it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncpg
import pytest
import yaml

from headrace.contract.events import decode
from headrace.testing.responder import jvm_of
from headrace.testing.servers import SessionServers
from tests.chart.composition import services
from tests.chart.deployment import SUITE, deployed
from tests.chart.rendered import CHART, container_of, of_kind

ROWS = 30_000


def test_the_chart_starts_the_server_as_compose_does() -> None:
    """But for the master and the memory, which are values."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())["spark"]
    chart = container_of(CHART / "ci/minimal.yaml", "spark")["command"]
    compose = services()["spark"].body["entrypoint"]
    own = (f"--master={values['master']}", f"--driver-memory={values['driverMemory']}")
    assert [word for word in chart if word not in own] == [
        word for word in compose if not word.startswith(("--master=", "--driver-memory="))
    ]
    (port,) = (word.rpartition("=")[2] for word in chart if "binding.port" in word)
    service = next(
        m
        for m in of_kind(CHART / "ci/minimal.yaml", "Service")
        if m["metadata"]["name"] == "headrace-spark"
    )
    assert [entry["port"] for entry in service["spec"]["ports"]] == [int(port)]
    assert services()["snapshot-responder"].environment["SPARK_REMOTE"] == f"sc://spark:{port}"


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
async def test_a_deployed_suites_snapshot_through_spark_connect_is_complete(
    session_servers: SessionServers, tmp_path: Path
) -> None:
    pytest.importorskip("grpc", reason="needs pyspark[connect]")
    async with deployed(session_servers, tmp_path) as deployment:
        session = await asyncpg.connect(deployment.postgres.dsn("headrace"))
        await session.execute("CREATE TABLE orders (id int PRIMARY KEY, what text)")
        await session.execute(
            f"INSERT INTO orders SELECT g, repeat('x', 300) FROM generate_series(1, {ROWS}) g"
        )
        await session.execute("GRANT SELECT ON orders TO headrace_snapshot")
        await session.close()
        await deployment.set_up()
        await deployment.start_spark()
        for name in SUITE:
            await deployment.start(name)
        await deployment.ready(*SUITE)
        consumer = await deployment.connect("consumer", inbox_prefix="_INBOX_consumer")
        results = await consumer.jetstream().subscribe("init.*.orders", stream="INIT")
        answer = decode((await consumer.request("snapshot.request.orders", b"", timeout=30)).data)
        assert answer["status"] == "accepted"
        meta = decode((await results.next_msg(timeout=200)).data)
        assert meta.get("error") is None, deployment.log("spark")[-3000:]
        assert meta["row_count"] == ROWS
        chunks = await consumer.jetstream().subscribe(
            f"init.snap.orders.{meta['snapshot_id']}.>", stream="INIT"
        )
        found: dict[int, int] = {}
        async with asyncio.timeout(60):
            while len(found) < meta["batch_count"]:
                chunk = decode((await chunks.next_msg(timeout=30)).data)
                found[chunk["chunk"]] = len(chunk["data"])
        assert sorted(found) == list(range(meta["batch_count"]))
        assert sum(found.values()) == ROWS
        await consumer.close()
        assert jvm_of(deployment.running["snapshot-responder"].pid) is None, (
            "the server's JVM is the only one"
        )
