"""The schemas bucket says what the published tables are, and is written only when that changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import nats
import pytest
from nats.js import JetStreamContext
from nats.js.errors import BucketNotFoundError, KeyNotFoundError

from headrace.contract.events import decode, encode
from headrace.contract.subjects_and_ids import schema_subject, table_token
from headrace.contract.values import Encoding
from headrace.embedded.nats import EmbeddedNats
from headrace.testing.database import Database
from headrace.testing.names import Names
from headrace.testing.plugin import OwnNats, OwnPostgres
from headrace.testing.process import service

NOWHERE = "nats://127.0.0.1:1"
USERS = "CREATE TABLE users (id serial PRIMARY KEY, name varchar(50) NOT NULL, email text DEFAULT 'none')"


def environment(database: Database, nats_url: str, names: Names, **more: str) -> dict[str, str]:
    return {
        **database.environment(nats_url),
        **names.settings,
        "HEADRACE_CATALOG_INTERVAL_S": "0.1",
        "HEADRACE_NATS_RECONNECT_WAIT_S": "0.1",
        **more,
    }


async def publish_users(database: Database, names: Names) -> None:
    await database.execute(USERS)
    await database.execute(f"CREATE PUBLICATION {names.publication} FOR TABLE users")


class Bucket:
    """The bucket, as a consumer sees it."""

    def __init__(self, js: JetStreamContext) -> None:
        self.js = js

    async def get(self, token: str) -> dict[str, Any] | None:
        try:
            entry = await (await self.js.key_value("schemas")).get(token)
        except (KeyNotFoundError, BucketNotFoundError):
            return None
        return dict(decode(entry.value or b""))

    async def when(
        self, token: str, true: Callable[[dict[str, Any] | None], bool]
    ) -> dict[str, Any] | None:
        async with asyncio.timeout(20):
            while not true(found := await self.get(token)):
                pass
        return found

    async def present(self, token: str) -> dict[str, Any]:
        return (await self.when(token, lambda value: value is not None)) or {}

    async def told(self, token: str, version: int) -> dict[str, Any]:
        """The publisher's schema event of that version."""
        subscription = await self.js.subscribe(schema_subject(token), ordered_consumer=True)
        while (event := decode((await subscription.next_msg(timeout=30)).data))[
            "version"
        ] < version:
            pass
        return dict(event)

    async def writes(self) -> int:
        return int((await self.js.stream_info("KV_schemas")).state.last_seq or 0)


@pytest.fixture
async def bucket(server: EmbeddedNats) -> Any:
    client = await nats.connect(server.url, reconnect_time_wait=0.1)
    yield Bucket(client.jetstream())
    await client.close()


async def test_a_domain_has_the_type_that_it_stands_on(
    database: Database, server: EmbeddedNats, bucket: Bucket, names: Names
) -> None:
    await database.execute("CREATE DOMAIN blob AS bytea; CREATE DOMAIN scan AS blob")
    await database.execute("CREATE TABLE t (id int PRIMARY KEY, s scan)")
    await database.execute(f'CREATE PUBLICATION "{names.publication}" FOR TABLE t')
    async with service(environment(database, server.url, names), "schema-publisher"):
        columns = (await bucket.present("t"))["columns"]
    assert [(one["data_type"], one.get("base_type")) for one in columns] == [
        ("integer", None),
        ("scan", "bytea"),
    ]


async def test_every_published_table_has_its_schema_with_the_bridges_fields(
    database: Database, server: EmbeddedNats, bucket: Bucket, names: Names
) -> None:
    await database.execute(USERS)
    await database.execute(f"CREATE PUBLICATION {names.publication} FOR ALL TABLES")
    async with service(environment(database, server.url, names), "schema-publisher") as publisher:
        value = await bucket.present("users")
        assert await publisher.stop() == 0
    assert list(value)[:4] == ["table", "schema", "timestamp", "columns"]
    assert (value["table"], value["schema"], value["version"]) == ("users", "public.users", 1)
    assert isinstance(value["timestamp"], int)
    assert value["columns"] == [
        {
            "name": "id",
            "position": 1,
            "data_type": "integer",
            "is_nullable": False,
            "column_default": "nextval('users_id_seq'::regclass)",
        },
        {
            "name": "name",
            "position": 2,
            "data_type": "character varying(50)",
            "is_nullable": False,
            "column_default": None,
        },
        {
            "name": "email",
            "position": 3,
            "data_type": "text",
            "is_nullable": True,
            "column_default": "'none'::text",
        },
    ]
    assert value["primary_key"] == ["id"]
    assert value["relation_id"] == await database.fetchval("SELECT 'users'::regclass::oid::int8")


