"""A request for a snapshot: rows and columns by choice, equal requests joined, the others refused
with the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from typing import Any

import asyncpg
import pytest

from headrace.contract.events import decode
from headrace.contract.subjects_and_ids import snapshot_request_subject
from headrace.settings import PostgresSettings, Settings, SourceSettings
from headrace.spark.request import SnapshotRequest
from headrace.spark.source import TableRefusedError, held_snapshot
from headrace.testing.responder import (
    PUBLICATION,
    RESULT_TIMEOUT_S,
    Consumer,
    Responder,
    SnapshotFailedError,
)

pytestmark = pytest.mark.spark


async def test_a_request_chooses_columns_and_rows_as_data(consumer: Consumer) -> None:
    await consumer.publish('(id int, name text, "gr\'p" text)', "chosen")
    await consumer.sql.execute(
        "INSERT INTO chosen SELECT g, 'n''' || g, NULLIF(g % 2, 0)::text FROM generate_series(1, "
        "9) g"
    )
    options = {
        "columns": ["name"],
        "filter": [["id", ">=", 3], ["gr'p", "is null"], ["name", "in", ["n'4", "n'6"]]],
    }
    assert (await consumer.snapshot("chosen", options)).rows == [{"name": "n'4"}, {"name": "n'6"}]
    hostile = {"filter": [["name", "=", "x'; DROP TABLE chosen; --"]]}
    assert (await consumer.snapshot("chosen", hostile)).rows == []
    assert len((await consumer.snapshot("chosen")).rows) == 9


async def test_a_filter_that_postgresql_refuses_is_one_clear_error(consumer: Consumer) -> None:
    await consumer.publish("(id int)", "judged")
    await consumer.sql.execute("INSERT INTO judged VALUES (1)")
    with pytest.raises(SnapshotFailedError, match="refuses the filter"):
        await consumer.snapshot("judged", {"filter": [["id", "=", "not a number"]]})


@pytest.mark.parametrize(
    ("token", "payload", "reason"),
    [
        ("nowhere", b"", "doesn't exist"),
        ("seen_by_a_view", b"", "is a view"),
        ("unpublished", b"", "is not in the publication"),
        ("servable.x", b"", "not the token of a table"),
        ("=zz", b"", "not the token of a table"),
        ("servable", b"\xc1garbage", "neither MessagePack nor JSON"),
        ("servable", b'{"colums": ["id"]}', "unknown options: colums"),
        ("servable", b'{"columns": ["nope"]}', "no published columns nope"),
        ("servable", b'{"filter": [["id", "= 1 OR 1 =", 1]]}', "a condition of filter is not"),
        ("servable", b"[1]", "not a map"),
    ],
)
async def test_what_cannot_be_served_is_refused_at_once_with_the_reason(
    consumer: Consumer, token: str, payload: bytes, reason: str
) -> None:
    await consumer.sql.execute(
        "CREATE TABLE IF NOT EXISTS servable (id int PRIMARY KEY, note text);"
        "CREATE TABLE IF NOT EXISTS unpublished (id int);"
        "CREATE OR REPLACE VIEW seen_by_a_view AS SELECT 1 AS id"
    )
    with contextlib.suppress(asyncpg.DuplicateObjectError):
        await consumer.sql.execute(f"ALTER PUBLICATION {PUBLICATION} ADD TABLE servable")
    answer = decode(
        (await consumer.client.request(snapshot_request_subject(token), payload, timeout=20)).data
    )
    assert answer["status"] == "rejected"
    assert reason in answer["reason"]
    with pytest.raises(SnapshotFailedError) as failed:
        await consumer.result(answer["snapshot_id"])
    body = failed.value.args[0]
    assert reason in body["error"]
    if token in {"nowhere", "unpublished", "seen_by_a_view"}:
        assert "servable" in body["available_tables"]
        assert "unpublished" not in body["available_tables"]


async def test_equal_requests_at_once_share_one_snapshot_and_others_get_their_own(
    consumer: Consumer,
) -> None:
    await consumer.publish("(id int, pad text)", "shared")
    await consumer.sql.execute(
        "INSERT INTO shared SELECT g, repeat('x', 500) FROM generate_series(1, 20000) g"
    )
    options = [None, None, {"columns": ["id"]}, None]
    answers = await asyncio.gather(*(consumer.ask("shared", option) for option in options))
    whole = [answers[0], answers[1], answers[3]]
    assert len({answer["snapshot_id"] for answer in whole}) == 1
    assert sorted(answer["status"] for answer in whole) == ["accepted", "joined", "joined"]
    assert answers[2]["status"] == "accepted"
    metas: dict[str, dict[str, Any]] = {}
    async with asyncio.timeout(RESULT_TIMEOUT_S):
        while len(metas) < 2:
            kind, body = await consumer.results.get()
            assert kind == "meta", body
            metas[body["snapshot_id"]] = body
    for answer in (answers[0], answers[2]):
        assert len((await consumer.read(metas[answer["snapshot_id"]])).rows) == 20000
    info = await consumer.client.jetstream().stream_info("SNAPSHOT_REQUESTS")
    assert info.state.messages == 0


async def test_an_older_transaction_that_does_not_end_is_named_with_its_pid(
    responder: Responder, consumer: Consumer
) -> None:
    await consumer.publish("(id int)", "held_up")
    blocker = await asyncpg.connect(
        responder.dsn, server_settings={"application_name": "forgotten console"}
    )
    await blocker.execute("BEGIN; SELECT pg_current_xact_id()")
    try:
        with pytest.raises(SnapshotFailedError) as failed:
            await consumer.snapshot("held_up")
        error = failed.value.args[0]["error"]
        assert f"pid {blocker.get_server_pid()}" in error
        assert "forgotten console" in error
    finally:
        await blocker.close()
    # PostgreSQL drops the temporary slot when it notices that its connection has ended.
    async with asyncio.timeout(60):
        while await consumer.sql.fetchval(  # noqa: ASYNC110  # PostgreSQL doesn't tell
            "SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE 'headrace_snap%'"
        ):
            await asyncio.sleep(0.05)


async def test_rows_that_a_policy_hides_are_an_error_not_a_smaller_snapshot(
    responder: Responder, consumer: Consumer
) -> None:
    role = f"limited_{secrets.token_hex(4)}"
    await consumer.publish("(id int)", "guarded")
    await consumer.sql.execute(
        f"INSERT INTO guarded VALUES (1); ALTER TABLE guarded ENABLE ROW LEVEL SECURITY;"
        f"CREATE ROLE {role} LOGIN REPLICATION; GRANT SELECT ON guarded TO {role}"
    )
    postgres = PostgresSettings("127.0.0.1", responder.postgres.port, responder.database, role)
    settings = Settings(postgres=postgres, source=SourceSettings(publication=PUBLICATION))
    try:
        with pytest.raises(TableRefusedError, match="row-level security"):
            async with held_snapshot(settings, SnapshotRequest("guarded", "public", "guarded")):
                pass
    finally:
        await consumer.sql.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
