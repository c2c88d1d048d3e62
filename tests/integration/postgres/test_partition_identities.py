"""Partitions that are published as their root, and whose deleted rows PostgreSQL doesn't name.

The oracle is the old row in PostgreSQL's own message of a DELETE.
"""

from __future__ import annotations

import struct

import pytest

from headrace.cli.doctor.partition_identities import lacking
from headrace.testing.database import Database
from headrace.testing.names import Names
from headrace.testing.plugin import OwnNats
from tests.support.doctor import checks

SETUP = """
CREATE TABLE whole (k int, r int, u int NOT NULL, UNIQUE (r, u), PRIMARY KEY (k, r))
    PARTITION BY LIST (r);
CREATE TABLE mid PARTITION OF whole FOR VALUES IN (1, 2) PARTITION BY LIST (r);
CREATE TABLE leaf PARTITION OF mid FOR VALUES IN (1);
CREATE UNIQUE INDEX leaf_u ON leaf (u);
INSERT INTO whole VALUES (5, 1, 7);
"""
INDEX_OF_ROOT = "REPLICA IDENTITY USING INDEX whole_r_u_key"
INDEX_OF_LEAF = "REPLICA IDENTITY USING INDEX leaf_r_u_key"
INDEX_OF_U = "REPLICA IDENTITY USING INDEX leaf_u"
FULL = "REPLICA IDENTITY FULL"
DEFAULT = "REPLICA IDENTITY DEFAULT"
# By the identities of root and leaf: the columns that the root's Relation message calls the key.
CASES = {
    (DEFAULT, DEFAULT): ("k", "r"),
    (DEFAULT, FULL): ("k", "r"),
    (DEFAULT, INDEX_OF_LEAF): ("k", "r"),
    (DEFAULT, INDEX_OF_U): ("k", "r"),
    (INDEX_OF_ROOT, INDEX_OF_LEAF): ("r", "u"),
    (INDEX_OF_ROOT, DEFAULT): ("r", "u"),
    (INDEX_OF_ROOT, FULL): ("r", "u"),
    (FULL, FULL): ("k", "r", "u"),
    (FULL, DEFAULT): ("k", "r", "u"),
}


def old_row(message: bytes) -> dict[str, bytes | None]:
    """The row in a Delete message of pgoutput."""
    assert message[:1] == b"D"
    (count,) = struct.unpack_from("!h", message, 6)
    found: list[bytes | None] = []
    at = 8
    for _ in range(count):
        kind = message[at : at + 1]
        at += 1
        if kind == b"n":
            found.append(None)
            continue
        (size,) = struct.unpack_from("!i", message, at)
        found.append(message[at + 4 : at + 4 + size])
        at += 4 + size
    return dict(zip(("k", "r", "u"), found, strict=True))


@pytest.mark.parametrize("identities", CASES)
async def test_the_partitions_are_those_whose_deletes_lack_values_of_the_key(
    database: Database, names: Names, identities: tuple[str, str]
) -> None:
    root, leaf = identities
    publication, slot = names.publication, names.slot
    await database.execute(SETUP)
    await database.execute(f"ALTER TABLE whole {root}; ALTER TABLE leaf {leaf}")
    await database.execute(
        f"CREATE PUBLICATION {publication} FOR TABLE whole WITH (publish_via_partition_root)"
    )
    await database.fetch("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", slot)
    await database.execute("DELETE FROM whole")
    messages = await database.fetch(
        "SELECT data FROM pg_logical_slot_get_binary_changes($1, NULL, NULL, 'proto_version', '1',"
        " 'publication_names', $2)",
        slot,
        publication,
    )
    (deleted,) = [old_row(row["data"]) for row in messages if row["data"][:1] == b"D"]
    found = await lacking(await database.connect(), publication)
    is_named = None not in [deleted[name] for name in CASES[identities]]
    assert found.names == ([] if is_named else ["public.leaf"])
    await database.execute(
        f"ALTER PUBLICATION {publication} SET (publish_via_partition_root = false)"
    )
    assert not (await lacking(await database.connect(), publication)).names


async def test_the_doctor_fails_and_names_them(
    database: Database, own_nats: OwnNats, names: Names
) -> None:
    await database.execute(SETUP)
    await database.execute(
        f"ALTER TABLE whole {FULL};"
        f"CREATE PUBLICATION {names.publication} FOR TABLE whole WITH (publish_via_partition_root)"
    )
    settings = {**database.environment((await own_nats()).url), **names.settings}
    _, found = await checks(settings)
    assert found["partitions"]["state"] == "fail"
    assert "public.leaf" in found["partitions"]["found"]
    assert "that of public.whole, or FULL" in found["partitions"]["remedy"]
