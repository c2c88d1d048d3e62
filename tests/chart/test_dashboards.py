"""Dashboards and alerts on a real Prometheus that scrapes the real suite: every query finds data,
cheap drills fire.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import yaml
from pytest_asyncio import fixture as async_fixture

from headrace.contract.events import decode
from headrace.testing.servers import SessionServers
from tests.chart.deployment import SUITE, Deployment, deployed
from tests.chart.prometheus import (
    Prometheus,
    PrometheusMissingError,
    binary,
    running_prometheus,
)

ROOT = Path(__file__).parents[2]
DASHBOARDS = ROOT / "deploy/grafana/dashboards"
PATIENCE_S = 60.0
OPTIONAL = (
    "archiver",
    "audit-writer",
    "lake-writer",
    "sql-server",
    "wal-archiver",
    "sink",
    "console",
)
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]


def panels() -> Iterator[tuple[str, str]]:
    """Each query, and where it is."""
    for path in sorted(DASHBOARDS.glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                yield f"{path.stem}: {panel['title']}: {target['legendFormat']}", target["expr"]


def eager_rules() -> dict[str, Any]:
    """The shipped rules; an alert fires as soon as its condition holds."""
    rules: dict[str, Any] = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yaml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule.pop("for", None)
    return rules


@dataclass(frozen=True, slots=True)
class Watched:
    suite: Deployment
    prometheus: Prometheus

    async def kill(self, service: str) -> None:
        process = self.suite.running.pop(service)
        process.kill()
        await process.wait()

    async def fires(self, alert: str) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while alert not in await self.prometheus.firing():  # noqa: ASYNC110  # Prometheus tells only who asks
                await asyncio.sleep(0.3)

    async def rests(self, *alerts: str) -> None:
        """Wait until these have stopped."""
        async with asyncio.timeout(PATIENCE_S):
            while set(alerts) & await self.prometheus.firing():  # noqa: ASYNC110  # the same
                await asyncio.sleep(0.3)


@async_fixture(scope="module", loop_scope="module")
async def watched(
    session_servers: SessionServers, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Watched]:
    """The suite with some events, a durable consumer and a snapshot behind it."""
    try:
        binary()
    except PrometheusMissingError as error:
        pytest.skip(str(error))
    async with contextlib.AsyncExitStack() as stack:
        archive = tmp_path_factory.mktemp("archive")
        mirror = tmp_path_factory.mktemp("mirror")
        lake = tmp_path_factory.mktemp("lake")
        backup = tmp_path_factory.mktemp("backup")
        for folder in (archive, lake, mirror, backup):
            folder.chmod(0o777)
        place = {
            "HEADRACE_ARCHIVE_URL": archive.as_uri(),
            "HEADRACE_LAKE_URL": lake.as_uri(),
            "HEADRACE_BACKUP_URL": backup.as_uri(),
            "HEADRACE_MIRROR_TO": f"sqlite:///{mirror}/mirror.db",
        }
        suite = await stack.enter_async_context(
            deployed(session_servers, tmp_path_factory.mktemp("watched"), **place)
        )
        await execute(suite, "CREATE TABLE orders (id int PRIMARY KEY, what text)")
        await suite.set_up()
        await suite.run("backup-init")
        services = (*SUITE, *OPTIONAL)
        for name in services:
            await suite.start(name)
        await suite.ready(*services)
        await suite.start("mirror")
        await write_and_copy(suite)
        # Its own snapshot needs the JVM, too. Then something to follow.
        await suite.ready("mirror", timeout_s=240)
        folder = tmp_path_factory.mktemp("prometheus")
        targets = {"headrace": "telemetry", "headrace-mirror": "mirror"}
        places = {job: f"127.0.0.1:{suite.port(name)}" for job, name in targets.items()}
        prometheus = await stack.enter_async_context(
            running_prometheus(folder, places, eager_rules())
        )
        await execute(suite, "INSERT INTO orders VALUES (999, 'x')")
        yield Watched(suite, prometheus)


async def execute(suite: Deployment, sql: str) -> None:
    session = await asyncpg.connect(suite.postgres.dsn("headrace"))
    try:
        await session.execute(sql)
    finally:
        await session.close()


async def write_and_copy(suite: Deployment) -> None:
    client = await suite.connect("consumer", inbox_prefix="_INBOX_consumer")
    try:
        changes = await client.jetstream().pull_subscribe(
            "cdc.orders.>", durable="billing", stream="CDC"
        )
        results = await client.jetstream().subscribe("init.*.orders", stream="INIT")
        await execute(suite, "INSERT INTO orders SELECT g, 'x' FROM generate_series(1, 500) g")
        await (await changes.fetch(1, timeout=PATIENCE_S))[0].ack()
        await client.request("snapshot.request.orders", b"", timeout=30)
        result = decode((await results.next_msg(timeout=240)).data)
        assert result.get("error") is None
    finally:
        await client.close()


def asked(expression: str) -> str:
    """As Grafana sends it."""
    return expression.replace("$source", ".+").replace("$__rate_interval", "1m")


async def test_every_query_of_every_panel_finds_data(watched: Watched) -> None:
    asked_for, empty = list(panels()), {}
    assert len(asked_for) > 50
    async with asyncio.timeout(PATIENCE_S):
        while True:
            empty = {
                where: query
                for where, query in asked_for
                if not await watched.prometheus.query(asked(query))
            }
            if not empty:
                return
            try:
                # Counters have a rate from their second scrape on.
                await asyncio.sleep(2)
            except asyncio.CancelledError:
                raise AssertionError(f"no data for {json.dumps(empty, indent=1)}") from None


async def test_every_rule_can_be_evaluated_and_none_fires_in_peace(watched: Watched) -> None:
    await execute(watched.suite, "INSERT INTO orders VALUES (1000, 'x')")
    await watched.rests(
        *[rule["alert"] for group in eager_rules()["groups"] for rule in group["rules"]]
    )


async def test_a_service_that_dies_is_told(watched: Watched) -> None:
    await watched.kill("publisher")
    await watched.fires("HeadraceServiceDown")
    await watched.suite.start("publisher")
    await watched.rests("HeadraceServiceDown", "HeadraceServiceNotReady")


async def test_a_slot_that_nobody_reads_is_told(watched: Watched) -> None:
    await watched.kill("wal-reader")
    await watched.fires("HeadraceSlotInactive")
    await watched.suite.start("wal-reader")
    await watched.rests("HeadraceSlotInactive")


async def test_a_postgresql_that_is_away_is_told(watched: Watched) -> None:
    await watched.suite.postgres.stop("immediate")
    await watched.fires("HeadracePostgresUnreachable")
    # The trail is in the same server.
    await watched.fires("HeadraceAuditDestinationAway")
    await watched.suite.postgres.start()
    await watched.rests(
        "HeadracePostgresUnreachable", "HeadraceAuditDestinationAway", "HeadraceServiceNotReady"
    )


async def test_a_slot_that_was_dropped_is_told(watched: Watched) -> None:
    await watched.kill("wal-reader")
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with contextlib.suppress(asyncpg.ObjectInUseError):
                await execute(watched.suite, "SELECT pg_drop_replication_slot('headrace')")
                break
            await asyncio.sleep(0.2)
    await watched.fires("HeadraceSlotMissing")


async def test_a_telemetry_that_dies_is_told(watched: Watched) -> None:
    """Last: its port is another one after a restart."""
    await watched.kill("telemetry")
    await watched.fires("HeadraceTelemetryDown")
