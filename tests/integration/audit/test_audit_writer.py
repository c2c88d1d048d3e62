"""The audit trail with real servers: every change a row, once, in order, with its values and its
key.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
from pytest_asyncio import fixture as async_fixture

from headrace.audit.settings import load_audit
from headrace.contract.selection import Selection
from headrace.testing.audit import AuditOracle
from headrace.testing.database import Database
from headrace.testing.line import Line, running_line
from headrace.testing.plugin import OwnNats
from headrace.testing.process import command

SETTINGS = {"HEADRACE_MESSAGE_PREFIXES": "_bemi"}
AUDIT = "audit-writer"


@async_fixture
async def line(own_nats: OwnNats, database: Database, tmp_path: Path) -> AsyncIterator[Line]:
    """A line whose publication has the audit's own tables too."""
    nats_server = await own_nats()
    async with running_line(
        database, nats_server, tmp_path, SETTINGS, "FOR TABLES IN SCHEMA public"
    ) as running:
        yield running


async def follows(line: Line, times: int = 1) -> None:
    """Wait until the audit-writer has found its place."""
    async with asyncio.timeout(60):
        while line.suite.log(AUDIT).count("audit_follows") < times:  # a file gives no event
            assert line.suite.running(AUDIT), line.suite.log(AUDIT)[-3000:]
            await asyncio.sleep(0.05)


async def rows(line: Line, where: str, count: int) -> list[Any]:
    """So many rows of the trail, waited for."""
    deadline = time.monotonic() + 60
    while True:
        with contextlib.suppress(Exception):
            found = await line.database.fetch(
                f"SELECT * FROM changes WHERE {where} ORDER BY position, ordinal"
            )
            if len(found) >= count:
                assert len(found) == count
                return found
        assert time.monotonic() < deadline, line.suite.log(AUDIT)[-3000:]
        await asyncio.sleep(0.05)


async def test_every_change_is_one_row_in_commit_order_with_what_was_before_and_after(
    line: Line,
) -> None:
    oracle = AuditOracle(line.database)
    await line.execute("CREATE TABLE users (id bigint PRIMARY KEY, name text, ok bool, doc jsonb)")
    await oracle.begin("users")
    await line.suite.start(AUDIT)
    await follows(line)
    await line.execute(
        "INSERT INTO users SELECT g, 'name ' || g, true, '{\"a\": [1, null]}' FROM "
        "generate_series(1, 1000) g",
        "UPDATE users SET name = 'O''Brien \\ \"x\"', ok = NULL WHERE id <= 3; DELETE FROM users "
        "WHERE id = 2",
        "UPDATE users SET id = 5000 WHERE id = 5; TRUNCATE users",
    )
    assert len(await oracle.settled()) == 1006
    # The audit's own writes to this database came through the stream as well, and made no rows.
    await line.execute("INSERT INTO users VALUES (1, 'last', false, NULL)")
    assert (await oracle.settled())[-1][2] == "1"
    first = (await line.database.fetch("SELECT * FROM changes ORDER BY position, ordinal LIMIT 1"))[
        0
    ]
    assert (first["database"], first["schema"], first["context"]) == (
        line.database.name,
        "public",
        "{}",
    )
    assert first["committed_at"] <= first["created_at"]
    assert (
        await line.database.fetchval(
            "SELECT count(DISTINCT position) FROM changes WHERE operation = 'CREATE'"
        )
        == 2
    )
    assert await line.suite.stop(AUDIT) == 0


def say(user: int, prefix: str = "_bemi", transactional: str = "true") -> str:
    """The statement that tells who is at work."""
    return f"SELECT pg_logical_emit_message({transactional}, '{prefix}', '{{\"user_id\": {user}}}')"


async def test_a_message_applies_to_what_follows_it_and_an_only_one_to_all_of_its_transaction(
    line: Line,
) -> None:
    await line.execute("CREATE TABLE users (id bigint PRIMARY KEY, name text)")
    await line.suite.start(AUDIT)
    await line.execute(
        f"INSERT INTO users VALUES (1); {say(42)}; INSERT INTO users VALUES (2)",
        f"INSERT INTO users VALUES (3); {say(1)}; INSERT INTO users VALUES (4);{say(2)}; INSERT "
        "INTO users VALUES (5)",
        "INSERT INTO users VALUES (6)",
        # Another prefix, and one outside any transaction, mean nothing.
        f"{say(3, '_bemi_heartbeat')}; INSERT INTO users VALUES (7)",
        f"{say(9, transactional='false')}; INSERT INTO users VALUES (8)",
    )
    found = {
        row["primary_key"]: json.loads(row["context"]).get("user_id")
        for row in await rows(line, "true", 8)
    }
    assert found == {"1": 42, "2": 42, "3": None, "4": 1, "5": 2, "6": None, "7": None, "8": None}


