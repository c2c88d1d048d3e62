"""Clients of PostgreSQL query the lake as they query PostgreSQL."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from pathlib import Path

import asyncpg
import psycopg
import pytest
from psycopg import sql

from tests.support.sql_front import PASSWORD, READER, SqlServer, sql_server

NOTES = [(number, f"note {number}") for number in range(100)]


def test_psql_selects_rows_of_the_lake(front: SqlServer) -> None:
    done = front.psql("SELECT id, note FROM numbers WHERE id < 2 ORDER BY id;")
    assert (done.stdout, done.stderr) == ("0|note 0\n1|note 1\n", "")


def test_psql_describes_a_table_with_its_types_and_its_key(front: SqlServer) -> None:
    done = front.psql("\\d numbers", "-P", "tuples_only=off", "-P", "footer=on")
    assert "id|bigint||not null|" in done.stdout
    assert '"numbers_pkey" PRIMARY KEY, btree (id)' in done.stdout
    listed = front.psql("\\dt")
    assert "public|numbers|table|" in listed.stdout


def test_psql_copies_a_table_with_a_header(front: SqlServer) -> None:
    done = front.psql("\\copy (SELECT id, note FROM numbers WHERE id > 97) TO STDOUT CSV HEADER")
    assert sorted(done.stdout.splitlines()) == ["98,note 98", "99,note 99", "id,note"]
    whole = front.psql("COPY numbers (note) TO STDOUT;")
    assert sorted(whole.stdout.splitlines()) == sorted(note for _, note in NOTES)


def test_an_error_shows_the_place_in_the_statement(front: SqlServer) -> None:
    done = front.psql("SELECT 1 \\; SELECT nothing FROM numbers;")
    assert (
        'ERROR:  42703: column "nothing" does not exist\nLINE 1: SELECT 1 ; SELECT nothing'
        in done.stderr
    )
    assert "^" in done.stderr


@pytest.mark.parametrize("binary", [False, True])
def test_psycopg_reads_text_and_binary_values_with_parameters(
    front: SqlServer, binary: bool
) -> None:
    with front.connect() as connection:
        query = "SELECT id, note FROM numbers WHERE id >= %s AND note <> %s ORDER BY id"
        found = connection.execute(query, [97, "note 98"], binary=binary).fetchall()
    assert found == [NOTES[97], NOTES[99]]


def test_psycopg_prepares_a_statement_and_runs_it_again(front: SqlServer) -> None:
    with front.connect() as connection:
        for number in range(10):
            query = "SELECT note FROM numbers WHERE id = %s"
            row = connection.execute(query, [number], prepare=True).fetchone()
            assert row == (f"note {number}",)


def test_psycopg_runs_statements_in_a_pipeline(front: SqlServer) -> None:
    with front.connect() as connection, connection.pipeline():
        cursors = [
            connection.execute("SELECT count(*) FROM numbers WHERE id < %s", [number])
            for number in range(20)
        ]
        assert [cursor.fetchone() for cursor in cursors] == [(number,) for number in range(20)]


def test_an_error_in_a_pipeline_skips_only_what_was_sent_before_its_end(front: SqlServer) -> None:
    with front.connect() as connection:
        with connection.pipeline() as pipeline:
            failing = connection.execute("SELECT id / 0 FROM numbers")
            skipped = connection.execute("SELECT 1")
            with pytest.raises(psycopg.errors.DivisionByZero):
                pipeline.sync()
            for cursor in (failing, skipped):
                with pytest.raises(psycopg.Error):
                    cursor.fetchone()
        assert connection.execute("SELECT count(*) FROM numbers").fetchone() == (100,)


def test_a_server_side_cursor_of_psycopg_reads_all_rows_in_parts(front: SqlServer) -> None:
    with front.connect(autocommit=False) as connection, connection.cursor("in parts") as cursor:
        cursor.itersize = 7
        cursor.execute("SELECT id, note FROM numbers ORDER BY id")
        assert list(cursor) == NOTES


def test_psycopg_copies_rows_in_text_and_in_binary_form(front: SqlServer) -> None:
    with front.connect() as connection, connection.cursor() as cursor:
        with cursor.copy("COPY (SELECT id, note FROM numbers) TO STDOUT") as copy:
            assert sorted(copy.rows(), key=lambda row: int(row[0])) == [
                (str(number), note) for number, note in NOTES
            ]
        with cursor.copy("COPY (SELECT id, note FROM numbers) TO STDOUT (FORMAT binary)") as copy:
            copy.set_types(["int8", "text"])
            assert sorted(copy.rows()) == NOTES


async def test_asyncpg_reads_rows_with_parameters_and_in_parts(front: SqlServer) -> None:
    connection = await asyncpg.connect(
        host="127.0.0.1", port=front.port, user=READER, password=PASSWORD, database="lake"
    )
    try:
        query = "SELECT id, note FROM numbers WHERE id < $1 ORDER BY id"
        assert [tuple(row) for row in await connection.fetch(query, 3)] == NOTES[:3]
        async with connection.transaction():
            # A portal with a limit of rows.
            found = [tuple(row) async for row in connection.cursor(query, 50, prefetch=9)]
        assert found == NOTES[:50]
    finally:
        await connection.close()


async def test_asyncpg_reads_a_lake_table_s_types_from_the_catalog(front: SqlServer) -> None:
    connection = await asyncpg.connect(
        host="127.0.0.1", port=front.port, user=READER, password=PASSWORD, database="lake"
    )
    try:
        statement = await connection.prepare("SELECT note, id FROM numbers WHERE note = $1")
        assert [each.name for each in statement.get_parameters()] == ["text"]
        assert [(each.name, each.type.name) for each in statement.get_attributes()] == [
            ("note", "text"),
            ("id", "int8"),
        ]
    finally:
        await connection.close()


def test_prepare_and_execute_take_expressions_as_arguments(front: SqlServer) -> None:
    with front.connect() as connection:
        connection.execute(
            "PREPARE one (bigint, text) AS SELECT id FROM numbers WHERE id < $1 AND note <> $2"
        )
        found = connection.execute("EXECUTE one (1 + 1, 'note ' || 0)").fetchall()
        assert found == [(1,)]
        assert connection.execute("EXECUTE one (1.6, 'x')").fetchall() == [(0,), (1,)]
        with pytest.raises(psycopg.errors.SyntaxError):
            connection.execute("EXECUTE one (1)")
        for argument, code in (
            ("count(*)", "42803"),
            ("generate_series(1, 2)", "0A000"),
            ("(SELECT count(*) FROM numbers)", "0A000"),
            ("'1'::text", "42804"),
        ):
            with pytest.raises(psycopg.Error) as refusal:
                connection.execute(f"EXECUTE one ({argument}, 'x')")
            assert refusal.value.sqlstate == code
        connection.execute("DEALLOCATE one")
        with pytest.raises(psycopg.errors.InvalidSqlStatementName):
            connection.execute("EXECUTE one (1, 'x')")


def test_a_declared_cursor_is_fetched_moved_and_closed(front: SqlServer) -> None:
    with front.connect() as connection, connection.transaction():
        connection.execute("DECLARE c CURSOR FOR SELECT id FROM numbers ORDER BY id")
        assert connection.execute("FETCH 2 FROM c").fetchall() == [(0,), (1,)]
        assert connection.execute("MOVE 10 IN c").statusmessage == "MOVE 10"
        assert connection.execute("FETCH NEXT FROM c").fetchall() == [(12,)]
        assert len(connection.execute("FETCH ALL FROM c").fetchall()) == 87
        assert connection.execute("FETCH c").fetchall() == []
        connection.execute("CLOSE c")
        with pytest.raises(psycopg.errors.InvalidCursorName), connection.transaction():
            connection.execute("FETCH c")


def test_a_cursor_that_a_savepoint_took_away_can_not_be_fetched(front: SqlServer) -> None:
    with front.connect() as connection, connection.transaction():
        connection.execute("SAVEPOINT a")
        connection.execute("DECLARE c CURSOR FOR SELECT id FROM numbers")
        connection.execute("ROLLBACK TO a")
        with pytest.raises(psycopg.errors.InvalidCursorName):
            connection.execute("FETCH c")


def test_a_cursor_outside_a_transaction_is_refused_as_by_postgresql(front: SqlServer) -> None:
    with front.connect() as connection, pytest.raises(psycopg.errors.NoActiveSqlTransaction):
        connection.execute("DECLARE c CURSOR FOR SELECT id FROM numbers")


@pytest.mark.parametrize("engine", ["id", "cbrt(id)"], ids=["DuckDB", "PostgreSQL"])
def test_a_cursor_with_hold_outlives_its_transaction_and_keeps_its_cut(
    tmp_path: Path, engine: str
) -> None:
    query = f"DECLARE c CURSOR WITH HOLD FOR SELECT id, {engine} FROM numbers ORDER BY id"
    with sql_server(tmp_path) as server, server.connect() as connection:
        for statements in (
            [query, "MOVE 2 IN c"],
            ["BEGIN", query, "FETCH 2 FROM c", "COMMIT"],
            ["BEGIN", query, "SAVEPOINT a", "ROLLBACK TO a", "END", "MOVE 2 IN c"],
        ):
            for each in statements:
                connection.execute(each)
            server.lake.delete([50])
            server.cut()
            assert connection.execute("SELECT count(*) FROM numbers").fetchone() == (99,)
            row = connection.execute("FETCH c").fetchone()
            assert row is not None
            assert row[0] == 2
            found = connection.execute("FETCH ALL FROM c").fetchall()
            assert [row[0] for row in found] == list(range(3, 100))
            with pytest.raises(psycopg.errors.DuplicateCursor):
                connection.execute(query)
            connection.execute("CLOSE c")
            with pytest.raises(psycopg.errors.InvalidCursorName):
                connection.execute("FETCH c")
            server.lake.insert([50])
            server.cut()


def test_a_cursor_with_hold_goes_with_a_transaction_that_does_not_commit(front: SqlServer) -> None:
    hold = "DECLARE c CURSOR WITH HOLD FOR SELECT id FROM numbers"
    with front.connect() as connection:
        for ended in (
            ["BEGIN", hold, "ROLLBACK"],
            ["BEGIN", "SAVEPOINT a", hold, "ROLLBACK TO a", "COMMIT"],
            ["BEGIN", hold, "CLOSE c", "COMMIT"],
            [hold, "DISCARD ALL"],
            [hold, "CLOSE ALL"],
            [f"BEGIN; {hold}; ROLLBACK"],
        ):
            for each in ended:
                connection.execute(each)
            with pytest.raises(psycopg.errors.InvalidCursorName):
                connection.execute("FETCH c")
        # An error undoes what came before it in the same text.
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute(f"{hold}; SELECT 1 / 0")
        connection.execute("BEGIN")
        connection.execute(hold)
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute("SELECT * FROM missing")
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            connection.execute("FETCH c")
        assert connection.execute("COMMIT").statusmessage == "ROLLBACK"
        with pytest.raises(psycopg.errors.InvalidCursorName):
            connection.execute("FETCH c")


def test_several_statements_in_a_query_give_several_results(front: SqlServer) -> None:
    with front.connect() as connection, psycopg.ClientCursor(connection) as cursor:
        cursor.execute("SELECT 1; SELECT count(*) FROM numbers; SHOW headrace.lsn")
        assert cursor.fetchall() == [(1,)]
        assert cursor.nextset()
        assert cursor.fetchall() == [(100,)]
        assert cursor.nextset()
        assert len(cursor.fetchall()) == 1


def test_explain_shows_how_the_lake_is_read(front: SqlServer) -> None:
    shown = "\n".join(row[0] for row in front.rows("EXPLAIN SELECT note FROM numbers"))
    assert "SEQ_SCAN" in shown
    timed = "\n".join(row[0] for row in front.rows("EXPLAIN ANALYZE SELECT note FROM numbers"))
    assert "Total Time" in timed


def test_values_are_sent_in_the_order_of_two_portals_that_are_read_in_turns(
    front: SqlServer,
) -> None:
    with front.connect() as connection, connection.transaction():
        for name in ("a", "b"):
            connection.execute(
                sql.SQL("DECLARE {} CURSOR FOR SELECT id FROM numbers ORDER BY id").format(
                    sql.Identifier(name)
                )
            )
        found = [connection.execute(f"FETCH 3 FROM {name}").fetchall() for name in "abab"]
    assert found == [[(0,), (1,), (2,)], [(0,), (1,), (2,)], [(3,), (4,), (5,)], [(3,), (4,), (5,)]]


async def test_many_clients_read_at_the_same_time(front: SqlServer) -> None:
    async def one(number: int) -> object:
        async with await psycopg.AsyncConnection.connect(**front.address()) as connection:
            cursor = await connection.execute(
                "SELECT count(*) FROM numbers WHERE id < %s", [number]
            )
            return await cursor.fetchone()

    assert await asyncio.gather(*map(one, range(30))) == [(number,) for number in range(30)]


@pytest.mark.parametrize(
    ("value", "count"),
    [("2.5", 3), ("0.00000000000000000001", 1), ("12345678901234567890.5", 100), ("-0.5", 0)],
)
def test_a_numeric_parameter_keeps_all_its_digits(front: SqlServer, value: str, count: int) -> None:
    query = "SELECT count(*), max(%s::numeric) FROM numbers WHERE id < %s::numeric"
    with front.connect() as connection:
        for binary in (False, True):
            given = Decimal(value)
            row = connection.execute(query, [given, given], binary=binary).fetchone()
            # The maximum of no rows is null.
            assert row == (count, given if count else None)
        # The same prepared statement with other digits.
        for other in (given, Decimal("7.25"), Decimal(50), given):
            row = connection.execute(query, [other, other], prepare=True).fetchone()
            assert row is not None
            assert row[1] == (other if row[0] else None)
