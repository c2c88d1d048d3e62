"""A snapshot has exactly the rows that committed before its LSN, of every kind of table that is
published.
"""

from __future__ import annotations

import asyncio
import secrets

import asyncpg
import pytest

from headrace.consumer.reference import whole
from headrace.contract.subjects_and_ids import table_token
from headrace.lsn import parse_lsn
from headrace.pgoutput.decoder import decode as decode_change
from headrace.pgoutput.messages import Begin, Insert
from headrace.testing.responder import (
    PUBLICATION,
    Consumer,
    Responder,
)

pytestmark = pytest.mark.spark


async def test_a_snapshot_has_every_row_with_null_apart_from_the_empty_string(
    consumer: Consumer,
) -> None:
    await consumer.publish("(id int PRIMARY KEY, note text)", "plain")
    await consumer.sql.execute(
        "INSERT INTO plain SELECT g, CASE g % 3 WHEN 0 THEN NULL WHEN 1 THEN '' ELSE E'a,\"b\\n' "
        "|| g END "
        "FROM generate_series(1, 25000) g"
    )
    snapshot = await consumer.snapshot("plain")
    assert {row["id"]: row["note"] for row in snapshot.rows} == {
        number: (None, "", f'a,"b\n{number}')[number % 3] for number in range(1, 25001)
    }
    assert all(len(chunk["data"]) <= 10_000 for chunk in snapshot.chunks)
    assert snapshot.meta["table"] == "plain"
    assert snapshot.meta["schema"] == "public"
    assert snapshot.meta["source"] == "snapshots"
    assert snapshot.meta["format"] == "msgpack"


