"""A table's versions across restarts: each is told once, and none is skipped or repeated."""

from __future__ import annotations

import asyncio

import nats
import pytest

from headrace.consumer import MemoryWatermarks, Subscription, follow
from headrace.testing.line import Line, Lines, differences, only

pytestmark = pytest.mark.asyncio(loop_scope="module")

NOTHING_PUBLISHED = "FOR TABLE line_marker"


async def test_versions_only_grow_whatever_is_killed(lines: Lines) -> None:
    line = await lines(18, HEADRACE_SHUTDOWN_TIMEOUT_S="9")
    await line.execute("CREATE TABLE grown (id int PRIMARY KEY)")
    await line.take()

    async def alter(first: int) -> None:
        for n in range(first, first + 12):
            await line.execute(
                f"ALTER TABLE grown ADD c{n} int",
                f"INSERT INTO grown (id, c{n}) VALUES ({n}, {n})",
            )
            await asyncio.sleep(0.03)

    for round_ in range(4):
        writer = asyncio.create_task(alter(12 * round_), name="writer")
        await asyncio.sleep(0.1 * (round_ + 1))
        await line.suite.kill("publisher")
        await line.suite.start("publisher")
        await writer
    events = await line.take()
    assert [event.row["id"] for event in only(events, "INSERT")] == list(range(48))
    versions = [event.payload["version"] for event in only(events, "SCHEMA")]
    assert versions == list(range(1, 49))
    for told, row in zip(events[::2], events[1::2], strict=True):
        assert (told.operation, row.operation) == ("SCHEMA", "INSERT")
        assert [column["name"] for column in told.payload["columns"]] == list(row.row)


async def test_a_schema_event_takes_no_consumer_forward(lines: Lines) -> None:
    """A consumer that handled the schema event and crashed still gets the row, which has the same
    position.
    """
    line = await lines(18)
    await line.execute("CREATE TABLE stood (id int PRIMARY KEY); INSERT INTO stood VALUES (1)")
    await line.take()
    store = MemoryWatermarks()
    assert await followed(line, store, "cdc.stood.*", 1) == ["SCHEMA"]
    assert await store.load() == {}
    assert await followed(line, store, "cdc.stood.*", 2) == ["SCHEMA", "INSERT"]
    assert [mark.position for mark in (await store.load()).values()] != []
    assert await followed(line, store, "cdc.stood.*", 1) == []


async def followed(line: Line, store: MemoryWatermarks, subject: str, count: int) -> list[str]:
    """The operations of the next events that a consumer is given, each of them done."""
    operations: list[str] = []
    client = await nats.connect(line.nats_url)
    try:
        async with follow(client, Subscription(filters=(subject,)), store) as consumer:
            while len(operations) < count and (event := await consumer.next(0.5)) is not None:
                operations.append(event.operation)
                await consumer.done(event)
    finally:
        await client.close()
    return operations


@pytest.mark.parametrize("kept", [True, False], ids=["known_before", "just_made"])
async def test_a_publication_that_changed_while_the_publisher_was_down_is_told(
    lines: Lines, kept: bool
) -> None:
    """What is replayed is read with a newer catalog, and must not swallow what only the catalog
    tells.
    """
    table = f"absent_{kept}".lower()
    line = await lines(18, NOTHING_PUBLISHED, HEADRACE_PROGRESS_INTERVAL_S="600")
    await line.execute(
        f"CREATE TABLE {table} (id int PRIMARY KEY); ALTER PUBLICATION headrace ADD TABLE {table}",
        f"INSERT INTO {table} VALUES (1)",
    )
    await line.take()
    if kept:
        assert await line.suite.stop("publisher") == 0
        await line.suite.start("publisher")
    await line.execute(f"INSERT INTO {table} VALUES (2)")
    await line.take()
    await line.suite.kill("publisher")
    await line.execute(
        f"ALTER PUBLICATION headrace DROP TABLE {table}",
        f"INSERT INTO {table} VALUES (3)",
        f"ALTER PUBLICATION headrace ADD TABLE {table}",
        f"INSERT INTO {table} VALUES (4)",
    )
    await line.suite.start("publisher")
    told, row = await line.take()
    assert row.row == {"id": 4}
    assert (differences(told), told.payload["resync"], told.payload["version"]) == (
        ["publication_changed"],
        True,
        2,
    )


async def test_a_change_that_was_kept_and_not_stored_is_told_again_whole(lines: Lines) -> None:
    """The publisher dies between keeping a table's new shape and publishing its event."""
    line = await lines(18, HEADRACE_PROGRESS_INTERVAL_S="600")
    await line.execute("CREATE TABLE halved (id int PRIMARY KEY); INSERT INTO halved VALUES (1)")
    await line.take()
    await line.suite.kill("publisher")
    await line.suite.start("publisher", HEADRACE_FAILPOINT="publisher.after_shape_before_event")
    await line.execute(
        "ALTER TABLE halved ADD n int DEFAULT 5",
        "INSERT INTO halved VALUES (2)",
    )
    await line.suite.exit_code("publisher", 20)
    await line.suite.start("publisher")
    told, row = await line.take()
    assert row.row == {"id": 2, "n": 5}
    assert (differences(told), told.payload["resync"], told.payload["version"]) == (
        ["column_added"],
        False,
        2,
    )
    assert told.payload["changes"][0]["filled"] == 5
