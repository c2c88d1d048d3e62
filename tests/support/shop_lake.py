"""A shop's tables and views, in a PostgreSQL and in a lake that a SQL server shows.

Both have the same names, types, keys, views and rows, so a client must get the same answers from
both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
from psycopg import sql

from headrace.archive.metadata import ColumnInfo
from headrace.contract.values import SESSION_SETTINGS, TypeInfo
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.lake.catalog import TableName
from headrace.lake.copy_rows import CopyRows
from headrace.lake.tables import new_table
from headrace.postgres import catalog
from tests.support.local_lake import LocalLake, written
from tests.support.sql_front import PASSWORD, READER, SqlServer, sql_server

DATABASE = "lake"
TABLES = """
CREATE SCHEMA sales;
CREATE TABLE numbers (id bigint PRIMARY KEY, note text);
INSERT INTO numbers SELECT n, 'note ' || n FROM generate_series(0, 99) n;
CREATE TABLE customers (
    id int4 PRIMARY KEY, name varchar(40), email text, birthday date, active bool,
    credit numeric(12,2), tags text[], profile jsonb, joined timestamptz, uid uuid);
INSERT INTO customers SELECT n, 'Customer ' || n, CASE WHEN n % 7 > 0 THEN 'c' || n || '@example.org' END,
    date '1960-02-28' + n * 97, n % 3 > 0, n * 1000.25 - 500, ARRAY['tag ' || n % 4, 'a "quoted" \\ one'],
    jsonb_build_object('level', n % 5, 'names', jsonb_build_array('é', NULL, n)),
    timestamptz '2024-03-30 23:30:00.123456+00' + n * interval '7 hours', md5(n::text)::uuid
    FROM generate_series(1, 60) n;
CREATE TABLE orders (
    id bigint PRIMARY KEY, customer_id int4, placed timestamptz, shipped timestamp, total numeric(10,2),
    weight float8, note text, slot time, lead interval, state character(3));
INSERT INTO orders SELECT n, n % 60 + 1, timestamptz '2024-05-01 00:00:00+00' + n * interval '17 minutes',
    CASE WHEN n % 5 > 0 THEN timestamp '2024-05-02 08:00:00' + n * interval '1 hour 1.5 seconds' END,
    n * 3.37, CASE WHEN n % 50 > 0 THEN n / 7.0 END, CASE WHEN n % 9 > 0 THEN 'Bestellung №' || n END,
    time '06:00' + n * interval '1 minute', n * interval '1 day 02:03:04.5', (ARRAY['new', 'ok', NULL])[n % 3 + 1]
    FROM generate_series(1, 1500) n;
CREATE TABLE items (order_id bigint, line int2, product text, quantity int4, price numeric, PRIMARY KEY (order_id, line));
INSERT INTO items SELECT n, l, 'product ' || (n * l) % 11, (n + l) % 6, (n * l) / 8.0
    FROM generate_series(1, 400) n, generate_series(1, 3) l;
CREATE TABLE "Mixed Case" ("Id" int4 PRIMARY KEY, "select" text, "it's" int8, "quo""te" float4);
INSERT INTO "Mixed Case" VALUES (1, 'one', 1, 1.5), (2, NULL, NULL, NULL), (3, '', -1, 'NaN');
CREATE TABLE events (at timestamptz, kind text, payload jsonb);
INSERT INTO events SELECT timestamptz '2024-05-01 00:00:00+00' + n * interval '90 seconds', 'kind ' || n % 3,
    jsonb_build_object('n', n) FROM generate_series(1, 300) n;
CREATE TABLE sales.targets (year int2, region text, amount numeric(14,4), share float4, PRIMARY KEY (region, year));
INSERT INTO sales.targets SELECT 2020 + n % 5, 'region ' || n / 5, n * 1234.5678, n / 3.0 FROM generate_series(0, 19) n;
CREATE TABLE sales.kinds (
    id int4 PRIMARY KEY, by bytea, re float4, tz timetz, ip inet, net cidr, mac macaddr, bits bit(4), vb varbit(9),
    ra int4range, js json, ia int4[], na numeric[], nu numeric, nm name, mo money, pt point, od oid, ts timestamp(3),
    da date[], ti time(2));