async def test_a_snapshot_has_exactly_what_committed_before_its_lsn_while_writers_run(
    responder: Responder, consumer: Consumer
) -> None:
    await consumer.publish("(id int PRIMARY KEY)", "busy")
    await consumer.sql.execute("INSERT INTO busy SELECT generate_series(1, 2000)")
    slot = f"exact_{secrets.token_hex(4)}"
    await consumer.sql.execute(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    stop = asyncio.Event()
    writers = [asyncio.create_task(_write(responder, stop, place)) for place in range(3)]
    try:
        await asyncio.sleep(0.2)
        for _ in range(3):
            snapshot = await consumer.snapshot("busy")
            await asyncio.sleep(0.1)
            changes = await consumer.sql.fetch(
                "SELECT data FROM pg_logical_slot_peek_binary_changes($1, NULL, NULL, "
                "'proto_version', '1', "
                "'publication_names', $2)",
                slot,
                PUBLICATION,
            )
            before, after = _by_commit(
                [row["data"] for row in changes], parse_lsn(snapshot.meta["lsn"])
            )
            assert after, (
                "the writers must have continued after the snapshot, or the test shows nothing"
            )
            assert before, "the writers must have started before it"
            ids = [row["id"] for row in snapshot.rows]
            assert len(ids) == len(set(ids))
            assert set(ids) == set(range(1, 2001)) | before
    finally:
        stop.set()
        await asyncio.gather(*writers)
        await consumer.sql.execute(f"SELECT pg_drop_replication_slot('{slot}')")


async def _write(responder: Responder, stop: asyncio.Event, place: int) -> None:
    """Short and long transactions, some of which are acknowledged before their commit is flushed."""
    connection = await asyncpg.connect(responder.dsn)
    await connection.execute(f"SET synchronous_commit = {('on', 'off', 'local')[place]}")
    number = 10_000_000 * (place + 1)
    while not stop.is_set():
        async with connection.transaction():
            for _ in range(3):
                number += 1
                await connection.execute("INSERT INTO busy VALUES ($1)", number)
                await asyncio.sleep(0.003 * place)
    await connection.close()


def _by_commit(messages: list[bytes], lsn: int) -> tuple[set[int], set[int]]:
    before: set[int] = set()
    after: set[int] = set()
    commit_lsn = 0
    for raw in messages:
        change = decode_change(raw)
        if isinstance(change, Begin):
            commit_lsn = change.final_lsn
        elif isinstance(change, Insert):
            value = change.new[0]
            assert isinstance(value, bytes)
            (before if commit_lsn < lsn else after).add(int(value))
    return before, after


async def test_an_empty_table_is_a_snapshot_without_chunks(consumer: Consumer) -> None:
    await consumer.publish("(id int)", "empty")
    snapshot = await consumer.snapshot("empty")
    assert (snapshot.meta["batch_count"], snapshot.meta["row_count"]) == (0, 0)


async def test_a_table_without_a_primary_key_keeps_its_equal_rows(consumer: Consumer) -> None:
    await consumer.publish("(a int, b text)", "keyless")
    await consumer.sql.execute("INSERT INTO keyless SELECT 1, NULL FROM generate_series(1, 1234)")
    snapshot = await consumer.snapshot("keyless")
    assert snapshot.rows == [{"a": 1, "b": None}] * 1234


async def test_a_table_of_one_nullable_column_loses_no_null(consumer: Consumer) -> None:
    await consumer.publish('("only" text)', "single")
    await consumer.sql.execute("INSERT INTO single VALUES (NULL), (''), ('x'), (NULL)")
    assert [row["only"] for row in (await consumer.snapshot("single")).rows] == [
        None,
        "",
        "x",
        None,
    ]


async def test_a_partitioned_table_has_the_rows_of_all_its_partitions(consumer: Consumer) -> None:
    sql = consumer.sql
    await sql.execute("CREATE TABLE parted (id int, tag text) PARTITION BY LIST (tag)")
    await sql.execute("CREATE TABLE parted_a PARTITION OF parted FOR VALUES IN ('a')")
    # A partition with its columns in another order, which is itself partitioned.
    await sql.execute("CREATE TABLE parted_b (tag text, id int) PARTITION BY RANGE (id)")
    await sql.execute("ALTER TABLE parted ATTACH PARTITION parted_b FOR VALUES IN ('b')")
    await sql.execute("CREATE TABLE parted_b1 PARTITION OF parted_b FOR VALUES FROM (0) TO (1000)")
    await sql.execute(
        "INSERT INTO parted SELECT g, CASE WHEN g < 500 THEN 'b' ELSE 'a' END FROM "
        "generate_series(1, 999) g"
    )
    await sql.execute(f"ALTER PUBLICATION {PUBLICATION} ADD TABLE parted")
    refused = await consumer.ask("parted")
    assert refused["status"] == "rejected"
    assert "publish_via_partition_root" in refused["reason"]
    await sql.execute(f"ALTER PUBLICATION {PUBLICATION} SET (publish_via_partition_root = true)")
    try:
        snapshot = await consumer.snapshot("parted")
    finally:
        await sql.execute(
            f"ALTER PUBLICATION {PUBLICATION} SET (publish_via_partition_root = false)"
        )
    assert {(row["id"], row["tag"]) for row in snapshot.rows} == {
        (number, "b" if number < 500 else "a") for number in range(1, 1000)
    }
    assert len(snapshot.rows) == 999


async def test_awkward_names_arrive_raw_on_an_encoded_subject(consumer: Consumer) -> None:
    schema, table, column = 'Sché "ma".x', "tab le.*>'", 'co"l; $1 {x} \\ %'
    quoted = [name.replace('"', '""') for name in (schema, table, column)]
    await consumer.sql.execute(f'CREATE SCHEMA "{quoted[0]}"')
    await consumer.publish(f'("{quoted[2]}" int, "ü" text)', f'"{quoted[0]}"."{quoted[1]}"')
    await consumer.sql.execute(f'INSERT INTO "{quoted[0]}"."{quoted[1]}" VALUES (1, \'x\')')
    snapshot = await consumer.snapshot(table_token(schema, table))
    assert snapshot.rows == [{column: 1, "ü": "x"}]
    assert (snapshot.meta["schema"], snapshot.meta["table"]) == (schema, table)


async def test_the_publications_row_filter_and_column_list_hold(consumer: Consumer) -> None:
    await consumer.publish(
        "(id int PRIMARY KEY, shown text, secret text)", "partial", "(id, shown) WHERE (id > 10)"
    )
    await consumer.sql.execute(
        "INSERT INTO partial SELECT g, 'x' || g, 'hidden' FROM generate_series(1, 20) g"
    )
    snapshot = await consumer.snapshot("partial")
    assert snapshot.rows == [{"id": number, "shown": f"x{number}"} for number in range(11, 21)]


async def test_generated_columns_are_there_only_if_the_publication_has_them(
    consumer: Consumer,
) -> None:
    await consumer.publish("(id int, twice int GENERATED ALWAYS AS (id * 2) STORED)", "generated")
    await consumer.sql.execute("INSERT INTO generated VALUES (21)")
    assert (await consumer.snapshot("generated")).rows == [{"id": 21}]
    await consumer.sql.execute(
        f"ALTER PUBLICATION {PUBLICATION} SET (publish_generated_columns = stored)"
    )
    try:
        assert (await consumer.snapshot("generated")).rows == [{"id": 21, "twice": 42}]
    finally:
        await consumer.sql.execute(
            f"ALTER PUBLICATION {PUBLICATION} SET (publish_generated_columns = none)"
        )


async def test_a_row_larger_than_a_message_goes_by_reference(consumer: Consumer) -> None:
    await consumer.publish("(id int PRIMARY KEY, body text)", "huge")
    await consumer.sql.execute("INSERT INTO huge SELECT g, 'small' FROM generate_series(1, 1000) g")
    await consumer.sql.execute(
        "INSERT INTO huge SELECT -g, repeat('ä', g * 3000000) FROM generate_series(1, 3) g"
    )
    await consumer.sql.execute("INSERT INTO huge VALUES (1001, 'last')")
    snapshot = await consumer.snapshot("huge")
    large = [chunk for chunk in snapshot.chunks if "reference" in chunk]
    assert sorted(chunk["data"][0]["id"] for chunk in large) == [-3, -2, -1]
    assert all(chunk["data"] == [{"id": chunk["data"][0]["id"]}] for chunk in large)
    js = consumer.client.jetstream()
    rows = {
        row["id"]: row["body"]
        for chunk in snapshot.chunks
        for row in (await whole(js, chunk))["data"]
    }
    expected = {-size: "ä" * size * 3_000_000 for size in (1, 2, 3)}
    assert rows == dict.fromkeys(range(1, 1001), "small") | expected | {1001: "last"}