BEMI_TRIGGER = """
CREATE FUNCTION _bemi_row_trigger_func() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE _bemi_metadata text;
BEGIN
    SELECT split_part(split_part(current_query(), '/*Bemi ', 2), ' Bemi*/', 1) INTO _bemi_metadata;
    IF _bemi_metadata <> '' THEN PERFORM pg_logical_emit_message(true, '_bemi', _bemi_metadata); END IF;
    IF TG_OP = 'DELETE' THEN RETURN OLD; ELSE RETURN NEW; END IF;
END $$;
CREATE TRIGGER _bemi_row_trigger_users BEFORE INSERT OR UPDATE OR DELETE ON users
    FOR EACH ROW EXECUTE FUNCTION _bemi_row_trigger_func();
"""


async def test_the_comments_that_the_orm_packages_write_become_the_context_of_their_own_rows(
    line: Line,
) -> None:
    """The trigger writes the comment's content before each row; statements of one transaction may
    differ in it.
    """
    await line.execute("CREATE TABLE users (id bigint PRIMARY KEY, name text);" + BEMI_TRIGGER)
    await line.suite.start(AUDIT)
    connection = await line.database.connect()
    async with connection.transaction():
        await connection.execute(
            """INSERT INTO users VALUES (1, 'a'), (2, 'b') /*Bemi {"user_id": 7, "SQL": "INSERT … O'Brien"} Bemi*/"""
        )
        await connection.execute(
            "UPDATE users SET name = 'c' WHERE id = 2 /*Bemi {\"user_id\": 8} Bemi*/"
        )
        await connection.execute("DELETE FROM users WHERE id = 1 /*Bemi {'user_id': 9} Bemi*/;")
    contexts = [json.loads(row["context"]) for row in await rows(line, "true", 4)]
    assert [one.get("user_id") for one in contexts] == [7, 7, 8, None]
    assert contexts[0]["SQL"] == "INSERT … O'Brien"
    # No JSON: kept as it is.
    assert contexts[3] == {"_text": "{'user_id': 9}"}


async def test_comments_that_psycopg2_put_values_into_keep_their_fields_and_their_statement(
    line: Line,
) -> None:
    """Recorded from bemi-sqlalchemy 0.0.2 with SQLAlchemy 2.1 and psycopg2 2.9: 11 of these 15 are
    no JSON.
    """
    messages = json.loads((Path(__file__).parent / "bemi_sqlalchemy.json").read_text())
    await line.execute("CREATE TABLE users (id bigint PRIMARY KEY)")
    await line.suite.start(AUDIT)
    connection = await line.database.connect()
    for number, message in enumerate(messages):
        async with connection.transaction():
            await connection.execute("SELECT pg_logical_emit_message(true, '_bemi', $1)", message)
            await connection.execute("INSERT INTO users VALUES ($1)", number)
    await rows(line, "true", len(messages))
    found = await rows(line, 'context @> \'{"user_id": 7, "tags": {"a": [1]}}\'', len(messages))
    assert len(found) == 15
    for message, row in zip(messages, found, strict=True):
        context = json.loads(row["context"])
        assert context["path"] == '/users, "SQL": x'
        assert context["SQL"] == message.rpartition('"inner"}, "SQL": "')[2].removesuffix('"}')


