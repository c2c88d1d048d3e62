"""No statement gives rows of the private PostgreSQL's empty tables: each shows the lake, or fails."""

from __future__ import annotations

from functools import partial

import psycopg
import pytest
from psycopg import sql

from tests.support.sql_front import SqlServer

# Each would show no rows, or a zero, if the private PostgreSQL ran it. `None`: it must be refused.
READS = [
    ("SELECT id FROM numbers", 100),
    ("TABLE numbers", 100),
    ("SELECT id FROM ONLY numbers", None),
    ("SELECT id FROM ONLY (numbers)", None),
    ("SELECT n.id FROM numbers n JOIN ONLY numbers o USING (id)", None),
    ("SELECT 1 WHERE EXISTS (SELECT 1 FROM ONLY numbers)", None),
    ("SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM ONLY numbers)", None),
    ("WITH o AS (SELECT id FROM ONLY numbers) SELECT id FROM o", None),
    ("SELECT id FROM whole", 100),
    ("SELECT id FROM parent", None),
    ("SELECT count(*) FROM parent", None),
    ("SELECT id FROM headrace_guard.\"of {relid}\"", None),
    ("COPY numbers TO STDOUT", 100),
    ("COPY numbers (id) TO STDOUT", 100),
    ("COPY public.numbers TO STDOUT (FORMAT csv)", 100),
    ("COPY (SELECT id FROM ONLY numbers) TO STDOUT", None),
    ("COPY (TABLE numbers) TO STDOUT", 100),
    ("COPY whole TO STDOUT", None),
    ("EXPLAIN ANALYZE SELECT id FROM ONLY numbers", None),
    ("EXPLAIN (ANALYZE, BUFFERS) SELECT id FROM numbers", None),
    ("EXPLAIN (FORMAT json) SELECT id FROM numbers", None),
    ("SELECT id FROM numbers FOR UPDATE", None),
    ("SELECT id FROM numbers FOR KEY SHARE", None),
    ("CREATE TABLE copied AS SELECT id FROM numbers", None),
    ("CREATE TEMP TABLE copied AS SELECT id FROM numbers", None),
    ("CREATE TEMP TABLE copied AS SELECT id FROM ONLY numbers", None),
    ("SELECT id INTO copied FROM numbers", None),
    ("CREATE VIEW shown AS SELECT id FROM numbers", None),
    ("CREATE MATERIALIZED VIEW shown AS SELECT id FROM numbers", None),
    ("SELECT counted()", None),
    ("SELECT counted_only()", None),
    ("SELECT counted_sql()", None),
    ("SELECT counted_sql_only()", None),
    ("SELECT counted_atomic_only()", None),
    ("SELECT * FROM counted_set()", None),
    ("SELECT query_to_xml('SELECT * FROM ONLY numbers', true, false, '')", None),
    ("SELECT table_to_xml('numbers', true, false, '')", None),
    ("SELECT schema_to_xml('public', true, false, '')", None),
    ("SELECT database_to_xml(true, false, '')", None),
    ("SELECT * FROM ts_stat('SELECT note::tsvector FROM ONLY numbers')", None),
    ("DO $$ BEGIN PERFORM 1 FROM ONLY numbers; END $$", None),
    ("PREPARE hidden AS SELECT id FROM ONLY numbers", None),
    ("MERGE INTO numbers USING numbers n ON false WHEN MATCHED THEN DELETE", None),
    ("INSERT INTO numbers VALUES (1, 'x')", None),
    ("INSERT INTO numbers SELECT * FROM numbers", None),
    ("UPDATE numbers SET note = 'x'", None),
    ("UPDATE ONLY numbers SET note = 'x' RETURNING id", None),
    ("DELETE FROM numbers", None),
    ("DELETE FROM ONLY numbers RETURNING id", None),
    ("WITH gone AS (DELETE FROM numbers RETURNING id) SELECT id FROM gone", None),
    ("TRUNCATE numbers", None),
    ("COPY numbers FROM STDIN", None),
    ("COPY numbers FROM '/etc/passwd'", None),
    ("COPY numbers FROM PROGRAM 'id'", None),
    ("COPY numbers TO '/dev/null'", None),
    ("COPY (SELECT 1) TO PROGRAM 'cat'", None),
    ("ALTER TABLE numbers ADD COLUMN more int", None),
    ("DROP TABLE numbers", None),
    ("CREATE INDEX ON numbers (note)", None),
    ("CREATE TABLE own (id int)", None),
    ("CREATE TABLE child () INHERITS (numbers)", None),
    ("CREATE FUNCTION mine() RETURNS int LANGUAGE sql AS 'SELECT 1'", None),
    ("CREATE TEMP TABLE own (id int)", None),
    ("GRANT SELECT ON numbers TO PUBLIC", None),
]  # fmt: skip

