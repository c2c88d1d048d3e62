"""A prepared statement reads what its names mean when it runs, as in PostgreSQL."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import pq

from headrace.lake.catalog import TableName
from tests.support.local_lake import numbered
from tests.support.sql_front import SqlServer, sql_server

OTHER = TableName("shop", "numbers")
COUNT = "SELECT count(*) FROM numbers"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlServer]:
    """A lake with `public.numbers` of 100 rows and `shop.numbers` of 10."""
    with sql_server(tmp_path_factory.mktemp("names")) as server:
        server.lake.create_with(numbered(10), OTHER)
        server.lake.update([0], "note 0")
        server.cut()
        server.add_user("viewer", "--no-tables")
        yield server


def value(connection: psycopg.Connection[Any], statement: str) -> object:
    """The one value of a statement, which the client prepares."""
    row = connection.execute(statement, prepare=True).fetchone()
    assert row is not None
    return row[0]


def run(connection: psycopg.Connection[Any], name: bytes) -> bytes:
    """The data of a statement that was prepared by the protocol: of COPY, or of its rows."""
    result = connection.pgconn.exec_prepared(name, [])
    found: list[bytes] = []
    if result.status == pq.ExecStatus.COPY_OUT:
        while (part := connection.pgconn.get_copy_data(0))[0] > 0:
            found.append(bytes(part[1]))
        while connection.pgconn.get_result() is not None:
            pass
    assert result.status != pq.ExecStatus.FATAL_ERROR, result.get_error_message()
    found += [result.get_value(row, 0) or b"" for row in range(result.ntuples)]
    return b"".join(found)


def parse_message(name: str, text: str) -> bytes:
    return _framed(b"P", name.encode() + b"\0" + text.encode() + b"\0\0\0")


def bind_message(portal: str, name: str) -> bytes:
    return _framed(b"B", portal.encode() + b"\0" + name.encode() + b"\0" + b"\0" * 6)


def execute_message(portal: str) -> bytes:
    return _framed(b"E", portal.encode() + b"\0" + struct.pack("!i", 0))


def _framed(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


def values_of(connection: psycopg.Connection[Any], messages: bytes) -> list[str]:
    """The first columns of the rows that come for these messages, up to ReadyForQuery."""
    found = []
    with socket.socket(fileno=os.dup(connection.fileno())) as peer:
        peer.settimeout(60)
        peer.sendall(messages)
        with peer.makefile("rb") as stream:
            kind = b""
            while kind != b"Z":
                kind, length = stream.read(1), struct.unpack("!i", stream.read(4))[0]
                body = stream.read(length - 4)
                assert kind != b"E", body
                if kind == b"D":
                    found.append(body[6 : 6 + struct.unpack("!i", body[2:6])[0]].decode())
    return found


@pytest.mark.parametrize(
    ("text", "public", "shop"),
    [
        (COUNT, 100, 10),
        # PostgreSQL itself runs it.
        ("SELECT sum(id::float8) FROM numbers", 4950.0, 45.0),
        # An error would show the rows of the table before.
        ("SELECT 1 / (count(*) - 100) FROM numbers WHERE id < 50", 0, 0),
    ],
)
def test_a_prepared_statement_follows_search_path(
    server: SqlServer, text: str, public: object, shop: object
) -> None:
    with server.connect() as connection:
        connection.execute(f"PREPARE named AS {text}")
        for path, expected in (("public", public), ("shop", shop), ("shop, public", shop)) * 2:
            connection.execute(f"SET search_path = {path}")
            assert value(connection, text) == expected
            assert value(connection, "EXECUTE named") == expected


def test_a_prepared_statement_follows_a_path_that_ends_with_its_transaction(
    server: SqlServer,
) -> None:
    with server.connect() as connection:
        assert value(connection, COUNT) == 100
        for end in ("COMMIT", "ROLLBACK"):
            with connection.cursor() as cursor:
                cursor.execute("BEGIN")
                cursor.execute("SET LOCAL search_path = shop")
                assert value(connection, COUNT) == 10
                cursor.execute(end)
            assert value(connection, COUNT) == 100
        with connection.transaction():
            connection.execute("SAVEPOINT before")
            connection.execute("SET search_path = shop")
            assert value(connection, COUNT) == 10
            connection.execute("ROLLBACK TO before")
            assert value(connection, COUNT) == 100


def test_a_path_set_by_an_argument_counts(server: SqlServer) -> None:
    with server.connect() as connection:
        connection.execute("PREPARE named (text) AS SELECT count(*), $1 FROM numbers")
        assert connection.execute("EXECUTE named ('public')").fetchone() == (100, "public")
        connection.execute("EXECUTE named (set_config('search_path', 'shop', false))")
        assert connection.execute("EXECUTE named ('shop')").fetchone() == (10, "shop")


def test_a_portal_that_is_open_keeps_its_tables(server: SqlServer) -> None:
    """As in PostgreSQL, which plans it when it is bound."""
    # Parse, Bind A, SET, Bind B, Execute A, Execute B, Sync.
    sent = [
        parse_message("s", COUNT),
        bind_message("a", "s"),
        parse_message("set", "SET search_path = shop"),
        bind_message("set", "set"),
        execute_message("set"),
        bind_message("b", "s"),
        execute_message("a"),
        execute_message("b"),
        b"S\0\0\0\4",
    ]
    with server.connect() as connection:
        assert values_of(connection, b"".join(sent)) == ["100", "10"]


def test_a_path_set_by_a_function_over_the_lake_counts(server: SqlServer) -> None:
    with server.connect() as connection:
        assert value(connection, COUNT) == 100
        connection.execute(
            "SELECT set_config('search_path', 'shop', false) FROM numbers WHERE id = 1"
        )
        assert value(connection, COUNT) == 10


@pytest.mark.parametrize("setting", ["client_min_messages = error", "debug_print_rewritten = off"])
def test_a_prepared_statement_follows_search_path_without_the_analyzer_s_messages(
    server: SqlServer, setting: str
) -> None:
    with server.connect() as connection:
        assert value(connection, COUNT) == 100
        connection.execute(f"SET {setting}")
        connection.execute("SET search_path = shop")
        assert value(connection, COUNT) == 10


def test_copy_and_cursors_that_were_prepared_follow_search_path(server: SqlServer) -> None:
    with server.connect() as connection:
        connection.pgconn.prepare(b"copies", b"COPY numbers TO STDOUT")
        connection.pgconn.prepare(b"declares", b"DECLARE c CURSOR FOR " + COUNT.encode())
        for path, rows in (("public", 100), ("shop", 10)):
            connection.execute(f"SET search_path = {path}")
            assert run(connection, b"copies").count(b"\n") == rows
            with connection.transaction():
                run(connection, b"declares")
                assert value(connection, "FETCH c") == rows


def test_execute_runs_the_statement_that_has_the_name_now(server: SqlServer) -> None:
    with server.connect() as connection:
        connection.execute(f"PREPARE p AS {COUNT}")
        assert value(connection, "EXECUTE p") == 100
        connection.execute("DEALLOCATE p")
        with pytest.raises(psycopg.errors.InvalidSqlStatementName):
            value(connection, "EXECUTE p")
        connection.execute("PREPARE p AS SELECT max(id) FROM numbers")
        assert value(connection, "EXECUTE p") == 99
        connection.execute("DEALLOCATE p")
        connection.execute("PREPARE p AS SELECT 'no table'")
        assert value(connection, "EXECUTE p") == "no table"


def test_fetch_reads_the_cursor_that_has_the_name_now_with_its_types(server: SqlServer) -> None:
    with server.connect(autocommit=False) as connection:
        for query, expected in (
            ("SELECT id FROM numbers ORDER BY id", (0,)),
            ("SELECT '00' || id FROM numbers ORDER BY id", ("000",)),
            ("SELECT id, note FROM numbers ORDER BY id", (0, "note 0")),
            ("SELECT 'no table'", ("no table",)),
        ):
            connection.execute(f"DECLARE c CURSOR FOR {query}")
            assert connection.execute("FETCH c", prepare=True).fetchone() == expected
            connection.execute("CLOSE c", prepare=True)
        connection.commit()
        connection.execute("DECLARE c CURSOR WITH HOLD FOR SELECT id FROM numbers ORDER BY id")
        connection.commit()
        assert connection.execute("FETCH c", prepare=True).fetchone() == (0,)
        connection.execute("CLOSE c", prepare=True)
        with pytest.raises(psycopg.errors.InvalidCursorName):
            connection.execute("FETCH c", prepare=True)


@pytest.mark.parametrize("text", ["SELECT count(*) FROM few", "SELECT count(id::float8) FROM few"])
def test_a_view_that_was_narrowed_hides_its_rows_from_prepared_statements(
    server: SqlServer, text: str
) -> None:
    define = "CREATE OR REPLACE VIEW few AS SELECT id FROM numbers WHERE id < {};"
    with server.admin() as admin, server.connect("viewer") as connection:
        admin.execute(define.format(5) + "GRANT SELECT ON few TO viewer")
        connection.execute(f"PREPARE named AS {text}")
        for narrowed in (5, 2):
            admin.execute(define.format(narrowed))
            assert value(connection, text) == narrowed
            assert value(connection, "EXECUTE named") == narrowed
        with connection.transaction():
            assert value(connection, text) == 2
            admin.execute("SET lock_timeout = '100ms'")
            # As in PostgreSQL: the view stays as it is while a transaction has read it.
            with pytest.raises(psycopg.errors.LockNotAvailable):
                admin.execute(define.format(1))
        admin.execute("DROP VIEW few")
        for read in (text, "EXECUTE named"):
            with pytest.raises(psycopg.errors.UndefinedTable):
                value(connection, read)


def test_columns_of_another_type_are_refused_as_in_postgresql(server: SqlServer) -> None:
    define = "CREATE VIEW one AS SELECT {} AS v FROM numbers; GRANT SELECT ON one TO PUBLIC"
    with server.admin() as admin, server.connect() as connection:
        admin.execute(define.format("id"))
        text = "SELECT max(v) FROM one"
        assert value(connection, text) == 99
        admin.execute("DROP VIEW one")
        admin.execute(define.format("note"))
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="must not change result type"):
            value(connection, text)


def test_a_text_that_would_be_read_differently_is_refused(server: SqlServer) -> None:
    text = r"SELECT count(*) FROM numbers WHERE note <> 'a\\b'"
    with server.connect() as connection:
        connection.execute(f"PREPARE named AS {text}")
        connection.execute("SET standard_conforming_strings = off")
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="how its text is read"):
            connection.execute("EXECUTE named")
        connection.execute("SET standard_conforming_strings = on")
        assert connection.execute("EXECUTE named").fetchone() == (100,)


def test_a_prepared_statement_misses_a_column_that_was_renamed(server: SqlServer) -> None:
    with server.connect() as connection:
        text = "SELECT min(note) FROM public.numbers"
        assert value(connection, text) == "note 0"
        server.lake.rename_column()
        server.lake.update([0], "note 0")
        server.cut()
        with pytest.raises(psycopg.errors.UndefinedColumn):
            value(connection, text)
