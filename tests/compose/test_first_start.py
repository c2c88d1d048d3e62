"""The page on Compose from its first command to a change that somebody reads, and what survives."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections import Counter
from typing import Any

import asyncpg
import msgpack
import nats
from nats.aio.client import Client

from tests.chart.deployment import SUITE
from tests.compose.conftest import PATIENCE_S, Checkout, commands_with

IDLE_S = 30.0
# Percent of a core, by the services together: several times what a quiet machine shows.
SUITE_IDLE_MAX = 5.0
SNAPSHOT_ROWS = 50_000
WRITERS_PAUSE_S = 0.02


async def consumer_of(checkout: Checkout) -> Client:
    """A plain client, connected as the page says."""
    return await nats.connect(
        "nats://127.0.0.1:4222",
        user="consumer",
        password=checkout.password("NATS_CONSUMER_PASSWORD"),
        inbox_prefix=b"_INBOX_consumer",
    )


async def source_of(checkout: Checkout) -> asyncpg.Connection[Any]:
    return await asyncpg.connect(
        host="127.0.0.1",
        user="postgres",
        password=checkout.password("POSTGRES_PASSWORD"),
        database="headrace",
    )


async def changes_up_to(client: Client, table: str, last_id: int) -> list[dict[str, Any]]:
    """A table's changes from the stream's first message to the one of this row, and all after it
    that the stream has by then.
    """
    changes = []
    subscription = await client.jetstream().subscribe(f"cdc.{table}.>", ordered_consumer=True)
    async with asyncio.timeout(PATIENCE_S):
        async for message in subscription.messages:
            change = msgpack.unpackb(message.data)
            # Not the events of the table's schema.
            if "data" in change:
                changes.append(change)
            arrived = any(change["data"]["id"] == last_id for change in changes[-1:])
            if arrived and message.metadata.num_pending == 0:
                break
    await subscription.unsubscribe()
    return changes


def test_the_pages_first_commands_start_every_service_healthy(
    checkout: Checkout, page: list[str]
) -> None:
    checkout.shell(commands_with(page, "env.sh"))
    containers = checkout.containers()
    assert {"postgres", "nats", "spark", "publisher", "grafana"} <= containers.keys()
    init = containers.pop("init")["State"]
    assert (init["Status"], init["ExitCode"]) == ("exited", 0)
    health = {name: each["State"]["Health"]["Status"] for name, each in containers.items()}
    assert set(health.values()) == {"healthy"}, health


async def test_the_pages_first_change_reaches_the_user_consumer(
    checkout: Checkout, page: list[str]
) -> None:
    shown = checkout.shell(commands_with(page, "INSERT INTO orders"))
    assert "a boat" in shown
    client = await consumer_of(checkout)
    (change,) = await changes_up_to(client, "orders", 1)
    await client.close()
    assert (change["operation"], change["data"]) == ("INSERT", {"id": 1, "what": "a boat"})


def test_the_doctor_finds_nothing_wrong(checkout: Checkout, page: list[str]) -> None:
    print(checkout.shell(commands_with(page, "init doctor")), flush=True)


async def test_a_snapshot_through_the_spark_container_has_every_row_once(
    checkout: Checkout,
) -> None:
    source = await source_of(checkout)
    await source.execute(
        "CREATE TABLE copied AS SELECT id, md5(id::text) AS text"
        f" FROM generate_series(1, {SNAPSHOT_ROWS}) id; ALTER TABLE copied ADD PRIMARY KEY (id)"
    )
    wanted = {row["id"]: row["text"] for row in await source.fetch("SELECT * FROM copied")}
    await source.close()
    client = await consumer_of(checkout)
    meta = await client.jetstream().subscribe("init.meta.copied", ordered_consumer=True)
    reply = await client.request("snapshot.request.copied", b"", timeout=PATIENCE_S)
    snapshot = json.loads(reply.data) if reply.data[:1] == b"{" else msgpack.unpackb(reply.data)
    assert snapshot["status"] == "accepted", snapshot
    end = msgpack.unpackb((await meta.next_msg(timeout=PATIENCE_S)).data)
    assert (end["snapshot_id"], end["row_count"]) == (snapshot["snapshot_id"], SNAPSHOT_ROWS)
    chunks = await client.jetstream().subscribe(
        f"init.snap.copied.{snapshot['snapshot_id']}.*", ordered_consumer=True
    )
    rows = []
    for _ in range(end["batch_count"]):
        rows += msgpack.unpackb((await chunks.next_msg(timeout=PATIENCE_S)).data)["data"]
    await client.close()
    assert len(rows) == SNAPSHOT_ROWS
    assert {row["id"]: row["text"] for row in rows} == wanted


async def write(source: asyncpg.Connection[Any], stop: asyncio.Event, first: int) -> int:
    """Insert rows and update some of them, until `stop` is set; return the last row's id."""
    number = first
    while not stop.is_set():
        async with source.transaction():
            await source.execute("INSERT INTO counted VALUES ($1, 0)", number)
            await source.execute(
                "UPDATE counted SET version = version + 1 WHERE id = $1", number - number % 7
            )
        number += 1
        await asyncio.sleep(WRITERS_PAUSE_S)
    return number - 1


