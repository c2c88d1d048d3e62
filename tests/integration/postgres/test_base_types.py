"""The built-in type that a column's values have the form of, by PostgreSQL's own catalog."""

from __future__ import annotations

import pytest

from headrace.postgres import catalog, catalog_queries
from headrace.testing.database import Database

TYPES = """
CREATE DOMAIN photo AS bytea; CREATE DOMAIN thumbnail AS photo; CREATE DOMAIN photos AS photo[];
CREATE DOMAIN price AS numeric(8, 2); CREATE DOMAIN pair AS int[]; CREATE DOMAIN source AS regclass;
CREATE TYPE mood AS ENUM ('sad');
"""
BASES = {
    "photo": "bytea",
    "thumbnail": "bytea",
    "photo[]": "bytea[]",
    "thumbnail[]": "bytea[]",
    "photos": "bytea[]",
    "price": "numeric(8,2)",
    "price[]": "numeric(8,2)[]",
    "pair": "integer[]",
    # An array whose elements are arrays' literals is no type's form.
    "pair[]": None,
    "photos[]": None,
    "bytea": None,
    "int[]": None,
    "mood": None,
    "mood[]": None,
    "source[]": "regclass[]",
}


async def test_a_domain_and_an_array_of_one_have_the_type_that_they_stand_on(
    database: Database,
) -> None:
    await database.execute(TYPES)
    rows = await database.fetch(
        f"SELECT n AS name, {catalog_queries.base_type('n::regtype::oid')} AS base FROM unnest($1::text[]) n",
        list(BASES),
    )
    assert {row["name"]: row["base"] for row in rows} == BASES


@pytest.mark.parametrize("data_type", ["regclass", "source", "regclass[]", "source[]"])
async def test_a_default_that_names_an_object_is_not_told_as_a_value(
    database: Database, data_type: str
) -> None:
    """Its text is another in a session of another search_path."""
    await database.execute(f"{TYPES} CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    default = "'{t}'" if data_type.endswith("[]") else "'t'"
    await database.execute(
        f"ALTER TABLE t ADD COLUMN n int DEFAULT 7, ADD COLUMN c {data_type} DEFAULT {default}"
    )
    assert await database.fetchval(
        "SELECT count(*) FROM pg_attribute WHERE attrelid = 't'::regclass AND atthasmissing"
    ) in {1, 2}
    connection = await database.connect()
    oid = await connection.fetchval("SELECT 't'::regclass::oid::int8")
    facts, _ = await catalog.table_facts(connection, oid, (), "headrace", 0)
    assert (facts.columns["n"].missing, facts.columns["c"].missing) == (b"7", None)