async def test_what_json_and_copy_make_difficult_arrives_as_it_is(line: Line) -> None:
    await line.execute(
        'CREATE TABLE "odd \\ ""t\'able\t" ("Id.1" text, "b\\" bytea, j json, f float8, n numeric, m numeric, '
        'PRIMARY KEY ("Id.1"));'
        'ALTER TABLE "odd \\ ""t\'able\t" REPLICA IDENTITY FULL'
    )
    await line.suite.start(AUDIT)
    casts = "$1, $2, $3::text::json, $4::text::float8, $5::text::numeric, $6::text::numeric"
    insert = f'INSERT INTO "odd \\ ""t\'able\t" VALUES ({casts})'
    texts = [
        "\\",
        "\\n\n\t\r",
        "O'Brien",
        '"{}"',
        "\\N",
        "\\.",
        "é\U0001f600",
        "\\u0000",
        "x" * 5000,
    ]
    long_digits = "1" * 900 + "." + "2" * 900
    connection = await line.database.connect()
    for text in texts:
        await connection.execute(
            insert,
            text,
            text.encode(),
            json.dumps({"n\u0000": text + "\u0000"}),
            "NaN",
            long_digits,
            "NaN",
        )
    found = await rows(line, "true", len(texts))
    for text, row in zip(texts, found, strict=True):
        after = json.loads(row["after"])
        assert row["table"] == "odd \\ \"t'able\t"
        assert after["Id.1"] == text
        assert after["b\\"] == "\\x" + text.encode().hex()
        assert after["j"] == {"n\\u0000": text + "\\u0000"}
        assert (after["f"], after["n"], after["m"]) == ("NaN", long_digits, "NaN")
        assert row["primary_key"] == text or row["primary_key"].startswith("x" * 200 + "…#")


async def test_contexts_of_every_kind_lose_no_transaction(line: Line) -> None:
    await line.execute("CREATE TABLE users (id bigint PRIMARY KEY, name text)")
    await line.suite.start(AUDIT)
    contexts = [
        "not json",
        "null",
        "[1]",
        '{"a": "\\u0000"}',
        '{"a": "\\ud800"}',
        '{"n": 12345678901234567890.123456789}',
    ]
    contexts += [
        '{\n\t"pretty": true}',
        "",
        '{"n": 1e300000}',
        json.dumps({"big": "y" * 1_000_000}),
        "\\ ' \" \t",
    ]
    contexts += [
        '{"a": 1e400}',
        '{"a": -1.5E400, "b": "\\u0000"}',
        '{"a": 1e400, "b": "\\ud800"}',
        '{"a": 1e400, NaN}',
    ]
    connection = await line.database.connect()
    for number, context in enumerate(contexts):
        async with connection.transaction():
            await connection.execute("SELECT pg_logical_emit_message(true, '_bemi', $1)", context)
            await connection.execute("INSERT INTO users VALUES ($1)", number)
    found = [row["context"] for row in await rows(line, "true", len(contexts))]
    assert json.loads(found[0]) == {"_text": "not json"}
    assert (json.loads(found[1]), json.loads(found[2])) == ({}, [1])
    assert json.loads(found[3]) == {"a": "\\u0000"}
    assert json.loads(found[4]) == {"_text": '{"a": "\\ud800"}'}
    assert "12345678901234567890.123456789" in found[5]
    assert json.loads(found[6]) == {"pretty": True}
    assert json.loads(found[7]) == {"_text": ""}
    assert json.loads(found[8])["_text"] == '{"n": 1e300000}'
    assert len(json.loads(found[9])["big"]) == 1_000_000
    assert json.loads(found[10]) == {"_text": "\\ ' \" \t"}
    assert found[11] == '{"a": 1' + "0" * 400 + "}"
    assert json.loads(found[12]) == {"a": "-1.5E+400", "b": "\\u0000"}
    assert [json.loads(one) for one in found[13:]] == [{"_text": text} for text in contexts[13:]]