_ADMIN = """
CREATE OR REPLACE VIEW whole AS SELECT * FROM numbers;
CREATE OR REPLACE VIEW parent AS SELECT * FROM ONLY numbers;
GRANT SELECT ON whole, parent TO PUBLIC;
CREATE OR REPLACE FUNCTION counted() RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER
    AS 'BEGIN RETURN (SELECT count(*) FROM numbers); END';
CREATE OR REPLACE FUNCTION counted_only() RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER
    AS 'BEGIN RETURN (SELECT count(*) FROM ONLY numbers); END';
CREATE OR REPLACE FUNCTION counted_sql() RETURNS bigint LANGUAGE sql STABLE
    AS 'SELECT count(*) FROM numbers';
CREATE OR REPLACE FUNCTION counted_sql_only() RETURNS bigint LANGUAGE sql STABLE
    AS 'SELECT count(*) FROM ONLY numbers';
CREATE OR REPLACE FUNCTION counted_atomic_only() RETURNS bigint LANGUAGE sql
    BEGIN ATOMIC SELECT count(*) FROM ONLY numbers; END;
CREATE OR REPLACE FUNCTION counted_set() RETURNS SETOF numbers LANGUAGE sql STABLE
    AS 'SELECT * FROM ONLY numbers';
"""


@pytest.fixture(scope="module")
def relid(front: SqlServer) -> str:
    """Objects that an administrator has added; returns the table's OID."""
    with front.admin() as connection:
        connection.execute(_ADMIN)
        row = connection.execute("SELECT 'numbers'::regclass::oid").fetchone()
        assert row is not None
    return str(row[0])


def found(connection: psycopg.Connection[object], statement: str, *, extended: bool) -> int:
    """How many rows a statement gives; raises if it is refused."""
    if statement.startswith("COPY"):
        with connection.cursor() as cursor, cursor.copy(statement) as copy:
            return b"".join(copy).count(b"\n")
    if extended:
        return len(connection.execute(statement, prepare=True).fetchall())
    with psycopg.ClientCursor(connection) as cursor:
        cursor.execute(statement)
        return len(cursor.fetchall())


@pytest.mark.parametrize("extended", [False, True], ids=["simple", "extended"])
@pytest.mark.parametrize(("statement", "rows"), READS, ids=[statement for statement, _ in READS])
def test_a_statement_shows_the_lake_or_is_refused(
    front: SqlServer, relid: str, statement: str, rows: int | None, extended: bool
) -> None:
    text = statement.replace("{relid}", relid)
    with front.connect() as connection:
        for _ in range(2):
            # Also again in the same session, which may have kept a plan.
            if rows is not None:
                assert found(connection, text, extended=extended) == rows
                continue
            with pytest.raises(psycopg.Error):
                found(connection, text, extended=extended)
            if connection.closed:
                return


@pytest.mark.parametrize("settings", ["SET client_min_messages = error", "SET debug_print_rewritten = off",
    "SET client_min_messages = debug1", "RESET ALL", "DISCARD ALL", "SELECT set_config('debug_print_rewritten', 'off', false)",
    "SELECT set_config('client_min_messages', 'error', false)"])  # fmt: skip
def test_no_setting_of_a_client_opens_the_guard(front: SqlServer, settings: str) -> None:
    with front.connect() as connection:
        connection.execute(settings)
        with pytest.raises(psycopg.errors.FeatureNotSupported):
            connection.execute("SELECT id FROM ONLY numbers")
        assert connection.execute("SELECT count(*) FROM numbers").fetchone() == (100,)


def test_a_setting_in_the_same_text_does_not_open_the_guard(front: SqlServer) -> None:
    text = "SET debug_print_rewritten = off; SELECT id FROM ONLY numbers"
    with front.connect() as connection, psycopg.ClientCursor(connection) as cursor:
        cursor.execute("SELECT 1")
        with pytest.raises(psycopg.errors.FeatureNotSupported):
            cursor.execute(text)


def test_a_prepared_statement_is_refused_when_it_is_explained_by_its_name(front: SqlServer) -> None:
    with front.connect() as connection:
        connection.execute("PREPARE whole_table AS SELECT id FROM numbers")
        for text in ("EXPLAIN EXECUTE whole_table", "EXPLAIN ANALYZE EXECUTE whole_table"):
            with pytest.raises(psycopg.errors.FeatureNotSupported):
                connection.execute(text)
        assert len(connection.execute("EXECUTE whole_table").fetchall()) == 100


