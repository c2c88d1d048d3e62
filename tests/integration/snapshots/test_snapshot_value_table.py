"""The contract's table of values in snapshots: the same cases as for events, through the tasks that
Spark runs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import msgpack
import pytest
from nats.aio.client import Client

from headrace.contract.subjects_and_ids import chunk_subject, table_token
from headrace.contract.values import Encoding
from headrace.postgres.connection import connect
from headrace.settings import (
    FormatSettings,
    Settings,
)
from headrace.snapshot_responder import task
from headrace.snapshot_responder.chunk_permits import ChunkPermits
from headrace.snapshot_responder.drivers import Drivers
from headrace.snapshot_responder.snapshot import Snapshot
from headrace.spark.request import SnapshotRequest
from headrace.spark.source import held_snapshot
from headrace.testing.database import Database
from headrace.testing.plugin import OwnNats
from headrace.testing.value_cases import ARRAYS, CASES, EMBEDDED, TEXT, Both, Case
from tests.support.snapshot_source import settings_between

in_both_encodings = pytest.mark.parametrize(
    ("pg_version", "encoding"),
    [(16, Encoding.MSGPACK), (18, Encoding.JSON)],
    indirect=["pg_version"],
)


@dataclass(frozen=True)
class Copied:
    """A value's text as PostgreSQL prints it, the bytes of its chunk, and its row there."""

    printed: str | None
    data: bytes
    row: dict[str, Any]


@pytest.fixture
async def settings(database: Database, own_nats: OwnNats, encoding: Encoding) -> Settings:
    await database.execute("CREATE PUBLICATION p FOR ALL TABLES")
    between = settings_between(database, await own_nats())
    return replace(between, format=FormatSettings(encoding=encoding))


async def copied(
    settings: Settings, client: Client, database: Database, case: Case
) -> list[Copied]:
    """A table of the case's values, as a snapshot has it."""
    table = f"value_{case.name}"
    rows = ", ".join(f"({i}, {literal})" for i, (literal, _) in enumerate(case.values))
    await database.execute(
        f"{case.setup}; CREATE TABLE {table} (id int PRIMARY KEY, v {case.type})"
    )
    await database.execute(f"INSERT INTO {table} VALUES {rows}")
    reader = await connect(settings.postgres, "test")
    text = "CASE WHEN num_nonnulls(v) = 1 THEN format('%s', v) END"
    printed = [row[0] for row in await reader.fetch(f"SELECT {text} FROM {table} ORDER BY id")]
    await reader.close()
    data = await snapshot(settings, client, table)
    found = (
        msgpack.unpackb(data) if settings.format.encoding is Encoding.MSGPACK else json.loads(data)
    )
    return [Copied(text, data, row) for text, row in zip(printed, found["data"], strict=True)]


async def snapshot(settings: Settings, client: Client, table: str) -> bytes:
    """The bytes of the one chunk of a small table's snapshot."""
    request = SnapshotRequest(table_token("public", table), "public", table)
    async with held_snapshot(settings, request) as held:
        made = Snapshot(settings, client, Drivers.of(settings), request, f"snap-{table}")
        plan = made._plan(held)
        office = ChunkPermits(client, plan.permits, made.numbers)
        await office.open()
        for number in range(len(plan.tasks)):
            await task._run(plan, number, settings)
        office.close()
    subject = chunk_subject(request.token, plan.snapshot_id, 0)
    return (await client.jsm().get_last_msg("INIT", subject, direct=True)).data or b""


def check(value: Copied, expected: Any, encoding: Encoding) -> None:
    if isinstance(expected, Both):
        expected = expected.msgpack if encoding is Encoding.MSGPACK else expected.json
    if expected is EMBEDDED:
        assert value.printed is not None
        assert b'{"id":%d,"v":%s}' % (value.row["id"], value.printed.encode()) in value.data
        return
    # repr tells -0.0 from 0, 1 from 1.0 and True, and knows one NaN.
    assert repr(value.row["v"]) == repr(value.printed if expected is TEXT else expected)


@in_both_encodings
async def test_every_value_of_a_snapshot_has_the_form_that_an_event_gives_it(
    settings: Settings, client: Client, database: Database, encoding: Encoding
) -> None:
    for case in CASES:
        values = await copied(settings, client, database, case)
        assert len(values) == len(case.values)
        for value, (_, expected) in zip(values, case.values, strict=True):
            check(value, expected, encoding)


@in_both_encodings
async def test_every_array_of_a_snapshot_is_its_literal(
    settings: Settings, client: Client, database: Database, encoding: Encoding
) -> None:
    for case in ARRAYS:
        for value in await copied(settings, client, database, case):
            check(value, TEXT, encoding)
