"""Each statement and each transaction sees one cut, also while the lake and its schema change."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headrace.lake.catalog import TableName
from tests.support.sql_front import READER, SqlServer, sql_server

OTHER = TableName("shop", "Other Numbers")
COUNTS = "SELECT (SELECT count(*) FROM numbers), (SELECT count(*) FROM numbers WHERE note = %s)"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlServer]:
    """A server whose lake the tests change."""
    with sql_server(tmp_path_factory.mktemp("cuts")) as server:
        yield server


def count(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute("SELECT count(*) FROM numbers").fetchone()
    assert row is not None
    return int(row[0])


def shown_lsn(connection: psycopg.Connection[Any]) -> str:
    row = connection.execute("SHOW headrace.lsn").fetchone()
    assert row is not None
    return str(row[0])


def test_two_transactions_see_one_cut_each(server: SqlServer) -> None:
    with server.connect(autocommit=False) as first, server.connect(autocommit=False) as second:
        before = count(first)
        lsn_before = shown_lsn(first)
        server.lake.insert(range(1000, 1010), "of two")
        lsn = server.cut()
        assert count(second) == before + 10
        assert shown_lsn(second) == lsn
        # The first transaction began before.
        assert count(first) == before
        assert shown_lsn(first) == lsn_before
        first.commit()
        assert count(first) == before + 10
        assert shown_lsn(first) == lsn


def test_statements_outside_transactions_see_the_last_cut(server: SqlServer) -> None:
    with server.connect() as connection:
        before = count(connection)
        server.lake.insert([2000])
        server.cut()
        assert count(connection) == before + 1


def test_no_statement_mixes_two_cuts_while_cuts_are_made(server: SqlServer) -> None:
    """Every cut replaces the note of the same rows, so a mixture would show two notes."""
    stop = threading.Event()
    wrong: list[object] = []
    seen: set[object] = set()

    def read() -> None:
        with server.connect() as connection:
            while not stop.is_set():
                query = "SELECT count(DISTINCT note), min(note) FROM numbers WHERE id < 50"
                row = connection.execute(query).fetchone()
                assert row is not None
                seen.add(row[1])
                if row[0] != 1:
                    wrong.append(row)

    server.lake.update(range(50), "round 0")
    server.cut()
    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(1, 12):
        server.lake.update(range(50), f"round {number}")
        server.cut()
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(seen) > 3


def test_an_error_in_a_block_fails_the_transaction_in_both_servers(server: SqlServer) -> None:
    with server.connect(autocommit=False) as connection:
        before = count(connection)
        for failing in ("SELECT 1 / (id - id) FROM numbers", "SELECT id FROM ONLY numbers"):
            with pytest.raises(psycopg.Error):
                connection.execute(failing)
            for text in ("SELECT 1", "SELECT count(*) FROM numbers", "SHOW headrace.lsn"):
                with pytest.raises(psycopg.errors.InFailedSqlTransaction):
                    connection.execute(text)
            connection.rollback()
        assert count(connection) == before


def test_a_savepoint_returns_to_the_same_cut_after_an_error(server: SqlServer) -> None:
    with server.connect(autocommit=False) as connection:
        before = count(connection)
        connection.execute("SAVEPOINT a")
        server.lake.insert([3000])
        server.cut()
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute("SELECT 1 / (id - id) FROM numbers")
        connection.execute("ROLLBACK TO a")
        assert count(connection) == before
        connection.rollback()
        assert count(connection) == before + 1


def test_wait_for_returns_when_a_later_cut_is_shown_and_fails_after_its_time(
    server: SqlServer,
) -> None:
    with server.connect() as connection:
        at = int(shown_lsn(connection).partition("/")[2], 16)
        with pytest.raises(psycopg.errors.QueryCanceled, match="did not reach"):
            connection.execute("SELECT headrace.wait_for('0/FFFFFF', '100 ms')")
        wanted = f"0/{at + 100:X}"
        waited: list[object] = []

        def wait() -> None:
            with server.connect() as other:
                waited.append(other.execute("SELECT headrace.wait_for(%s)", [wanted]).fetchone())

        thread = threading.Thread(target=wait)
        thread.start()
        server.lake.insert([4000])
        server.lake.cut()
        thread.join(60)
        assert len(waited) == 1


def test_an_older_cut_is_read_by_its_number_or_its_lsn(server: SqlServer) -> None:
    with server.connect() as connection:
        before, lsn, number = count(connection), shown_lsn(connection), server.lake.cut_number
        server.lake.insert([5000, 5001])
        server.cut()
        for older in (str(number), lsn):
            connection.execute(f"SET headrace.as_of = '{older}'")
            assert count(connection) == before
            connection.execute("RESET headrace.as_of")
            assert count(connection) == before + 2
        with connection.transaction():
            connection.execute(f"SET LOCAL headrace.as_of = '{number}'")
            assert count(connection) == before
        assert count(connection) == before + 2
        connection.execute("SET headrace.as_of = '1000000'")
        with pytest.raises(psycopg.Error):
            count(connection)


def test_a_new_table_and_a_new_column_appear_with_their_cut(server: SqlServer) -> None:
    with server.connect() as connection:
        prepared = "SELECT * FROM numbers WHERE id = 7"
        assert len(connection.execute(prepared, prepare=True).fetchall()[0]) == 2
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute('SELECT * FROM shop."Other Numbers"')
        server.lake.create(OTHER, rows=5)
        server.lake.add_column()
        server.lake.insert([6000])
        server.cut()
        assert len(connection.execute('SELECT * FROM shop."Other Numbers"').fetchall()) == 5
        row = connection.execute("SELECT extra FROM numbers WHERE id = 6000").fetchone()
        assert row == (12000,)
        # As PostgreSQL: the result of a prepared statement must not change.
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="must not change result type"):
            connection.execute(prepared, prepare=True)


def test_a_transaction_that_uses_a_table_does_not_hold_its_change_up_for_long(
    tmp_path: Path,
) -> None:
    with (
        sql_server(tmp_path, HEADRACE_SQL_SCHEMA_WAIT_S="0.3") as server,
        server.connect(autocommit=False) as idle,
    ):
        assert count(idle) == 100
        server.lake.add_column()
        server.lake.insert([1000])
        server.cut()
        assert server.rows("SELECT extra FROM numbers WHERE id = 1000") == [(2000,)]
        with pytest.raises(psycopg.OperationalError):
            count(idle)


def test_users_and_grants_survive_a_restart_and_a_kill(tmp_path: Path) -> None:
    with sql_server(tmp_path) as server:
        for end in (server.stop, server.kill):
            end()
            (tmp_path / "log").write_text("")
            server.lake.insert([server.lake.cut_number + 1000])
            server.lake.cut()
            server.start()
            with server.connect() as connection:
                # Every change is shown, and the guard works.
                assert count(connection) == 100 + server.lake.cut_number - 1
                with pytest.raises(psycopg.errors.FeatureNotSupported):
                    connection.execute("SELECT id FROM ONLY numbers")


def test_a_table_that_is_created_again_gives_nobody_more_rights(tmp_path: Path) -> None:
    """A column in the middle has another type: the table is created again, in the order of columns."""
    with sql_server(tmp_path) as server:
        server.lake.add_column()
        server.lake.insert([1000])
        server.cut()
        server.add_user("partial", "--no-tables")
        with server.admin() as admin:
            admin.execute(
                "REVOKE SELECT ON numbers FROM headrace_reader; GRANT USAGE ON SCHEMA public TO partial;"
                "GRANT SELECT (id, extra) ON numbers TO partial"
            )
            before = admin.execute("SELECT 'numbers'::regclass::oid::int8").fetchone()
        server.lake.retype_column()
        server.lake.copy_again(rows=3)

        def is_created_again() -> bool:
            with server.admin() as admin:
                row = admin.execute("SELECT 'numbers'::regclass::oid::int8").fetchone()
                return row != before

        server.until("the table is created again", is_created_again)
        with server.connect() as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
            count(connection)
        with server.connect("partial") as connection:
            assert connection.execute("SELECT max(extra) FROM numbers").fetchone() == (4,)
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute("SELECT note FROM numbers")


def test_a_cancel_request_ends_a_statement_of_the_lake(server: SqlServer) -> None:
    heavy = "SELECT count(*) FROM numbers a, numbers b, numbers c, numbers d, numbers e WHERE a.id + b.id + c.id + d.id + e.id = -1"
    with server.connect() as connection:
        ended: list[BaseException] = []

        def run() -> None:
            try:
                connection.execute(heavy)
            except psycopg.Error as error:
                ended.append(error)

        thread = threading.Thread(target=run)
        started = time.monotonic()
        thread.start()
        while thread.is_alive() and time.monotonic() < started + 60:
            connection.cancel_safe()
            thread.join(0.1)
        assert [type(error) for error in ended] == [psycopg.errors.QueryCanceled]
        assert count(connection) > 0


def _last_query(server: SqlServer, pid: int, part: str) -> bool:
    """Whether the session's last query in the private PostgreSQL has this part."""
    with server.admin() as admin:
        row = admin.execute("SELECT query FROM pg_stat_activity WHERE pid = %s", [pid]).fetchone()
    return row is not None and part in row[0]