async def test_tables_and_columns_that_are_left_out_of_the_stream_are_not_in_the_bucket(
    database: Database, server: EmbeddedNats, bucket: Bucket, names: Names
) -> None:
    await database.execute(f"{USERS}; CREATE TABLE secrets (id int PRIMARY KEY)")
    await database.execute(f"CREATE PUBLICATION {names.publication} FOR ALL TABLES")
    left_out = {"HEADRACE_EXCLUDE": "secrets", "HEADRACE_EXCLUDE_COLUMNS": "users.id,users.email"}
    async with service(
        {**environment(database, server.url, names), **left_out}, "schema-publisher"
    ) as publisher:
        value = await bucket.present("users")
        assert await publisher.stop() == 0
    assert [column["name"] for column in value["columns"]] == ["name"]
    assert value["primary_key"] == []
    assert await bucket.writes() == 1


async def test_a_restart_writes_nothing_and_a_change_writes_the_next_version(
    database: Database, server: EmbeddedNats, bucket: Bucket, names: Names
) -> None:
    await database.execute(USERS)
    await database.execute("CREATE TABLE still (id int PRIMARY KEY)")
    await database.execute(f"CREATE PUBLICATION {names.publication} FOR ALL TABLES")
    settings = environment(database, server.url, names)
    async with service(settings, "schema-publisher") as first:
        await first.readiness(200)
        await first.stop()
    written = await bucket.writes()
    assert written == 2
    async with service(settings, "schema-publisher") as second:
        await second.readiness(200)
        assert await bucket.writes() == written
        await database.execute("ALTER TABLE users ADD COLUMN age int NOT NULL DEFAULT 1")
        value = await bucket.when("users", lambda v: v is not None and v["version"] == 2)
        await second.stop()
    assert value is not None
    assert [column["name"] for column in value["columns"]] == ["id", "name", "email", "age"]
    assert await bucket.writes() == written + 1


async def test_a_table_that_leaves_loses_its_key_and_comes_back_with_a_new_version(
    database: Database, server: EmbeddedNats, bucket: Bucket, names: Names
) -> None:
    await publish_users(database, names)
    async with service(environment(database, server.url, names), "schema-publisher"):
        await bucket.present("users")
        await database.execute(f"ALTER PUBLICATION {names.publication} DROP TABLE users")
        await bucket.when("users", lambda value: value is None)
        await database.execute(f"ALTER PUBLICATION {names.publication} ADD TABLE users (id, name)")
        value = await bucket.present("users")
    assert [column["name"] for column in value["columns"]] == ["id", "name"]
    assert value["version"] == 2


async def test_keys_of_another_source_in_the_same_bucket_are_left_alone(
    database: Database, server: EmbeddedNats, bucket: Bucket, names: Names
) -> None:
    await database.execute("CREATE TABLE mine (id int PRIMARY KEY)")
    await database.execute(f"CREATE PUBLICATION {names.publication} FOR TABLE mine")
    kv = await bucket.js.create_key_value(bucket="schemas", history=10)
    await kv.put("theirs", encode({"table": "theirs", "source": "another"}, Encoding.MSGPACK))
    await kv.put("unsigned", encode({"table": "unsigned"}, Encoding.MSGPACK))
    async with service(environment(database, server.url, names), "schema-publisher") as publisher:
        await publisher.readiness(200)
        await database.execute(f"ALTER PUBLICATION {names.publication} DROP TABLE mine")
        await bucket.when("mine", lambda value: value is None)
    assert await bucket.get("theirs")
    assert await bucket.get("unsigned")


async def test_a_dropped_publication_is_waited_for_and_deletes_no_key(
    database: Database, server: EmbeddedNats, bucket: Bucket, names: Names
) -> None:
    await database.execute(USERS)
    async with service(environment(database, server.url, names), "schema-publisher") as publisher:
        await publisher.logs("not_ready")
        reasons = (await publisher.readiness(503))["reasons"]
        assert "Run `headrace init`" in reasons["postgres"]
        await database.execute(f"CREATE PUBLICATION {names.publication} FOR TABLE users")
        await bucket.present("users")
        await publisher.readiness(200)
        await database.execute(f"DROP PUBLICATION {names.publication}")
        await publisher.readiness(503)
        assert await bucket.get("users")


