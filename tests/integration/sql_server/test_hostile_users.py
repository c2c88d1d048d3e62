"""A hostile user gets one clear error for each statement, and others are answered meanwhile."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Iterator

import psycopg
import pytest

from tests.support.sql_front import SqlServer, sql_server

LIMITS = {"HEADRACE_SQL_CONNECTIONS_MAX": "12", "HEADRACE_SQL_MEMORY_MB": "256", "HEADRACE_SQL_SPILL_MB": "64"}  # fmt: skip
NESTED = 20_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlServer]:
    with sql_server(tmp_path_factory.mktemp("hostile"), **LIMITS) as made:
        with made.admin() as admin:
            admin.execute("ALTER ROLE reader SET statement_timeout = '20s'")
        yield made


def outcome(connection: psycopg.Connection[object], statement: str) -> str | None:
    """The SQLSTATE of a statement's error; empty without one."""
    try:
        connection.execute(statement).fetchall()
    except psycopg.Error as error:
        return error.sqlstate
    return ""


def others_are_answered(server: SqlServer) -> None:
    assert server.rows("SELECT count(*) FROM numbers") == [(100,)]


@pytest.mark.parametrize(
    ("statement", "sqlstates"),
    [
        ("SELECT count(*) FROM generate_series(1, 1000000000000)", ("57014", "53400")),
        ("SELECT count(*) FROM numbers, generate_series(1, 1000000000000)", ("57014", "53400")),
        ("SELECT array_agg(g) FROM numbers, generate_series(1, 1000000000000) g", ("54000", "57014", "53200", "53400")),
        ("SELECT count(*) FROM numbers a, numbers b, numbers c, numbers d, numbers e, numbers f, numbers g", ("57014",)),
        ("SELECT repeat('x', 2000000000) FROM numbers", ("54000",)),
        ("SELECT count(*) FROM numbers WHERE note ~ '^(((a*)*)*)*$' OR repeat('a', 50000) ~ '(x+x+)+y'", ()),
        ("SELECT note ~ ('(' || repeat('a?', 3000) || repeat('a', 3000) || ')\\1') FROM numbers", ("2201B", "57014")),
        ("SELECT pg_sleep(1000) FROM numbers", ("57014",)),
        ("SELECT " + "(" * NESTED + "1" + ")" * NESTED + " FROM numbers", ("42601", "54001", "0A000")),
        ("SELECT " + "abs(" * 900 + "id" + ")" * 900 + " FROM numbers", ("54001", "0A000")),
        ("CREATE TEMP TABLE big AS SELECT generate_series(1, 1000000000)", ("42501",)),
        ("SELECT * INTO TEMP big FROM generate_series(1, 10)", ("42501",)),
        ("COPY (SELECT 1) TO PROGRAM 'id'", ("42501",)),
        ("COPY (SELECT id FROM numbers) TO PROGRAM 'id'", ("0A000", "42501")),
        ("SELECT * FROM read_csv('/etc/passwd')", ("42883",)),
        ("SELECT pg_read_file('/etc/passwd') FROM numbers", ("42501",)),
        ("SELECT set_config('session_authorization', 'headrace', false) FROM numbers", ("42501",)),
        ("SELECT set_config('role', 'headrace', false) FROM numbers", ("42501",)),
    ],
    ids=lambda value: str(value)[:60],
)  # fmt: skip
def test_a_statement_ends_with_one_clear_error(
    server: SqlServer, statement: str, sqlstates: tuple[str, ...]
) -> None:
    with server.connect() as connection:
        assert outcome(connection, statement) in (sqlstates or ("",))
    others_are_answered(server)


def test_a_long_list_is_answered(server: SqlServer) -> None:
    listed = ",".join(map(str, range(50, 50_050)))
    assert server.rows(f"SELECT count(*) FROM numbers WHERE id IN ({listed})") == [(50,)]


def test_connections_beyond_the_limit_are_refused_at_once_and_others_are_answered(
    server: SqlServer,
) -> None:
    """Clients that connect and say nothing, and clients that connect and leave."""
    with server.connect() as connection:
        silent = [socket.create_connection(("127.0.0.1", server.port), 20) for _ in range(300)]
        try:
            for _ in range(5):
                assert connection.execute("SELECT count(*) FROM numbers").fetchone() == (100,)
        finally:
            for each in silent:
                each.close()
    server.until("a login succeeds", lambda: _logs_in(server))


def _logs_in(server: SqlServer) -> bool:
    try:
        server.connect().close()
    except psycopg.OperationalError:
        return False
    return True


def test_a_client_that_reads_nothing_holds_up_nobody(server: SqlServer) -> None:
    """Its rows wait in its socket, and others read the same tables, also a later cut."""
    slow = server.connect(keepalives=0)
    slow.pgconn.send_query(b"SELECT a.*, b.*, c.* FROM numbers a, numbers b, numbers c")
    slow.pgconn.flush()
    exact = server.connect()
    exact.pgconn.send_query(b"SELECT a.*, g FROM numbers a, generate_series(1, 100000) g")
    exact.pgconn.flush()
    try:
        for _ in range(3):
            started = time.monotonic()
            others_are_answered(server)
            server.lake.update([1], "note 1")
            server.cut()
            assert server.rows("SELECT sum(id::float8) FROM numbers") == [(4950.0,)]
            assert time.monotonic() - started < 60
    finally:
        for each in (slow, exact):
            with socket.socket(fileno=os.dup(each.fileno())) as peer:
                peer.shutdown(socket.SHUT_RDWR)
            each.close()


def test_messages_that_are_too_large_end_only_their_connection(server: SqlServer) -> None:
    with server.connect() as connection:
        peer = socket.socket(fileno=os.dup(connection.fileno()))
        with peer:
            peer.sendall(b"Q" + struct.pack("!i", (1 << 30) - 1))
            peer.settimeout(20)
            assert peer.recv(1000)[:1] == b"E"
    others_are_answered(server)


def test_sessions_that_prepare_without_end_stay_apart(server: SqlServer) -> None:
    with server.connect() as connection:
        for number in range(300):
            connection.execute(f"PREPARE p{number} AS SELECT id FROM numbers WHERE id = {number}")
        assert connection.execute("EXECUTE p7").fetchall() == [(7,)]
    others_are_answered(server)


def test_errors_of_many_clients_at_once_are_theirs_alone(server: SqlServer) -> None:
    wrong: list[object] = []

    def fail_often() -> None:
        with server.connect() as connection:
            for number in range(20):
                try:
                    connection.execute(f"SELECT id / (id - {number}) FROM numbers")
                except psycopg.errors.DivisionByZero:
                    continue
                wrong.append(number)

    threads = [threading.Thread(target=fail_often) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    others_are_answered(server)
