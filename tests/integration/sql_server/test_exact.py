"""The private PostgreSQL itself answers statements that DuckDB is not proven to answer, on a cut's rows.

The oracle is another PostgreSQL with the same rows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headrace.testing.servers import SessionServers
from tests.support.sql_front import SqlServer, sql_server

VIEWS = """
CREATE VIEW even AS SELECT id, note FROM numbers WHERE id % 2 = 0;
CREATE VIEW "even Notes" AS SELECT e.id, length(e.note) AS size FROM even e JOIN numbers n USING (id);
CREATE VIEW "without 7" WITH (security_barrier) AS SELECT id, note FROM numbers WHERE id <> 7;
"""
ROWS = """
CREATE TABLE numbers (id bigint PRIMARY KEY, note text);
INSERT INTO numbers SELECT n, 'note ' || n FROM generate_series(0, 99) n;
"""
# Each has something that DuckDB is not proven to answer equally.
STATEMENTS = [
    "SELECT sum(id::float8), avg(id::float4) FROM numbers",
    "SELECT percentile_cont(0.3) WITHIN GROUP (ORDER BY id) FROM public.numbers",
    "SELECT jsonb_object_agg(n.id, n.note ORDER BY n.id) FROM lake.public.numbers AS n WHERE id < 9",
    "SELECT id, g FROM numbers, generate_series(1, 2) g WHERE id < 3 ORDER BY 1, 2",
    "SELECT id FROM numbers ORDER BY id % 3 FETCH FIRST 2 ROWS WITH TIES",
    "SELECT note, to_char(id, 'FMRN') FROM numbers WHERE numbers.id BETWEEN 1 AND 5 ORDER BY public.numbers.id",
    "SELECT to_jsonb(n), n FROM numbers n WHERE id < 3 ORDER BY id",
    "SELECT id, note, sum(id::float8) OVER (PARTITION BY id % 4 ORDER BY id) FROM numbers ORDER BY id",
    "SELECT n.id, n.note, count(*), sum(m.id::float8) FROM numbers n JOIN numbers m ON m.id <= n.id GROUP BY n.id ORDER BY n.id",
    "SELECT count(*) FROM numbers, generate_series(1, 3)",
    "SELECT sum(size::float8) FROM \"even Notes\"",
    "SELECT sum(e.size::float8) FROM public.\"even Notes\" e, public.even, public.numbers n WHERE n.id = e.id",
    "WITH RECURSIVE r(x) AS (SELECT min(id) FROM numbers UNION ALL SELECT x + 1 FROM r WHERE x < 5) SELECT sum(x::float8) FROM r",
    "SELECT regexp_match(note, '(\\d)(\\d)$'), md5(note) FROM numbers WHERE note ~ '\\y1\\d$' ORDER BY id",
    "SELECT id FROM numbers WHERE to_tsvector('simple', note) @@ to_tsquery('simple', '7 | 9') ORDER BY id",
    "SELECT (SELECT array_agg(b.note ORDER BY b.id DESC) FROM numbers b WHERE b.id > 97), string_agg(left(note, 1), NULL) FROM numbers",
    "SELECT id, pg_typeof(note) FROM numbers WHERE id = 1",
    "SELECT to_char(id, 'RN')::int FROM numbers",
    "SELECT sum(id::float8) FROM public.numbers WHERE id IN (1, 5) OR note = ANY (ARRAY['note 7', 'x'])",
    "SELECT id FROM \"without 7\" WHERE 1 / (id - 7) = 1",
    "SELECT id FROM numbers ORDER BY note COLLATE ucs_basic DESC",
]  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlServer]:
    with sql_server(tmp_path_factory.mktemp("exact")) as made:
        with made.admin() as admin:
            admin.execute(VIEWS)
            admin.execute('GRANT SELECT ON even, "even Notes", "without 7" TO PUBLIC')
        yield made


@pytest.fixture(scope="module")
def oracle(session_servers: SessionServers) -> Iterator[psycopg.Connection[Any]]:
    """A PostgreSQL that has the rows."""
    postgres = session_servers.shared_postgres(18)
    with psycopg.connect(postgres.dsn(), autocommit=True) as admin:
        admin.execute("DROP DATABASE IF EXISTS lake WITH (FORCE)")
        admin.execute("CREATE DATABASE lake TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C'")
        try:
            with psycopg.connect(postgres.dsn("lake"), autocommit=True) as connection:
                connection.execute(ROWS + VIEWS)
                yield connection
        finally:
            admin.execute("DROP DATABASE lake WITH (FORCE)")


def answer(connection: psycopg.Connection[Any], statement: str, **how: Any) -> tuple[Any, ...]:
    """The rows with their types, or the SQLSTATE."""
    try:
        cursor = connection.execute(statement, **how)
    except psycopg.Error as error:
        return ("failed", error.sqlstate)
    kinds = [each.type_code for each in cursor.description or ()]
    return (kinds, sorted(cursor.fetchall(), key=str))


@pytest.mark.parametrize("statement", STATEMENTS)
def test_the_answer_is_that_of_a_postgresql_with_the_rows(
    server: SqlServer, oracle: psycopg.Connection[Any], statement: str
) -> None:
    with server.connect() as connection:
        for how in ({}, {"prepare": True}):
            found, expected = (answer(each, statement, **how) for each in (connection, oracle))
            # The OID of a table's row type differs.
            assert found[1] == expected[1]
        assert "Engine: PostgreSQL" in connection.execute("EXPLAIN " + statement).fetchall()[0][0]


@pytest.mark.parametrize(
    "zone", ["Europe/Amsterdam", "EST5EDT", "America/Panama", "Pacific/Apia", "Africa/Monrovia"]
)
def test_moments_have_the_offsets_of_postgresql_s_own_time_zones(
    server: SqlServer, oracle: psycopg.Connection[Any], zone: str
) -> None:
    """Editions of the time zone database differ, most of all before 1970."""
    years = (1850, 1900, 1930, 1945, 1975, 2011, 2045)
    moments = ", ".join(f"timestamptz '{year}-07-01 12:00+00'" for year in years)
    statement = f"SELECT {moments} FROM numbers WHERE id = 1".encode()
    with server.connect() as connection:
        shown = []
        for each in (connection, oracle):
            each.execute("SELECT set_config('TimeZone', %s, false)", [zone])
            result = each.pgconn.exec_(statement)
            shown.append([result.get_value(0, column) for column in range(len(years))])
        assert shown[0] == shown[1]
        assert connection.execute(b"EXPLAIN " + statement).fetchone() == ("Engine: DuckDB",)


def test_explain_names_the_engine_and_the_reason(server: SqlServer) -> None:
    duckdb = server.rows("EXPLAIN SELECT count(*) FROM numbers")
    assert duckdb[0] == ("Engine: DuckDB",)
    exact = server.rows("EXPLAIN ANALYZE SELECT sum(id::float8) FROM numbers")
    assert exact[0][0].startswith("Engine: PostgreSQL (aggregate sum(float8)")
    assert any("actual" in line for (line,) in exact)


@pytest.mark.parametrize("binary", [False, True])
def test_parameters_reach_postgresql_with_their_types(server: SqlServer, binary: bool) -> None:
    query = "SELECT sum(id::float8), min(note) FROM numbers WHERE id < %s AND note = ANY(%s)"
    with server.connect() as connection:
        for prepare in (False, True, True):
            found = connection.execute(
                query, [5, ["note 1", "note 4"]], binary=binary, prepare=prepare
            )
            assert found.fetchall() == [(5.0, "note 1")]


def test_prepared_statements_cursors_and_copies_are_answered(server: SqlServer) -> None:
    with server.connect() as connection:
        connection.execute(
            "PREPARE p (bigint) AS SELECT sum(id::float8) FROM numbers WHERE id < $1"
        )
        assert connection.execute("EXECUTE p (1 + 3)").fetchall() == [(6.0,)]
        text = "SELECT id, g::float8 + cbrt(8) AS x FROM numbers, generate_series(1, 2) g ORDER BY id, g"
        with (
            connection.cursor() as cursor,
            cursor.copy(f"COPY ({text}) TO STDOUT CSV HEADER") as copy,
        ):
            lines = b"".join(copy).decode().splitlines()
        assert lines[:3] == ["id,x", "0,3", "0,4"]
        assert len(lines) == 201
        with connection.transaction():
            connection.execute(f"DECLARE c CURSOR FOR {text}")
            assert connection.execute("FETCH 2 FROM c").fetchall() == [(0, 3.0), (0, 4.0)]
            assert connection.execute("SELECT count(*) FROM numbers").fetchone() == (100,)
            assert connection.execute("MOVE 190 IN c").statusmessage == "MOVE 190"
            assert len(connection.execute("FETCH ALL FROM c").fetchall()) == 8
        with connection.transaction(), connection.cursor("parts") as parts:
            parts.itersize = 33
            parts.execute(text)
            assert len(parts.fetchall()) == 200


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_a_read_only_block_sees_its_cut_in_both_engines(server: SqlServer, level: str) -> None:
    both = "SELECT (SELECT count(*) FROM numbers), {}"
    with server.connect() as connection, connection.transaction():
        connection.execute(f"SET TRANSACTION ISOLATION LEVEL {level} READ ONLY")
        duckdb = connection.execute(both.format("1")).fetchone()
        server.lake.insert([100_000 + server.lake.cut_number])
        server.cut()
        exact = connection.execute(both.format("cbrt(1)")).fetchone()
        assert duckdb == exact
        with server.connect() as other:
            later = other.execute(both.format("cbrt(1)")).fetchone()
        assert duckdb is not None
        assert later == (duckdb[0] + 1, 1.0)
    server.lake.delete([100_000 + server.lake.cut_number - 1])
    server.cut()


def test_an_older_cut_is_answered(server: SqlServer) -> None:
    before = server.lake.cut_number
    server.lake.insert([7_000_000])
    server.cut()
    with server.connect() as connection:
        query = "SELECT sum(id::float8) FROM numbers"
        assert connection.execute(query).fetchone() == (7_004_950.0,)
        connection.execute(f"SET headrace.as_of = '{before}'")
        assert connection.execute(query).fetchone() == (4950.0,)
    server.lake.delete([7_000_000])
    server.cut()
    assert server.rows("SELECT sum(id::float8) FROM numbers") == [(4950.0,)]


def test_no_statement_mixes_cuts_while_cuts_are_made(server: SqlServer) -> None:
    """Each cut gives the same rows another note: a mixture would show two."""
    stop = threading.Event()
    wrong: list[object] = []
    seen: set[object] = set()
    query = "SELECT count(DISTINCT note), min(note), count(*), cbrt(8) FROM numbers WHERE id < 50"

    def read() -> None:
        with server.connect() as connection:
            while not stop.is_set():
                row = connection.execute(query).fetchone()
                assert row is not None
                seen.add(row[1])
                if (row[0], row[2], row[3]) != (1, 50, 2.0):
                    wrong.append(row)

    server.lake.update(range(50), "round 0")
    server.cut()
    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(1, 9):
        server.lake.update(range(50), f"round {number}")
        server.cut()
    stop.set()
    for thread in threads:
        thread.join()
    server.lake.update(range(50), "note x")
    server.cut()
    assert wrong == []
    assert len(seen) > 1


def test_a_settings_value_and_an_error_stay_postgresql_s_own(server: SqlServer) -> None:
    with server.connect(autocommit=False) as connection:
        connection.execute("SET LOCAL search_path = public, pg_catalog")
        connection.execute("SET LOCAL DateStyle = 'German'")
        row = connection.execute(
            "SELECT current_setting('search_path'), make_date(2026, 1, 2)::text, current_user::text,"
            " current_schema()::text, cbrt(1) FROM numbers LIMIT 1"
        ).fetchone()
        assert row == ("public, pg_catalog", "02.01.2026", "reader", "public", 1.0)
        assert connection.execute("SHOW search_path").fetchone() == ("public, pg_catalog",)
        with pytest.raises(psycopg.errors.InvalidRegularExpression):
            connection.execute("SELECT regexp_count(note, '(') FROM numbers")
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            connection.execute("SELECT sum(id::float8) FROM numbers")
        connection.rollback()
        assert connection.execute("SHOW search_path").fetchone() != ("public, pg_catalog",)


def test_a_role_reads_only_what_was_granted_to_it(server: SqlServer) -> None:
    server.add_user("partial", "--no-tables")
    with server.admin() as admin, server.connect("partial") as connection:
        admin.execute("GRANT USAGE ON SCHEMA public TO partial")
        admin.execute("GRANT SELECT (id) ON numbers TO partial")
        assert connection.execute("SELECT sum(id::float8) FROM numbers").fetchone() == (4950.0,)
        assert connection.execute("SELECT count(*), cbrt(1) FROM numbers").fetchone() == (100, 1.0)
        for text in ("SELECT max(note), cbrt(1) FROM numbers", "SELECT to_jsonb(n) FROM numbers n"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(text)
        # By its owner's rights.
        assert connection.execute('SELECT max(size), cbrt(1) FROM "even Notes"').fetchone() == (
            7,
            1.0,
        )
        admin.execute("REVOKE SELECT (id) ON numbers FROM partial")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SELECT sum(id::float8) FROM numbers")


def test_the_tables_with_rows_can_not_be_reached_by_their_names(server: SqlServer) -> None:
    with server.connect() as connection:
        connection.execute("SELECT sum(id::float8), max(note) FROM numbers")
        found = connection.execute(
            "SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace"
            " WHERE relname = 'numbers' AND nspname LIKE 'pg_headrace_%'"
        ).fetchall()
        assert found
        for (schema,) in found:
            for text in (
                f"SELECT * FROM {schema}.numbers",
                f"SELECT count(*) FROM ONLY {schema}.numbers",
                f"COPY {schema}.numbers TO STDOUT",
                f"SELECT 1 FROM numbers, {schema}.numbers n",
                f"PREPARE secret AS TABLE {schema}.numbers",
                f"CREATE TEMP TABLE mine AS TABLE {schema}.numbers",
                f"INSERT INTO {schema}.numbers VALUES (1, 'x')",
                f"DROP TABLE {schema}.numbers",
                f"EXPLAIN ANALYZE SELECT * FROM {schema}.numbers",
            ):
                with pytest.raises(psycopg.Error):
                    connection.execute(text).fetchall()
            connection.execute(f"SET search_path = {schema}, public")
            # Refused; or the schema was dropped meanwhile, and this is the lake's table.
            assert answer(connection, "SELECT count(*) FROM numbers")[1] in ("42501", [(100,)])
            connection.execute("RESET search_path")
    listed = server.psql("\\dn\n\\dt")
    assert "pg_headrace" not in listed.stdout


def test_a_statement_ends_at_a_cancel_request_and_at_its_time_out(server: SqlServer) -> None:
    endless = "SELECT count(*) FROM numbers, generate_series(1, 1000000000000)"
    with server.connect() as connection:
        timer = threading.Timer(1.0, connection.cancel)
        timer.start()
        with pytest.raises(psycopg.errors.QueryCanceled, match="user request"):
            connection.execute(endless)
        timer.join()
        connection.execute("SET statement_timeout = '500ms'")
        started = time.monotonic()
        with pytest.raises(psycopg.errors.QueryCanceled, match="statement timeout"):
            connection.execute(endless)
        assert time.monotonic() - started < 60
        assert connection.execute("SELECT sum(id::float8) FROM numbers").fetchone() == (4950.0,)


def test_a_view_that_changes_is_read_as_it_is(server: SqlServer) -> None:
    with server.admin() as admin, server.connect() as connection:
        admin.execute("CREATE VIEW few AS SELECT id FROM numbers WHERE id < 3")
        admin.execute("GRANT SELECT ON few TO PUBLIC")
        query = "SELECT sum(id::float8) FROM few"
        assert connection.execute(query).fetchone() == (3.0,)
        admin.execute("CREATE OR REPLACE VIEW few AS SELECT id FROM numbers WHERE id < 4")
        assert connection.execute(query).fetchone() == (6.0,)


def test_tables_that_nobody_uses_are_dropped(server: SqlServer) -> None:
    server.rows("SELECT sum(id::float8) FROM numbers")
    server.lake.update([1], "note 1")
    server.cut()
    with server.admin() as admin:

        def left() -> bool:
            row = admin.execute(
                "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'pg_headrace_%'"
            ).fetchone()
            assert row is not None
            return int(row[0]) <= 1

        server.until("older tables are dropped", left)


def test_larger_tables_are_refused_by_name_with_the_setting(tmp_path: Path) -> None:
    query = "SELECT sum(id::float8) FROM numbers"
    with (
        sql_server(tmp_path, HEADRACE_SQL_EXACT_ROWS_MAX="99") as small,
        small.connect() as connection,
    ):
        with pytest.raises(psycopg.errors.FeatureNotSupported) as refusal:
            connection.execute(query)
        assert "sum(float8) is not supported over the lake" in str(refusal.value)
        assert "HEADRACE_SQL_EXACT_ROWS_MAX is 99" in str(refusal.value.diag.message_detail)
        assert connection.execute("SELECT count(*) FROM numbers").fetchone() == (100,)
        # Its tables have fewer rows then.
        small.lake.delete([5])
        small.cut()
        assert connection.execute(query).fetchone() == (4945.0,)


def test_a_view_that_was_created_again_is_read_by_the_first_statement(server: SqlServer) -> None:
    with server.admin() as admin, server.connect() as connection:
        for rows in (3, 5):
            admin.execute("DROP VIEW IF EXISTS again")
            admin.execute(f"CREATE VIEW again AS SELECT id FROM numbers WHERE id < {rows}")
            admin.execute("GRANT SELECT ON again TO PUBLIC")
            found = connection.execute("SELECT count(id::float8), sum(id::float8) FROM again")
            assert found.fetchone() == (rows, rows * (rows - 1) / 2)
