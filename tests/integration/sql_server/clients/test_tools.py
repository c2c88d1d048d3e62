"""Tools that send their own SQL: psql's meta-commands, Grafana's queries, the introspection of Drizzle
and Prisma.

A PostgreSQL with the same rows answers the same.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headrace.embedded.postgres_install import postgres_binaries
from tests.support import sql_clients
from tests.support.shop_lake import Shop

# psql 18 asks what the server of version 18 has.
PSQL = str(postgres_binaries(18, None) / "psql")
PSQL_SCRIPTS = [
    r"\d", r"\dt", r"\dt sales.*", r"\dv", r"\dv+ sales.*", r"\dm", r"\di", r"\ds", r"\dE", r"\df",
    r"\df sum", r"\da max", r"\do =", r"\dT", r"\dC int4", r"\dD", r"\dx", r"\dL", r"\db", r"\dP", r"\dA", r"\dX", r"\dy",
    r"\dF", r"\dRp", r"\dl", r"\dc", r"\dd", r"\ddp", r"\d open_orders", r"\d+ open_orders", r"\sv sales.by_customer",
    r"\dconfig TimeZone", r"\encoding",
    "SELECT * FROM orders ORDER BY id LIMIT 9;",
    "\\x\nSELECT * FROM customers ORDER BY id LIMIT 3;",
    "SELECT * FROM sales.kinds ORDER BY id \\gx",
    "SELECT *, id + 1 FROM sales.kinds \\gdesc",
    "SELECT state, count(*), sum(total) FROM orders WHERE state IS NULL GROUP BY state \\gset v_\n\\echo :v_count :v_sum",
    "SELECT id, state, total FROM orders WHERE id < 9 \\crosstabview id state total",
    "SELECT 'SELECT ' || id || ' AS x' FROM customers WHERE id < 4 ORDER BY id \\gexec",
    "SELECT id, note FROM orders WHERE id < $1 ORDER BY id \\bind 5 \\g",
    "SELECT id FROM orders WHERE id = $1 \\parse one\n\\bind_named one 7 \\g\n\\bind_named one 8 \\g\n\\close_prepared one",
    "\\startpipeline\nSELECT count(*) FROM orders \\bind \\sendpipeline\nSELECT 1/0 FROM orders \\bind \\sendpipeline\n\\endpipeline",
    "SELECT count(*) FROM items \\watch i=0.1 c=2",
    r"\copy (SELECT * FROM orders WHERE id < 20 ORDER BY id) TO STDOUT",
    r"\copy (SELECT * FROM sales.kinds ORDER BY id) TO STDOUT CSV HEADER",
    "COPY customers (id, tags, profile) TO STDOUT (FORMAT csv, NULL '-', DELIMITER ';');",
    "\\set FETCH_COUNT 7\nSELECT id, total FROM orders WHERE id < 30 ORDER BY id;",
    "\\set ON_ERROR_ROLLBACK on\nBEGIN; SELECT count(*) FROM items; SELECT nope; SELECT max(price) FROM items; COMMIT;",
    "BEGIN; SELECT 1/0 FROM orders; SELECT 1; ROLLBACK;\nSELECT id FROM orders WHERE note = 3;\n\\errverbose",
    # More digits than 64 bits have: the statement runs again with 128, also in a block.
    "SELECT sum(amount * amount * amount), count(*) FROM sales.targets;\nEXPLAIN ANALYZE SELECT sum(amount * amount * amount) FROM sales.targets \\g /dev/null",
    "BEGIN; SELECT sum(amount * amount * amount) FROM sales.targets; SAVEPOINT s; SELECT max(amount * amount * amount * amount) FROM sales.targets; SELECT sum(1 / (year - 2020)) FROM sales.targets; ROLLBACK TO s; SELECT sum(amount * amount * amount) FROM sales.targets; COMMIT;",
    "\\pset format html\nTABLE open_orders ORDER BY id LIMIT 3;",
    "\\pset null '∅'\n\\pset format csv\nSELECT * FROM sales.by_customer ORDER BY 1;",
]  # fmt: skip
# Completions of tables, columns and schemas, as tab-complete.in.c of psql 18 asks for them.
COMPLETIONS = [
    (
        "SELECT pg_catalog.quote_ident(c.relname), NULL FROM pg_catalog.pg_class c WHERE c.relkind IN ('r', 'v', 'm', 'f', 'p') "
        "AND (pg_catalog.quote_ident(c.relname)) LIKE 'o%' AND pg_catalog.pg_table_is_visible(c.oid) AND c.relnamespace <> "
        "(SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = 'pg_catalog') ORDER BY 1 LIMIT 1000"
    ),
    (
        "SELECT pg_catalog.quote_ident(a.attname) FROM pg_catalog.pg_attribute a, pg_catalog.pg_class c WHERE c.oid = a.attrelid "
        "AND a.attnum > 0 AND NOT a.attisdropped AND pg_catalog.quote_ident(a.attname) LIKE '%' AND c.relname = 'orders' "
        "AND pg_catalog.pg_table_is_visible(c.oid) ORDER BY 1 LIMIT 1000"
    ),
    "SELECT pg_catalog.quote_ident(n.nspname) FROM pg_catalog.pg_namespace n WHERE n.nspname LIKE 's%' ORDER BY 1 LIMIT 1000",
]
_CLOCK = re.compile(r"^.*\d\d:\d\d:\d\d \d{4} \(every", re.MULTILINE)
_LOCATION = re.compile("^LOCATION: .*\n", re.MULTILINE)
_TIME = "placed BETWEEN '2024-05-01T00:00:00Z' AND '2024-05-02T12:00:00Z'"
# The data source's own statements, and its macros as it expands them.
GRAFANA = [
    "SELECT 1",
    "SELECT current_setting('server_version_num')::int/100 as version",
    "SELECT extversion FROM pg_extension WHERE extname = 'timescaledb'",
    """SELECT CASE WHEN quote_ident(table_schema) IN (SELECT CASE WHEN trim(s[i]) = '"$user"' THEN user ELSE trim(s[i]) END
       FROM generate_series(array_lower(string_to_array(current_setting('search_path'),','),1),
            array_upper(string_to_array(current_setting('search_path'),','),1)) as i,
            string_to_array(current_setting('search_path'),',') s)
       THEN quote_ident(table_name) ELSE quote_ident(table_schema) || '.' || quote_ident(table_name) END AS "table"
       FROM information_schema.tables WHERE quote_ident(table_schema) NOT IN ('information_schema', 'pg_catalog',
            '_timescaledb_cache') AND table_schema IN ('public', 'sales') ORDER BY 1""",
    """SELECT quote_ident(column_name) AS "column", data_type AS "type" FROM information_schema.columns
       WHERE quote_ident(table_name) = 'orders' AND quote_ident(table_schema) = 'public' ORDER BY 1""",
    f'SELECT placed AS "time", total FROM orders WHERE {_TIME} ORDER BY placed',
    f"""SELECT floor((extract(epoch from placed)/300))*300 AS "time", avg(total) AS "value", state AS metric
        FROM orders WHERE {_TIME} GROUP BY 1, 3 ORDER BY 1, 3""",
    f"""SELECT floor((extract(epoch from placed)/3600))*3600 AS "time", count(*) FILTER (WHERE shipped IS NULL) AS "open",
        percentile_cont(0.95) WITHIN GROUP (ORDER BY weight) AS p95 FROM orders WHERE {_TIME} GROUP BY 1 ORDER BY 1""",
    f"""SELECT date_trunc('hour', placed) AS "time", sum(total) FROM orders WHERE {_TIME} GROUP BY 1 ORDER BY 1""",
    """SELECT extract(epoch from placed) AS "time", id FROM orders WHERE extract(epoch from placed) >= 1714521600
       AND extract(epoch from placed) <= 1714525200 ORDER BY 1 ASC LIMIT 50""",
    "SELECT DISTINCT name AS __text, id AS __value FROM customers WHERE name ILIKE '%1%' ORDER BY 1",
    """SELECT * FROM (SELECT payload->>'n' AS n, kind, at AS "time" FROM events ORDER BY at LIMIT 20) t
       WHERE kind IN ('kind 1','kind 2') ORDER BY 3""",
]


@pytest.mark.parametrize("script", PSQL_SCRIPTS)
def test_psql_shows_of_the_lake_what_it_shows_of_postgresql(
    shop_on_both: Shop, script: str
) -> None:
    found, expected = (
        subprocess.run(
            [PSQL, "-X", "-q", "-P", "pager=off", "-v", "VERBOSITY=verbose"],
            env=shop_on_both.address(port),
            input=f"{script}\n",
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        for port in shop_on_both.ports.values()
    )
    assert expected.stdout or expected.stderr
    assert _CLOCK.sub("", found.stdout) == _CLOCK.sub("", expected.stdout)
    # The place in PostgreSQL's source differs: the SQL server asks with the extended protocol.
    assert _LOCATION.sub("", found.stderr) == _LOCATION.sub("", expected.stderr)


@pytest.mark.parametrize("statement", [*COMPLETIONS, *GRAFANA])
def test_the_queries_of_tools_have_postgresqls_answers(shop_on_both: Shop, statement: str) -> None:
    found, expected = (
        _answer(shop_on_both, port, statement) for port in shop_on_both.ports.values()
    )
    assert expected[1] or "timescaledb" in statement
    assert found == expected


def _answer(shop: Shop, port: int, statement: str) -> tuple[list[Any], list[Any]]:
    """Columns and rows, by the simple protocol."""
    address = shop.front.address()
    with (
        psycopg.connect(**{**address, "port": port}, autocommit=True) as connection,
        psycopg.ClientCursor(connection) as cursor,
    ):
        cursor.execute(statement)
        columns = [(each.name, each.type_code) for each in cursor.description or ()]
        return columns, cursor.fetchall()


def test_drizzle_introspects_the_lake(shop_on_both: Shop, tmp_path: Path) -> None:
    found, expected = (
        _pulled(shop_on_both, port, tmp_path / side) for side, port in shop_on_both.ports.items()
    )
    assert {"public.orders", "sales.targets", "public.Mixed Case"} <= set(expected["tables"])
    for part in ("tables", "views", "enums", "schemas"):
        assert found[part] == expected[part]


def _pulled(shop: Shop, port: int, folder: Path) -> dict[str, Any]:
    """The snapshot that `drizzle-kit pull` makes."""
    folder.mkdir()
    sql_clients.node_client("node_postgres.mjs", folder)
    address = shop.address(port)
    credentials = {
        "host": address["PGHOST"], "port": port, "user": address["PGUSER"], "ssl": False,
        "password": address["PGPASSWORD"], "database": address["PGDATABASE"],
    }  # fmt: skip
    config = {
        "dialect": "postgresql", "out": "./out", "schemaFilter": ["public", "sales"], "dbCredentials": credentials,
    }  # fmt: skip
    (folder / "drizzle.config.json").write_text(json.dumps(config))
    done = subprocess.run(
        ["node", "node_modules/drizzle-kit/bin.cjs", "pull", "--config=drizzle.config.json"],  # noqa: S607  # where the PATH says
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=sql_clients.RUN_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    snapshot: dict[str, Any] = json.loads((folder / "out/meta/0000_snapshot.json").read_text())
    return snapshot


def test_prisma_introspects_the_lake(shop_on_both: Shop, tmp_path: Path) -> None:
    found, expected = (
        _prisma_schema(shop_on_both, port, tmp_path / side)
        for side, port in shop_on_both.ports.items()
    )
    assert "model customers {" in expected
    assert "@@id([region, year])" in expected
    assert found == expected


def _prisma_schema(shop: Shop, port: int, folder: Path) -> str:
    """The schema that `prisma db pull` writes, without its remarks on tables with children."""
    folder.mkdir()
    sql_clients.prisma(folder)
    # It asks for native engines, and does not start them.
    engine = folder / "engine"
    engine.touch(mode=0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    engines = dict.fromkeys(
        ("PRISMA_QUERY_ENGINE_LIBRARY", "PRISMA_SCHEMA_ENGINE_BINARY"), str(engine)
    )
    done = subprocess.run(
        ["node", "node_modules/prisma/build/index.js", "db", "pull"],  # noqa: S607  # where the PATH says
        cwd=folder,
        env={
            **kept,
            **shop.address(port),
            **engines,
            "PRISMA_NEEDS_A_URL": "postgresql://unused",
            "CHECKPOINT_DISABLE": "1",
            "PRISMA_HIDE_UPDATE_MESSAGE": "1",
        },
        capture_output=True,
        text=True,
        timeout=sql_clients.RUN_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    lines = (folder / "schema.prisma").read_text().splitlines()
    return "\n".join(line for line in lines if "This table has subclasses" not in line)
