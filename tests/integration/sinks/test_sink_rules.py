"""Rules of a sink from PostgreSQL to its target: rows that enter and leave a `where`, transactions
that a mark in the log leaves out, records that a target refuses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from aiohttp import web

from headrace.testing.database import Database
from headrace.testing.plugin import OwnNats, OwnPostgres
from headrace.testing.suite import Suite
from tests.support.exactly_once import environment
from tests.support.sinks import commanded, events_of, sink_process
from tests.support.webhook_receiver import SECRET, Receiver, serve, status

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
WAIT_S = 120.0
BATCH = "batch = {wait_ms = 50}\n"
WEBHOOK = """[[sink]]
name = "hook"
to = "http://127.0.0.1:{port}/hook"
on_error = "park"
operations = ["insert", "update"]
options = {{secret = "env:WEBHOOK_SECRET", allow_networks = ["127.0.0.0/8"], allow_http = true}}
"""


async def until(fulfilled: Callable[[], bool], what: str) -> None:
    try:
        async with asyncio.timeout(WAIT_S):
            while not fulfilled():  # noqa: ASYNC110  # another process
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(what) from None


def rows_of(folder: Path) -> dict[int, str]:
    """The rows that the events leave; raises for a change that does not fit the rows."""
    rows: dict[int, str] = {}
    for event in events_of(folder):
        if event["operation"] not in {"INSERT", "UPDATE", "DELETE"}:
            continue
        data = event["data"]
        if event["operation"] == "DELETE":
            del rows[data["id"]]
            continue
        # An update that changed the key follows a delete of the old one.
        assert event["operation"] == "UPDATE" or data["id"] not in rows, event
        rows[data["id"]] = data["note"]
    return rows


def notes_of(folder: Path) -> list[str]:
    return [one["data"]["note"] for one in events_of(folder) if one["operation"] == "INSERT"]


async def test_a_where_follows_rows_and_a_mark_leaves_a_transaction_out(
    own_postgres: OwnPostgres, own_nats: OwnNats, tmp_path: Path
) -> None:
    postgres, server = await own_postgres(), await own_nats()
    database = Database(postgres, "postgres")
    await database.execute(
        "CREATE TABLE shop (id int PRIMARY KEY, region text, note text);"
        "ALTER TABLE shop REPLICA IDENTITY FULL;"
        "CREATE PUBLICATION headrace FOR ALL TABLES"
    )
    europe, whole = tmp_path / "europe", tmp_path / "whole"
    for folder in (europe, whole):
        folder.mkdir()
    config = tmp_path / "headrace.toml"
    config.write_text(
        f'[[sink]]\nname = "europe"\nto = "{europe.as_uri()}"\n{BATCH}'
        'where = {shop = [["region", "in", ["eu", "uk"]]]}\n'
        f'[[sink]]\nname = "whole"\nto = "{whole.as_uri()}"\n{BATCH}'
    )
    settings = {
        **environment(postgres, server, "event"),
        "HEADRACE_MESSAGE_PREFIXES": "headrace:skip",
    }
    async with Suite(settings, tmp_path) as suite:
        await suite.logged("wal-reader", "epoch_opened")
        async with (
            sink_process(settings, config, "europe"),
            sink_process(settings, config, "whole"),
        ):
            for sql in (
                (
                    "INSERT INTO shop SELECT g, (ARRAY['eu', 'us', 'uk', NULL])[g % 4 + 1], 'first'"
                    " FROM generate_series(1, 40) g"
                ),
                # Rows enter, leave, stay, and change their key.
                "UPDATE shop SET region = 'eu', note = 'entered' WHERE id % 8 = 1",
                "UPDATE shop SET region = 'us', note = 'left' WHERE id % 8 = 2",
                "UPDATE shop SET region = NULL, note = 'left' WHERE id % 8 = 4",
                "UPDATE shop SET note = 'stayed' WHERE id % 16 = 0",
                "UPDATE shop SET id = id + 100, region = 'uk', note = 'moved' WHERE id % 8 = 3",
                "UPDATE shop SET id = id + 200, region = 'us' WHERE id % 8 = 6",
                "DELETE FROM shop WHERE id % 5 = 0",
            ):
                await database.execute(sql)
            found = await database.fetch("SELECT id, note FROM shop WHERE region IN ('eu', 'uk')")
            chosen = {row["id"]: row["note"] for row in found}
            everything = {
                row["id"]: row["note"] for row in await database.fetch("SELECT id, note FROM shop")
            }
            await until(lambda: rows_of(whole) == everything, "the sink without a rule")
            await until(lambda: rows_of(europe) == chosen, "the rows that fulfill the conditions")
            await database.execute(
                "BEGIN; SELECT pg_logical_emit_message(true, 'headrace:skip', 'other, whole');"
                "INSERT INTO shop VALUES (1001, 'eu', 'migrated'); COMMIT"
            )
            # A mark outside a transaction marks nothing.
            await database.execute(
                "SELECT pg_logical_emit_message(false, 'headrace:skip', 'whole,europe');"
                "INSERT INTO shop VALUES (1002, 'eu', 'later')"
            )
            await until(lambda: notes_of(europe)[-1] == "later", "what is not named is delivered")
            await until(lambda: notes_of(whole)[-1] == "later", "the next transaction")
    await database.close()
    assert "migrated" in notes_of(europe)
    assert "migrated" not in notes_of(whole)


async def test_a_refused_record_is_parked_others_pass_and_a_replay_delivers_it_once(
    own_postgres: OwnPostgres, own_nats: OwnNats, tmp_path: Path
) -> None:
    postgres, server = await own_postgres(), await own_nats()
    database = Database(postgres, "postgres")
    await database.execute(
        "CREATE TABLE shop (id int PRIMARY KEY, note text);"
        "CREATE PUBLICATION headrace FOR ALL TABLES"
    )
    receiver = Receiver()
    runner = await serve(receiver)

    async def picky(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if body["data"]["note"] == "bad":
            return await status(422)(request)
        receiver.accepted.append((body, dict(request.headers)))
        return web.Response(status=204)

    receiver.answers = [picky] * 1000
    config = tmp_path / "headrace.toml"
    config.write_text(WEBHOOK.format(port=receiver.port) + BATCH)
    settings = environment(postgres, server, "event")
    secret = {**settings, "WEBHOOK_SECRET": SECRET}

    def accepted() -> list[int]:
        return [body["data"]["id"] for body, _ in receiver.accepted]

    async with Suite(settings, tmp_path) as suite:
        await suite.logged("wal-reader", "epoch_opened")
        async with sink_process(settings, config, "hook", WEBHOOK_SECRET=SECRET):
            tried = await commanded(secret, config, "sinks", "test", "hook")
            assert "can be reached" in tried[0]["outcome"]
            await database.execute("INSERT INTO shop VALUES (1, 'good'), (2, 'bad'), (3, 'good')")
            await database.execute("INSERT INTO shop VALUES (4, 'good')")
            await until(lambda: {1, 3, 4} <= set(accepted()), "the others pass")
            (letter,) = await commanded(secret, config, "dead-letters", "ls")
            assert (letter["sink"], letter["reason"]) == ("hook", "it answered 422")
            assert 2 not in accepted()
            receiver.answers = []
            await commanded(secret, config, "dead-letters", "replay", "hook")
            await until(lambda: 2 in accepted(), "it is delivered when it is accepted")
            await database.execute("INSERT INTO shop VALUES (5, 'good')")
            await until(lambda: 5 in accepted(), "the sink continues")
            assert await commanded(secret, config, "dead-letters", "ls") == []
            rows = await commanded(secret, config, "sinks", "test", "hook", "--last", "3")
            assert all(row["destination"] == "public.shop" for row in rows)
    await database.close()
    await runner.cleanup()
    assert accepted().count(2) == 1