def kill(checkout: Checkout, service: str) -> None:
    """Kill a container's first process, and wait until the engine has started it again."""
    before = checkout.containers()[service]
    os.kill(before["State"]["Pid"], signal.SIGKILL)

    def healthy_again() -> bool:
        now = checkout.containers()[service]
        return bool(
            now["RestartCount"] > before["RestartCount"]
            and now["State"]["Health"]["Status"] == "healthy"
        )

    checkout.wait_until(f"{service} is healthy after a kill", healthy_again)


async def test_kills_and_a_new_start_lose_no_change_and_double_none(checkout: Checkout) -> None:
    source = await source_of(checkout)
    await source.execute("CREATE TABLE counted (id int PRIMARY KEY, version int NOT NULL)")
    stop = asyncio.Event()
    writer = asyncio.create_task(write(source, stop, 1))
    for service in ("publisher", "wal-reader", "nats"):
        await asyncio.to_thread(kill, checkout, service)
    stop.set()
    last = await writer
    await source.close()

    # The slot retains what was not yet delivered, and volumes what was.
    checkout.compose("down")
    assert checkout.containers() == {}
    checkout.compose("up", "--detach", "--wait")

    source = await source_of(checkout)
    await source.execute("INSERT INTO counted VALUES ($1, 0)", last + 1)
    wanted = {
        (row["id"], version)
        for row in await source.fetch("SELECT id, version FROM counted")
        for version in range(row["version"] + 1)
    }
    await source.close()
    client = await consumer_of(checkout)
    changes = await changes_up_to(client, "counted", last + 1)
    await client.close()
    counted = Counter((change["data"]["id"], change["data"]["version"]) for change in changes)
    print(f"{len(changes)} changes of {last + 1} rows", flush=True)
    assert wanted - counted.keys() == set(), "lost"
    assert counted.keys() - wanted == set(), "invented"
    assert [change for change, times in counted.items() if times > 1] == [], "doubled"


def test_an_idle_suite_leaves_the_machine_idle(checkout: Checkout) -> None:
    containers = {
        name: each["Id"]
        for name, each in checkout.containers().items()
        if each["State"]["Status"] == "running"
    }
    before = {name: checkout.engine.cpu_seconds(key) for name, key in containers.items()}
    began = time.monotonic()
    time.sleep(IDLE_S)
    passed = time.monotonic() - began
    used = {
        name: 100 * (checkout.engine.cpu_seconds(key) - before[name]) / passed
        for name, key in containers.items()
    }
    for name, share in sorted(used.items()):
        print(f"{name:20} {share:6.2f} % of a core", flush=True)
    print(f"{'all':20} {sum(used.values()):6.2f} % of a core", flush=True)
    assert sum(share for name, share in used.items() if name in SUITE) < SUITE_IDLE_MAX