async def test_the_version_is_the_one_a_schema_event_told(
    database: Database, server: EmbeddedNats, bucket: Bucket, names: Names
) -> None:
    await publish_users(database, names)

    async def tell(version: int, source: str) -> None:
        event = {
            "operation": "SCHEMA",
            "schema": "public",
            "table": "users",
            "source": source,
            "version": version,
        }
        await bucket.js.publish(schema_subject("users"), encode(event, Encoding.MSGPACK))

    settings = environment(database, server.url, names)
    async with service(settings, "schema-publisher") as publisher:
        await bucket.present("users")
        await tell(9, "another_source")
        await tell(7, names.slot)
        await bucket.when("users", lambda v: v is not None and v["version"] == 7)
        await publisher.stop()
    written = await bucket.writes()
    async with service(settings, "schema-publisher") as restarted:
        await restarted.readiness(200)
        await database.execute("ALTER TABLE users DROP COLUMN email")
        value = await bucket.when("users", lambda v: v is not None and len(v["columns"]) == 2)
    assert value is not None
    assert value["version"] == 7
    assert await bucket.writes() == written + 1


async def test_the_version_follows_the_publishers_own_events(
    database: Database, server: EmbeddedNats, bucket: Bucket, names: Names
) -> None:
    await publish_users(database, names)
    settings = environment(database, server.url, names)
    async with (
        service(settings, "wal-reader") as reader,
        service(settings, "publisher"),
        service(settings, "schema-publisher"),
    ):
        await reader.logs("epoch_opened")
        await database.execute("INSERT INTO users (name) VALUES ('a')")
        await bucket.present("users")
        await database.execute(
            "ALTER TABLE users ADD COLUMN age int; INSERT INTO users (name) VALUES ('b')"
        )
        told = await bucket.told("users", version=2)
        value = await bucket.when(
            "users", lambda v: v is not None and len(v["columns"]) == 4 and v["version"] == 2
        )
    assert value is not None
    assert (told["version"], told["columns"]) == (value["version"], value["columns"])
    assert (told["primary_key"], told["replica_identity"]) == (
        value["primary_key"],
        value["replica_identity"],
    )


async def test_the_encoding_is_the_events_and_a_switch_rewrites_the_values(
    database: Database, server: EmbeddedNats, bucket: Bucket, names: Names
) -> None:
    await database.execute('CREATE SCHEMA app; CREATE TABLE app."Größe $" (id int PRIMARY KEY)')
    await database.execute(f"CREATE PUBLICATION {names.publication} FOR ALL TABLES")
    token = table_token("app", "Größe $")
    for arguments in ([], ["--json"]):
        async with service(
            environment(database, server.url, names), "schema-publisher", *arguments
        ) as publisher:
            await publisher.readiness(200)
        entry = await (await bucket.js.key_value("schemas")).get(token)
        assert (entry.value or b"").startswith(b"{") == bool(arguments)
        assert decode(entry.value or b"")["table"] == "Größe $"
        assert decode(entry.value or b"")["version"] == 1
    assert await bucket.writes() == 2


async def test_it_waits_for_postgresql_and_nats_and_heals_when_either_comes_back(
    own_postgres: OwnPostgres, server: EmbeddedNats, bucket: Bucket, names: Names
) -> None:
    postgres = await own_postgres()
    database = Database(postgres, "postgres")
    await database.execute(USERS)
    await database.execute(f"CREATE PUBLICATION {names.publication} FOR ALL TABLES")
    await database.close()
    async with service(environment(database, server.url, names), "schema-publisher") as publisher:
        await publisher.readiness(200)
        await postgres.kill()
        assert "postgres" in (await publisher.readiness(503))["reasons"]
        await postgres.start()
        await publisher.readiness(200)
        await server.kill()
        await publisher.readiness(503)
        await server.start()
        await publisher.readiness(200)
        await database.execute("CREATE TABLE later (id int PRIMARY KEY)")
        await database.close()
        await bucket.present("later")
        assert await publisher.stop() == 0


async def test_a_bucket_that_was_deleted_is_filled_again(
    database: Database, server: EmbeddedNats, bucket: Bucket, names: Names
) -> None:
    await database.execute(USERS)
    await database.execute(f"CREATE PUBLICATION {names.publication} FOR ALL TABLES")
    async with service(environment(database, server.url, names), "schema-publisher"):
        await bucket.present("users")
        await bucket.js.delete_key_value("schemas")
        assert (await bucket.present("users"))["table"] == "users"


async def test_refused_credentials_end_it_with_one_line_and_the_remedy(
    database: Database, own_nats: OwnNats, names: Names
) -> None:
    server = await own_nats(token="s3cret")
    url = server.url.replace("s3cret@", "")
    async with service(environment(database, url, names), "schema-publisher") as publisher:
        assert await publisher.ended() == 1
    (failed,) = publisher.events("service_failed")
    assert "refuses these credentials" in failed["reason"]
    assert "NATS_BRIDGE_PASSWORD" in failed["reason"]