async def test_keys_unchanged_values_and_redacted_columns_are_told_as_they_are(line: Line) -> None:
    await line.execute(
        "CREATE TABLE full_rows (a int, b text, secret text, note text, PRIMARY KEY (b, a));"
        "ALTER TABLE full_rows REPLICA IDENTITY FULL; ALTER TABLE full_rows ALTER note SET STORAGE "
        "EXTERNAL;"
        "CREATE TABLE plain (id int PRIMARY KEY, note text); ALTER TABLE plain ALTER note SET "
        "STORAGE EXTERNAL;"
        "CREATE TABLE keyless (x text); ALTER TABLE keyless REPLICA IDENTITY FULL;"
    )
    await line.suite.start(
        AUDIT, HEADRACE_AUDIT_REDACT="full_rows.secret, plain.id", HEADRACE_AUDIT_INSERT_AS="INSERT"
    )
    await line.execute(
        "INSERT INTO full_rows VALUES (1, 'k', 'hush', repeat('n', 9000)); UPDATE full_rows SET "
        "secret = 'more';"
        "INSERT INTO plain VALUES (7, repeat('n', 9000)); UPDATE plain SET id = 8; DELETE FROM "
        "plain;"
        f"INSERT INTO keyless VALUES ('{'z' * 3000}'); UPDATE keyless SET x = 'z'"
    )
    found = await rows(line, "true", 7)
    assert [row["operation"] for row in found] == [
        "INSERT",
        "UPDATE",
        "INSERT",
        "UPDATE",
        "DELETE",
        "INSERT",
        "UPDATE",
    ]
    full, plain = json.loads(found[1]["after"]), json.loads(found[3]["after"])
    # With FULL the old row has what PostgreSQL did not send; else it is named as unknown.
    assert (full["note"], found[1]["unchanged"]) == ("n" * 9000, None)
    assert ("note" in plain, found[3]["unchanged"]) == (False, ["note"])
    assert found[1]["primary_key"] == '["k","1"]'
    assert "hush" not in str([dict(row) for row in found])
    assert full["secret"] == "[redacted]"
    assert {row["primary_key"] for row in found[2:5]} == {"[redacted]"}
    assert json.loads(found[3]["before"]) == {"id": "[redacted]"}
    assert (found[5]["primary_key"], json.loads(found[6]["before"])) == (None, {"x": "z" * 3000})


async def audit_users(line: Line) -> None:
    """Create the table of users, and an audit writer that follows it."""
    await line.execute("CREATE TABLE users (id bigint PRIMARY KEY, name text)")
    await line.suite.start(AUDIT)
    await follows(line)


async def test_a_stream_that_was_made_anew_is_a_gap_that_is_kept_and_the_trail_goes_on(
    line: Line,
) -> None:
    await audit_users(line)
    await line.execute("INSERT INTO users SELECT g FROM generate_series(1, 50) g")
    await rows(line, "true", 50)
    await line.suite.stop("publisher")
    client = await nats.connect(line.nats_url)
    await client.jetstream().delete_stream("CDC")
    await client.close()
    await line.execute("INSERT INTO users SELECT g FROM generate_series(51, 250) g")
    await line.suite.start("publisher")
    await rows(line, "true", 250)
    found = await line.database.fetch("SELECT reason FROM headrace_audit_gaps")
    assert any("recreated" in row["reason"] for row in found)


async def test_a_hole_in_the_stream_is_kept_as_a_gap_and_every_row_around_it_is_in_the_trail(
    line: Line,
) -> None:
    await audit_users(line)
    await line.execute("INSERT INTO users VALUES (1000)")
    await rows(line, "true", 1)
    await line.suite.stop(AUDIT)
    await line.execute("INSERT INTO users SELECT g FROM generate_series(1, 100) g")
    client = await nats.connect(line.nats_url)
    js = client.jetstream()
    async with asyncio.timeout(30):
        while (await js.stream_info("CDC", "cdc.users.insert")).state.subjects != {  # noqa: ASYNC110  # a stream's size
            "cdc.users.insert": 101
        }:
            await asyncio.sleep(0.1)
    last = (await js.get_last_msg("CDC", "cdc.users.insert")).seq
    assert last is not None
    await js.delete_msg("CDC", last - 50)
    await client.close()
    await line.suite.start(AUDIT)
    await line.execute("INSERT INTO users VALUES (1001)")
    found = await rows(line, "true", 101)
    assert {int(row["primary_key"]) for row in found} == {*range(1, 101), 1000, 1001} - {50}
    reasons = [
        row["reason"] for row in await line.database.fetch("SELECT reason FROM headrace_audit_gaps")
    ]
    assert any(f"sequences {last - 50} to {last - 50} are missing" in reason for reason in reasons)


async def test_a_stream_that_is_made_only_later_is_waited_for(line: Line) -> None:
    await line.suite.start(AUDIT, HEADRACE_STREAM="LATER")
    await line.suite.logged(AUDIT, 'part=stream reason="stream LATER does not exist', timeout_s=60)
    client = await nats.connect(line.nats_url)
    await client.jetstream().add_stream(name="LATER", subjects=["later.>"])
    await client.close()
    await follows(line)


