"""Telemetry shows the whole suite, even if parts of it are down, with its own and the bridge's
names.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import aiohttp
import nats
from nats.aio.client import Client

from headrace.bus import participation, subjects
from headrace.embedded.nats import EmbeddedNats
from headrace.metrics.counters import Stats
from headrace.testing.database import Database
from headrace.testing.names import Names
from headrace.testing.plugin import OwnNats, OwnPostgres
from headrace.testing.process import service
from tests.support.telemetry_answers import (
    BRIDGE_METRICS,
    BRIDGE_STATUS,
    environment,
    make_slot,
    status_when,
    values,
)

LINE = re.compile(
    r"METRICS uptime=(\d+) wal_messages=(\d+) cdc_events=(\d+) lsn=([0-9a-f]+/[0-9a-f]+) connected=([01]) "
    r"reconnects=(\d+) nats_reconnects=(\d+) lag_bytes=(\d+) slot_active=([01])"
)


EVERYWHERE = "0.0.0.0"  # noqa: S104  # what a container listens on, and why a token is asked for
NOWHERE = "nats://127.0.0.1:1"


def state(status: dict[str, Any], name: str) -> str:
    return str(status["services"].get(name, {}).get("state", "unknown"))


READER: Stats = {
    "ready": 1,
    "wal_messages": 1797,
    "pg_connected": 1,
    "pg_reconnects": 3,
    "confirmed_lsn": 0x183F680,
}


async def report(client: Client, names: Names, name: str, stats: Stats) -> None:
    await client.publish(subjects.stats(names.slot, name), participation.encode_stats(stats, {}))
    await client.flush()


async def test_status_and_metrics_have_every_name_of_the_bridge_with_the_suites_values(
    database: Database, nats_server: EmbeddedNats, names: Names
) -> None:
    await make_slot(database, names)
    async with service(environment(database, nats_server.url, names), "telemetry") as telemetry:
        await telemetry.logs("slot_visible")
        client = await nats.connect(nats_server.url)
        await telemetry.logs("reports_heard")
        await report(client, names, "wal-reader", READER)
        await report(
            client, names, "publisher", {"ready": 1, "cdc_events": 288, "nats_reconnects": 1}
        )
        assert await telemetry.get("/health") == (200, '{"status": "ok"}')
        status = json.loads((await telemetry.get("/status"))[1])
        metrics = values((await telemetry.get("/metrics"))[1])
        await client.close()
    assert list(status)[: len(BRIDGE_STATUS)] == BRIDGE_STATUS
    assert status["status"] == "connected"
    assert status["wal_messages_received"] == metrics["bridge_wal_messages_received_total"] == 1797
    assert status["cdc_events_published"] == metrics["bridge_cdc_events_published_total"] == 288
    assert status["reconnect_count"] == metrics["bridge_reconnects_total"] == 3
    assert status["services"]["wal-reader"]["state"] == "ready"
    assert set(BRIDGE_METRICS) <= set(metrics)
    assert metrics[f'headrace_cdc_events_total{{service="publisher",source="{names.slot}"}}'] == 288
    assert metrics[f'headrace_up{{service="telemetry",source="{names.slot}"}}'] == 1


async def test_the_metrics_line_has_the_bridges_form_in_every_log_format(
    database: Database, nats_server: EmbeddedNats, names: Names
) -> None:
    await make_slot(database, names)
    for log_format in ("logfmt", "json"):
        more = {"HEADRACE_METRICS_INTERVAL_S": "0.5", "HEADRACE_LOG_FORMAT": log_format}
        async with service(
            environment(database, nats_server.url, names, **more), "telemetry"
        ) as telemetry:
            line = await telemetry.says("METRICS")
            assert await telemetry.stop() == 0
        assert LINE.fullmatch(line), line
        assert telemetry.out[-1].startswith("SUMMARY uptime="), telemetry.out


async def test_a_silent_service_keeps_its_counts_and_loses_its_state(
    database: Database, nats_server: EmbeddedNats, names: Names
) -> None:
    async with service(environment(database, nats_server.url, names), "telemetry") as telemetry:
        await telemetry.logs("reports_heard")
        client = await nats.connect(nats_server.url)
        await report(client, names, "wal-reader", READER)
        await client.close()
        silent = await status_when(
            telemetry, lambda status: state(status, "wal-reader") == "silent"
        )
        metrics = values((await telemetry.get("/metrics"))[1])
    assert silent["status"] == "disconnected"
    assert silent["wal_messages_received"] == 1797
    assert metrics[f'headrace_up{{service="wal-reader",source="{names.slot}"}}'] == 0
    assert not [name for name in metrics if name.startswith("headrace_pg_connected")]


async def test_lag_and_state_of_the_slot_are_postgresqls_own(
    database: Database, nats_server: EmbeddedNats, names: Names
) -> None:
    await make_slot(database, names)
    await database.execute(
        "CREATE TABLE filler AS SELECT repeat('x', 1000) FROM generate_series(1, 500)"
    )
    limits = {"HEADRACE_WAL_WARNING_BYTES": "1000", "HEADRACE_WAL_INTERVAL_S": "0.1"}
    async with service(
        environment(database, nats_server.url, names, **limits), "telemetry"
    ) as telemetry:
        warning = await telemetry.logs("wal_lag_high")
        status = json.loads((await telemetry.get("/status"))[1])
    lag = await database.fetchval(
        (
            "SELECT (pg_current_wal_lsn() - confirmed_flush_lsn)::int8 FROM pg_replication_slots "
            "WHERE slot_name = $1"
        ),
        names.slot,
    )
    assert 500_000 < warning["lag_bytes"] <= status["wal_lag_bytes"] <= lag
    assert status["slot_active"] is False
    assert status["slot"]["wal_status"] == "reserved"


async def test_telemetry_outlives_postgresql_and_sees_it_again(
    own_postgres: OwnPostgres, own_nats: OwnNats, names: Names
) -> None:
    server, nats_server = await own_postgres(), await own_nats()
    database = Database(server, "postgres")
    await make_slot(database, names)
    await database.close()
    async with service(environment(database, nats_server.url, names), "telemetry") as telemetry:
        await telemetry.logs("slot_visible")
        await server.kill()
        await telemetry.logs("slot_not_visible")
        status = json.loads((await telemetry.get("/status"))[1])
        assert status["postgres"]["reachable"] is False
        assert status["slot"]["wal_status"] == "reserved"
        await server.start()
        await telemetry.logs("slot_visible", count=2)
        assert await telemetry.stop() == 0


async def test_telemetry_answers_and_stops_while_nats_was_never_there(
    database: Database, names: Names
) -> None:
    settings = environment(database, NOWHERE, names)
    async with service(settings, "telemetry") as telemetry:
        assert (await telemetry.get("/health"))[0] == 200
        await telemetry.logs("not_ready")
        reasons = (await telemetry.readiness(503))["reasons"]
        assert "Start it, or set NATS_URL" in reasons["nats"]
        assert json.loads((await telemetry.get("/status"))[1])["nats"]["connected"] is False
        assert (await telemetry.get("/streams/info?stream=CDC"))[0] == 503
        assert await telemetry.stop() == 0
    assert telemetry.out[-1].startswith("SUMMARY")


async def test_telemetry_sees_figures_again_after_nats_restarted(
    database: Database, own_nats: OwnNats, names: Names
) -> None:
    server = await own_nats()
    settings = environment(database, server.url, names, HEADRACE_NATS_RECONNECT_WAIT_S="0.1")
    async with service(settings, "telemetry") as telemetry:
        await telemetry.readiness(200)
        await server.kill()
        await telemetry.readiness(503)
        await server.start()
        await telemetry.readiness(200)
        client = await nats.connect(server.url)
        await report(client, names, "wal-reader", READER)
        await client.close()
        status = await status_when(telemetry, lambda status: status["nats_reconnect_count"] >= 1)
    assert status["wal_messages_received"] == 1797


async def test_stream_info_is_jetstreams_own_and_refusals_say_what_to_do(
    database: Database, own_nats: OwnNats, names: Names
) -> None:
    server = await own_nats()
    client = await nats.connect(server.url)
    await client.jetstream().add_stream(name="CDC", subjects=["cdc.>"])
    await client.jetstream().publish("cdc.users.insert", b"{}")
    await client.close()
    async with service(environment(database, server.url, names), "telemetry") as telemetry:
        await telemetry.logs("reports_heard")
        code, body = await telemetry.get("/streams/info?stream=CDC")
        info = json.loads(body)
        assert (code, info["name"], info["state"]["messages"]) == (200, "CDC", 1)
        assert info["config"]["subjects"] == ["cdc.>"]
        for query, expected in (("", 400), ("?stream=a.b", 400), ("?stream=NONE", 404)):
            code, body = await telemetry.get(f"/streams/info{query}")
            assert code == expected
            assert json.loads(body)["remedy"]


def all_stopped(pid: int) -> bool:
    stats = [stat.read_text() for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)


async def test_stream_info_names_missing_rights_only_where_nats_server_does(
    database: Database, own_nats: OwnNats, names: Names
) -> None:
    denied = {"publish": {"deny": ["$JS.API.STREAM.INFO.SECRET"]}}
    user = {"user": "u", "password": "p", "permissions": denied}
    server = await own_nats(config={"authorization": {"users": [user]}})
    settings = environment(database, server.url, names)
    settings |= {"NATS_BRIDGE_USER": "u", "NATS_BRIDGE_PASSWORD": "p"}
    async with service(settings, "telemetry") as telemetry:
        await telemetry.logs("reports_heard")
        code, body = await telemetry.get("/streams/info?stream=SECRET")
        assert (code, "$JS.API.STREAM.INFO.SECRET" in json.loads(body)["remedy"]) == (503, True)
        os.kill(server.pid, signal.SIGSTOP)
        # Its threads stop one after the other, and the last may still answer.
        async with asyncio.timeout(10):
            while not all_stopped(server.pid):  # noqa: ASYNC110  # a process's state gives no event
                await asyncio.sleep(0.01)
        try:
            code, body = await telemetry.get("/streams/info?stream=CDC")
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert (code, "Allow" in json.loads(body)["remedy"]) == (503, False)
        assert json.loads(body)["error"] == "no answer about stream CDC"


async def post(url: str, **headers: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{url}/shutdown", headers=headers) as answer,
    ):
        return answer.status, await answer.text()


async def test_a_shutdown_on_loopback_stops_every_service_of_the_suite(
    database: Database, own_nats: OwnNats, names: Names
) -> None:
    await database.execute(f"CREATE PUBLICATION {names.publication}")
    settings = environment(database, (await own_nats()).url, names)
    async with (
        service(settings, "telemetry") as telemetry,
        service(settings, "schema-publisher") as other,
    ):
        await telemetry.readiness(200)
        await other.readiness(200)
        url = await telemetry.url()
        assert (await post(url, Origin="https://example.org"))[0] == 403
        assert await post(url) == (200, "Shutdown initiated\n")
        assert (await telemetry.ended(), await other.ended()) == (0, 0)


async def test_a_shutdown_from_elsewhere_needs_the_token(
    database: Database, nats_server: EmbeddedNats, names: Names
) -> None:
    settings = environment(database, nats_server.url, names, HEADRACE_HTTP_HOST=EVERYWHERE)
    async with service(settings, "telemetry") as telemetry:
        await telemetry.readiness(200)
        code, body = await post(await telemetry.url())
        assert (code, json.loads(body)["remedy"]) == (403, "Set HEADRACE_SHUTDOWN_TOKEN.")
    async with service({**settings, "HEADRACE_SHUTDOWN_TOKEN": "s3cret"}, "telemetry") as telemetry:
        await telemetry.readiness(200)
        url = await telemetry.url()
        assert (await post(url, Authorization="Bearer wrong"))[0] == 401
        assert (await post(url, Authorization="Bearer s3cret"))[0] == 200
        assert await telemetry.ended() == 0