INSERT INTO sales.kinds VALUES (1, '\\x00ff10', 1.25, '10:11:12.5+02', '10.0.0.1/8', '10.0.0.0/8', '08:00:2b:01:02:03',
    B'1010', B'11', '[1,5)', '{"a" :  1}', '{1,NULL,-3}', '{1.50,NaN}', 12345678901234567890.123456789, 'a name',
    '$1,234.56', '(1.5,-2)', 4294967295, '2024-02-29 23:59:59.9995', '{2024-02-29,infinity}', '23:59:59.999'),
    (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
    (3, '', '-Infinity', '00:00:00-15:59', '::1', '::/0', 'ff:ff:ff:ff:ff:ff', B'0000', '', 'empty', '[]', '{}', '{}', 'NaN',
    '', '0', '(0,0)', 0, 'infinity', '{}', '00:00');
"""
VIEWS = """
CREATE VIEW open_orders AS
    SELECT o.id, c.name, o.total, o.placed FROM orders o JOIN customers c ON c.id = o.customer_id WHERE o.shipped IS NULL;
CREATE VIEW sales.by_customer AS
    SELECT customer_id, count(*) AS orders, sum(total) AS total, max(placed) AS latest FROM orders GROUP BY customer_id;
GRANT SELECT ON open_orders, sales.by_customer TO PUBLIC;
"""
_TABLES = """
SELECT n.nspname, c.relname, c.oid::int8, ARRAY(SELECT attname::text FROM unnest(conkey) WITH ORDINALITY k(number, place)
    JOIN pg_attribute ON attrelid = c.oid AND attnum = number ORDER BY place) AS key
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN pg_constraint ON conrelid = c.oid AND contype = 'p'
WHERE relkind = 'r' AND nspname IN ('public', 'sales') AND relname <> 'numbers' ORDER BY c.oid"""
_COLUMNS = """
SELECT attname, atttypid::int8, atttypmod, format_type(atttypid, atttypmod), attnum FROM pg_attribute
WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum"""


@dataclass(frozen=True)
class Shop:
    """The server of the lake, and the PostgreSQL with the same rows."""

    front: SqlServer
    postgres: EmbeddedPostgres

    @property
    def ports(self) -> Mapping[str, int]:
        """Of the SQL server, and of the PostgreSQL that is the oracle."""
        return {"lake": self.front.port, "postgresql": self.postgres.port}

    def address(self, port: int) -> dict[str, str]:
        """For libpq and other clients that read its variables."""
        return {
            "PGHOST": "127.0.0.1",
            "PGPORT": str(port),
            "PGUSER": READER,
            "PGPASSWORD": PASSWORD,
            "PGDATABASE": DATABASE,
        }


@contextmanager
def shop(folder: Path, postgres: EmbeddedPostgres) -> Iterator[Shop]:
    """Both sides, while the block runs; the PostgreSQL's server is the caller's."""
    with psycopg.connect(postgres.dsn(), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {DATABASE} TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C'")
        login = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}")
        admin.execute(login.format(sql.Identifier(READER), sql.Literal(PASSWORD)))
    with psycopg.connect(postgres.dsn(DATABASE), autocommit=True) as oracle:
        oracle.execute(TABLES)
        oracle.execute(VIEWS)
        oracle.execute(
            "GRANT USAGE ON SCHEMA sales TO reader;"
            "GRANT SELECT ON ALL TABLES IN SCHEMA public, sales TO reader"
        )
        with sql_server(folder) as front:
            _copy(oracle, postgres.dsn(DATABASE), front.lake)
            # A cut has to have another LSN to be waited for: the change changes nothing.
            front.lake.update([0], "note 0")
            front.cut()
            with front.admin() as admin:
                admin.execute(VIEWS)
            yield Shop(front, postgres)


def _copy(oracle: psycopg.Connection[Any], dsn: str, lake: LocalLake) -> None:
    """Each table as lake-writer copies it."""
    for name, value in SESSION_SETTINGS.items():
        oracle.execute("SELECT set_config(%s, %s, false)", [name, value])
    for schema, name, relid, key in oracle.execute(_TABLES).fetchall():
        columns = tuple(
            ColumnInfo(column, oid, modifier, kind, column in key, number=number)
            for column, oid, modifier, kind, number in oracle.execute(_COLUMNS, [relid])
        )
        types = asyncio.run(_types(dsn, {column.type_oid for column in columns}))
        table = sql.Identifier(schema, name)
        with oracle.cursor().copy(
            sql.SQL("COPY (SELECT * FROM {}) TO STDOUT (FORMAT csv)").format(table)
        ) as copy:
            rows = CopyRows(columns, types).read(b"".join(copy))
        # A table without a key is identified by whole rows.
        known = new_table(
            TableName(schema, name),
            relid,
            columns,
            tuple(key) or tuple(c.name for c in columns),
            100,
        )
        folder, iceberg = lake.writer.prepare_copy(known)
        lake.writer.adopt(known, folder, written(lake.files, folder, iceberg, rows))


async def _types(dsn: str, oids: set[int]) -> Mapping[int, TypeInfo]:
    connection = await asyncpg.connect(dsn)
    try:
        return await catalog.types(connection, oids)
    finally:
        await connection.close()