def test_a_cursor_of_the_lake_gives_no_rows_of_the_private_postgresql(front: SqlServer) -> None:
    with front.connect(autocommit=False) as connection:
        connection.execute("DECLARE c CURSOR FOR SELECT id FROM numbers")
        # Under a name that the front does not look for.
        with pytest.raises(psycopg.Error):
            connection.execute("SELECT cursor_to_xml('c', 10, true, false, '')")


def _hear(heard: list[str], notice: psycopg.errors.Diagnostic) -> None:
    heard.append(str(notice.message_primary))


def test_notices_come_at_the_level_that_the_client_asked_for(front: SqlServer) -> None:
    for level, expected in (("notice", 1), ("warning", 0)):
        with front.connect(options=f"-c client_min_messages={level}") as connection:
            heard: list[str] = []
            connection.add_notice_handler(partial(_hear, heard))
            connection.execute("SET client_min_messages = " + level)
            connection.execute("SELECT 1")
            connection.execute("DROP TABLE IF EXISTS nothing")
            assert len(heard) == expected, heard
            assert not any("tree" in each for each in heard)


def test_a_table_that_a_role_may_not_read_is_refused_to_it(front: SqlServer) -> None:
    front.add_user("stranger", "--no-tables")
    with front.connect("stranger") as connection:
        with pytest.raises(
            psycopg.errors.InsufficientPrivilege, match="permission denied for table numbers"
        ):
            connection.execute("SELECT id FROM numbers")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SELECT count(*) FROM numbers")
        with front.admin() as admin:
            admin.execute("GRANT USAGE ON SCHEMA public TO stranger")
            admin.execute("GRANT SELECT (id) ON numbers TO stranger")
        assert connection.execute("SELECT count(id) FROM numbers").fetchone() == (100,)
        assert connection.execute("SELECT count(*) FROM numbers").fetchone() == (100,)
        for text in (
            "SELECT note FROM numbers",
            "SELECT id FROM numbers WHERE note = 'x'",
            "TABLE numbers",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(text)
        with front.admin() as admin:
            admin.execute("REVOKE SELECT (id) ON numbers FROM stranger")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SELECT count(id) FROM numbers")


def test_a_view_reads_with_its_owner_s_rights(front: SqlServer, relid: str) -> None:
    assert relid
    front.add_user("viewer", "--no-tables")
    with front.connect("viewer") as connection:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SELECT id FROM numbers")
        assert len(connection.execute("SELECT id FROM whole").fetchall()) == 100


def test_superusers_and_other_databases_and_replication_are_refused(front: SqlServer) -> None:
    password = (front.folder / "sql" / "postgres-password").read_text().strip()
    for more, code in (
        ({"user": "headrace", "password": password}, "superusers can't use"),
        ({"dbname": "postgres"}, 'database "postgres" does not exist'),
        ({"replication": "database"}, "replication connections are not supported"),
        ({"password": "wrong"}, "password authentication failed"),
    ):
        with pytest.raises(psycopg.OperationalError, match=code):
            psycopg.connect(**{**front.address(), **more})


def test_a_role_that_is_a_superuser_ends_the_session(front: SqlServer) -> None:
    with front.connect() as connection, pytest.raises(psycopg.Error):
        connection.execute(sql.SQL("SET ROLE headrace"))


@pytest.mark.parametrize("statement", ["SELECT pg_read_file('/etc/passwd')", "SELECT pg_ls_dir('/')",
    "SELECT lo_import('/etc/passwd')", "SELECT lo_from_bytea(0, 'x')", "LOAD 'plpgsql'", "SELECT pg_reload_conf()",
    "CREATE EXTENSION plpgsql", "ALTER SYSTEM SET jit = on", "SET temp_file_limit = -1", "CREATE ROLE x",
    "SET log_min_messages = log", "CREATE DATABASE x", "SELECT * FROM read_csv('/etc/passwd')", "ATTACH 'x.db'",
    "INSTALL httpfs", "PRAGMA version", "SELECT * FROM '/etc/passwd'", "SELECT getenv('PATH')"])  # fmt: skip
def test_a_client_reaches_neither_the_machine_nor_the_server(
    front: SqlServer, statement: str
) -> None:
    with front.connect() as connection, pytest.raises(psycopg.Error):
        connection.execute(statement)
