"""The context helper: what an application tells is in the log, in the same transaction and before
its changes.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import psycopg
import pytest

from headrace.audit.values import context_json
from headrace.context import change_context, current_context, statement, tell
from headrace.testing.database import Database

READ = """
SELECT data FROM pg_logical_slot_get_binary_changes(
    $1, NULL, NULL, 'proto_version', '1', 'publication_names', 'contexts', 'messages', 'true')
"""


async def slot(database: Database) -> str:
    name = f"s_{database.name}"
    await database.execute("CREATE TABLE users (id bigint PRIMARY KEY, name text)")
    await database.execute("CREATE PUBLICATION contexts FOR ALL TABLES")
    await database.execute("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", name)
    return name


async def contexts(database: Database, name: str) -> list[Any]:
    """Of each change in the log its transaction's latest message before it."""
    found: list[Any] = []
    latest = None
    for row in await database.fetch(READ, name):
        data: bytes = row["data"]
        if data[:1] == b"B":
            latest = None
        elif data[:1] == b"M":
            # Transactional, its LSN, the prefix, the content's length.
            assert data[1] == 1
            prefix, _, rest = data[10:].partition(b"\x00")
            assert prefix == b"_bemi"
            latest = json.loads(rest[4:])
        elif data[:1] in {b"I", b"U", b"D"}:
            found.append(latest)
    return found


def test_a_context_ends_with_its_block_adds_to_the_outer_one_and_is_always_json() -> None:
    with change_context(user=1), change_context(why='it\'s \\ "so"'):
        assert current_context() == {"user": 1, "why": 'it\'s \\ "so"'}
        assert "it''s" in statement(current_context() or {})
    assert current_context() is None
    assert json.loads(context_json(json.dumps({"when": object()}, default=str)))["when"].startswith(
        "<object"
    )


async def test_sqlalchemy_tells_once_for_a_transaction_and_again_when_the_context_changes(
    database: Database,
) -> None:
    sqlalchemy = pytest.importorskip("sqlalchemy")
    from headrace.context.sqlalchemy import tell_from

    name = await slot(database)
    url = database.dsn.replace("postgresql://", "postgresql+psycopg://")

    def work() -> None:
        engine = sqlalchemy.create_engine(url)
        tell_from(engine)
        insert = sqlalchemy.text("INSERT INTO users VALUES (:id, 'O''Brien %')")
        with change_context(user=1, note="100 % 'sure' \\"), engine.begin() as connection:
            connection.execute(insert, [{"id": 1}, {"id": 2}])
            with change_context(user=2):
                connection.execute(insert, {"id": 3})
            savepoint = connection.begin_nested()
            connection.execute(insert, {"id": 4})
            savepoint.rollback()
            connection.execute(insert, {"id": 5})
        with engine.begin() as connection:
            connection.execute(insert, {"id": 6})
        engine.dispose()

    await asyncio.to_thread(work)
    one = {"user": 1, "note": "100 % 'sure' \\"}
    assert await contexts(database, name) == [one, one, {**one, "user": 2}, one, None]


async def test_django_tells_inside_a_transaction_and_in_autocommit(database: Database) -> None:
    django = pytest.importorskip("django")
    from django.conf import settings
    from django.db import connection, transaction

    name = await slot(database)
    address = {
        "HOST": "127.0.0.1",
        "PORT": database.port,
        "NAME": database.name,
        "USER": database.user,
    }
    settings.configure(
        DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", **address}}, USE_TZ=True
    )
    django.setup()
    from headrace.context.django import ContextMiddleware

    def view(_: object) -> str:
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO users VALUES (%s, '100 %%')", [1])
            with transaction.atomic():
                cursor.execute("INSERT INTO users VALUES (2), (3)")
        return "done"

    class Request:
        method, path, user = "POST", "/users", None

    def work() -> None:
        assert ContextMiddleware(view)(Request()) == "done"
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO users VALUES (4)")
        connection.close()

    await asyncio.to_thread(work)
    asked = {"user_id": None, "method": "POST", "path": "/users"}
    assert await contexts(database, name) == [asked, asked, asked, None]


async def test_with_psycopg_the_context_is_told_where_the_application_says(
    database: Database,
) -> None:
    name = await slot(database)

    def work() -> None:
        with psycopg.connect(database.dsn) as connection, change_context(user=7):
            tell(connection)
            connection.execute("INSERT INTO users VALUES (1)")

    await asyncio.to_thread(work)
    assert await contexts(database, name) == [{"user": 7}]
