"""A table's key is the same in every query: PostgreSQL's Relation messages and the tables' DDL are
the oracle.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import pytest

from headrace.audit.table_book import Noted
from headrace.audit_writer import source as audit_source
from headrace.postgres.catalog import read_publication, table_facts
from headrace.postgres.facts import ServerIdentity
from headrace.postgres.replication import ReplicationConnection
from headrace.schema_publisher.reading import SchemaReading
from headrace.settings import Settings, load
from headrace.spark.request import SnapshotRequest
from headrace.spark.source import describe_table
from headrace.testing.database import Database

both_versions = pytest.mark.parametrize("pg_version", [16, 18], indirect=True)


@dataclass(frozen=True, slots=True)
class Case:
    """A table, and what its DDL says of it."""

    name: str
    ddl: str
    primary: tuple[str, ...]
    identity_index: tuple[str, ...] = ()


CASES = (
    Case("plain", "note text, id int PRIMARY KEY", ("id",)),
    Case("included", "note text, id int, PRIMARY KEY (id) INCLUDE (note)", ("id",)),
    Case(
        "composite", "a int, b int, c int, note text, PRIMARY KEY (c, a) INCLUDE (note)", ("c", "a")
    ),
    Case(
        "indexed",
        "a int NOT NULL, id int PRIMARY KEY, b int NOT NULL, note text",
        ("id",),
        ("b", "a"),
    ),
    Case("only_indexed", "a int NOT NULL, b int NOT NULL, note text", (), ("b", "a")),
    Case("complete", "note text, id int, PRIMARY KEY (id) INCLUDE (note)", ("id",)),
    Case("nothing", "note text, id int PRIMARY KEY", ("id",)),
    Case("deferred", "note text, id int PRIMARY KEY DEFERRABLE", ("id",)),
    Case("keyless", "note text, id int", ()),
)
IDENTITIES = {"complete": "FULL", "nothing": "NOTHING"}


async def make(database: Database) -> Settings:
    for case in CASES:
        await database.execute(f"CREATE TABLE {case.name} ({case.ddl})")
        if case.identity_index:
            await database.execute(
                f"CREATE UNIQUE INDEX {case.name}_i ON {case.name} (b, a) INCLUDE (note)"
            )
            await database.execute(
                f"ALTER TABLE {case.name} REPLICA IDENTITY USING INDEX {case.name}_i"
            )
    for name, identity in IDENTITIES.items():
        await database.execute(f"ALTER TABLE {name} REPLICA IDENTITY {identity}")
    await database.execute("CREATE PUBLICATION headrace FOR ALL TABLES")
    return load(
        {
            "PG_HOST": "127.0.0.1",
            "PG_PORT": str(database.port),
            "PG_DB": database.name,
            "POSTGRES_BRIDGE_USER": database.user,
        }
    )


async def flagged(database: Database) -> dict[str, set[str]]:
    """The columns that PostgreSQL's own Relation messages flag as the replica identity's."""
    slot = f"{database.name}_keys"
    await database.execute("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", slot)
    for case in CASES:
        columns = [part.split()[0] for part in case.ddl.split(", ") if " int" in part]
        values = ", ".join("1" for _ in columns)
        await database.execute(f"INSERT INTO {case.name} ({', '.join(columns)}) VALUES ({values})")
    peek = "SELECT data FROM pg_logical_slot_peek_binary_changes($1, NULL, NULL, 'proto_version', '1', $2, 'headrace')"
    messages = [row["data"] for row in await database.fetch(peek, slot, "publication_names")]
    await database.execute("SELECT pg_drop_replication_slot($1)", slot)
    return dict(relation(message) for message in messages if message[:1] == b"R")


def relation(message: bytes) -> tuple[str, set[str]]:
    """A Relation message: 'R', its OID, schema and name, replica identity, and for each column
    flags, name and type.
    """
    _, name, rest = message[5:].split(b"\0", 2)
    (count,), rest = struct.unpack(">H", rest[1:3]), rest[3:]
    found = set()
    for _ in range(count):
        flags, (column, rest) = rest[0], rest[1:].split(b"\0", 1)
        rest = rest[8:]
        if flags & 1:
            found.add(column.decode())
    return name.decode(), found


@both_versions
async def test_all_who_ask_for_a_key_get_the_same(database: Database) -> None:
    settings = await make(database)
    names = {("public", case.name) for case in CASES}
    audited = await audit_source.noted(settings.postgres, names)
    session = await database.connect()
    published = {
        reading.table.name: reading
        for reading in (await read_publication(session, "headrace")).tables
    }
    reader = SchemaReading(settings)
    schemas = {str(schema.content["table"]): schema.content for schema in await reader.schemas()}
    reader.close()
    for case in CASES:
        wanted = case.primary or case.identity_index
        request = SnapshotRequest(case.name, "public", case.name)
        assert (await describe_table(settings, request)).key == wanted, case
        assert audited["public", case.name].key == wanted, case
        assert published[case.name].primary_key == case.primary, case
        assert schemas[case.name]["primary_key"] == list(case.primary), case
        oid = published[case.name].table.relation_id
        facts, _ = await table_facts(session, oid, (), "headrace", 0)
        assert facts.primary_key == case.primary, case


@both_versions
async def test_a_reading_names_its_server_as_the_replication_protocol_does(
    database: Database,
) -> None:
    settings = await make(database)
    reading = await read_publication(await database.connect(), "headrace")
    walsender = await ReplicationConnection.open(settings.postgres, "test")
    identity = await walsender.identify()
    walsender.close()
    assert reading.server == ServerIdentity(identity.system_id, identity.timeline)


@both_versions
async def test_the_catalog_flags_the_columns_that_postgresql_flags(database: Database) -> None:
    await make(database)
    reading = await read_publication(await database.connect(), "headrace")
    found = {
        table.table.name: {row["name"] for row in table.columns if row["is_key"]}
        for table in reading.tables
    }
    assert found == await flagged(database)


async def test_a_relation_that_is_gone_has_no_key(database: Database) -> None:
    settings = await make(database)
    assert await audit_source.noted(settings.postgres, {("public", "gone")}) == {
        ("public", "gone"): Noted()
    }