@pytest.mark.parametrize("user", [READER, "leaving"])
def test_a_session_that_is_terminated_ends_its_statement_of_the_lake(
    server: SqlServer, user: str
) -> None:
    """Also where DuckDB runs it: by `pg_terminate_backend`, or because its user is dropped."""
    heavy = "SELECT count(*) FROM numbers a, numbers b, numbers c, numbers d, numbers e WHERE a.id + b.id + c.id + d.id + e.id = -1"
    server.add_user(user)
    ended: list[str | None] = []
    with server.connect(user) as connection:

        def run() -> None:
            try:
                connection.execute(heavy)
            except psycopg.OperationalError as error:
                ended.append(error.sqlstate)

        thread = threading.Thread(target=run)
        thread.start()
        pid = connection.info.backend_pid
        server.until("the statement runs", partial(_last_query, server, pid, "session_state"))
        if user == READER:
            assert server.rows("SELECT pg_terminate_backend(%s)", [pid]) == [(True,)]
        else:
            done = server.command("sql", "users", "drop", user)
            assert done.returncode == 0, done.stderr
        thread.join(60)
    assert ended == ["57P01"]


def test_a_statement_timeout_ends_a_statement_of_the_lake(server: SqlServer) -> None:
    heavy = "SELECT count(*) FROM numbers a, numbers b, numbers c, numbers d, numbers e WHERE a.id + b.id + c.id + d.id + e.id = -1"
    with server.connect(options="-c statement_timeout=300") as connection:
        with pytest.raises(psycopg.errors.QueryCanceled, match="statement timeout"):
            connection.execute(heavy)
        connection.execute("SET statement_timeout = 0")
        assert count(connection) > 0