async def test_a_large_transaction_behind_one_that_makes_no_rows_does_not_stop_the_trail(
    line: Line,
) -> None:
    """The place of what makes no rows waits to be kept with others': that is nothing to wait for
    room with.
    """
    await line.execute(
        "CREATE TABLE users (id bigint PRIMARY KEY); CREATE TABLE noise (id bigint PRIMARY KEY)"
    )
    small = {"HEADRACE_AUDIT_BATCH_ROWS_MAX": "20", "HEADRACE_AUDIT_WHOLE_ROWS_MAX": "200"}
    await line.suite.start(AUDIT, HEADRACE_AUDIT_TABLES="users", **small)
    await follows(line)
    await line.execute("INSERT INTO users VALUES (0)")
    await rows(line, "true", 1)
    await line.execute(
        "INSERT INTO noise VALUES (1)",
        "INSERT INTO users SELECT g FROM generate_series(1, 1000) g",
    )
    await rows(line, "true", 1001)


async def reverted(line: Line, *arguments: str) -> None:
    """Undo changes, as a user does."""
    database = line.database
    given = {
        "DB_HOST": "127.0.0.1",
        "DB_PORT": str(database.port),
        "DB_NAME": database.name,
        "DB_USER": database.user,
    }
    outcome = await command(
        {**given, "SLOT_NAME": line.source}, "audit", "revert", "--apply", *arguments
    )
    assert outcome.code == 0, outcome.err


async def test_keys_of_several_columns_identities_by_index_generated_and_identity_columns_are_undone(
    line: Line,
) -> None:
    await line.execute(
        "CREATE TABLE pairs (a int, b text, note text, PRIMARY KEY (a, b));"
        "CREATE TABLE made (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, n int, twice int "
        "GENERATED ALWAYS AS"
        " (n * 2) STORED);"
        "CREATE TABLE by_index (id int PRIMARY KEY, code text NOT NULL, note text);"
        "CREATE UNIQUE INDEX by_id_code ON by_index (id, code);"
        "ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_id_code;"
        "CREATE TABLE by_code (id int PRIMARY KEY, code text NOT NULL);"
        "CREATE UNIQUE INDEX by_code_code ON by_code (code);"
        "ALTER TABLE by_code REPLICA IDENTITY USING INDEX by_code_code;"
    )
    await line.suite.start(AUDIT)
    await line.execute(
        "INSERT INTO pairs VALUES (1, 'é', 'first'); INSERT INTO made (n) VALUES (4);"
        "INSERT INTO by_index VALUES (1, 'x', 'kept'); INSERT INTO by_code VALUES (1, 'x')",
        "UPDATE pairs SET b = 'f', note = 'second'",
        "UPDATE made SET n = 5; DELETE FROM made; DELETE FROM by_index; DELETE FROM by_code",
    )
    found = await rows(line, "true", 9)
    assert [row["primary_key"] for row in found if row["table"] == "pairs"] == [
        '["1","é"]',
        '["1","f"]',
    ]
    # The row is not identified by its key there, and the key was not sent.
    assert found[-1]["primary_key"] is None
    for row in (found[4], found[7], found[6], found[5]):
        await reverted(line, "--id", str(row["id"]))
    database = line.database
    assert tuple((await database.fetch("SELECT * FROM pairs"))[0]) == (1, "é", "first")
    assert tuple((await database.fetch("SELECT * FROM made"))[0]) == (1, 4, 8)
    assert tuple((await database.fetch("SELECT * FROM by_index"))[0]) == (1, "x", "kept")
    await line.execute("TRUNCATE pairs, made")
    assert [row["table"] for row in await rows(line, "operation = 'TRUNCATE'", 2)] == [
        "pairs",
        "made",
    ]


def test_a_table_of_the_users_whose_name_begins_like_a_months_partition_is_not_left_out() -> None:
    told = load_audit({}).for_the_suite({})["HEADRACE_EXCLUDE"]
    selection = Selection(exclude=tuple(told.split(",")))
    assert selection.wants("public", "changes_payments")
    assert not selection.wants("public", "changes_p2026_11")
    assert not selection.wants("public", "changes")
