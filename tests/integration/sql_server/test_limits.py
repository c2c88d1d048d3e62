"""The SQL server's limits, and TLS."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path
from urllib.request import urlopen

import psycopg
import pytest

from headrace.embedded.ports import free_port
from headrace.testing.certificates import Authority
from tests.support.sql_front import SqlServer, sql_server


def test_connections_beyond_the_limit_are_refused_and_later_ones_are_not(tmp_path: Path) -> None:
    with sql_server(tmp_path, HEADRACE_SQL_CONNECTIONS_MAX="2") as server:
        with (
            server.connect(),
            server.connect(),
            pytest.raises(psycopg.OperationalError, match="too many clients already"),
        ):
            server.connect()
        server.until("a place is free", lambda: _connects(server))


def _connects(server: SqlServer) -> bool:
    try:
        server.connect().close()
    except psycopg.OperationalError:
        return False
    return True


def test_a_result_with_too_many_rows_ends_with_an_error_and_an_idle_session_is_closed(
    tmp_path: Path,
) -> None:
    limits = {"HEADRACE_SQL_RESULT_ROWS_MAX": "10", "HEADRACE_SQL_IDLE_TIMEOUT_S": "0.5"}
    with sql_server(tmp_path, **limits) as server, server.connect() as connection:
        assert len(connection.execute("SELECT id FROM numbers LIMIT 10").fetchall()) == 10
        with pytest.raises(psycopg.errors.ProgramLimitExceeded):
            connection.execute("SELECT id FROM numbers")
        # Without a statement the server ends the session, and the socket has its last words.
        server.until("the session is closed", lambda: _is_closed(connection))


def _is_closed(connection: psycopg.Connection[object]) -> bool:
    with socket.socket(fileno=os.dup(connection.fileno())) as peer:
        peer.setblocking(False)
        try:
            return b"idle-session timeout" in peer.recv(1000, socket.MSG_PEEK)
        except BlockingIOError:
            return False


def test_tls_encrypts_and_a_connection_without_it_is_refused(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.server()
    tls = {
        "HEADRACE_SQL_TLS_CERT": str(pair.certificate),
        "HEADRACE_SQL_TLS_KEY": str(pair.key),
        "HEADRACE_SQL_TLS_REQUIRED": "true",
    }
    with sql_server(tmp_path, **tls) as server:
        verified = {"sslmode": "verify-full", "sslrootcert": str(authority.certificate)}
        with server.connect(**verified) as connection:
            assert connection.pgconn.ssl_in_use
            assert connection.execute("SELECT count(*) FROM numbers").fetchone() == (100,)
        with pytest.raises(psycopg.OperationalError, match="requires TLS"):
            server.connect(sslmode="disable")


@pytest.mark.parametrize(
    "first",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        struct.pack("!ii", 8, 2 << 16),
        struct.pack("!ii", 1 << 30, 196608),
        struct.pack("!ii", 4, 0),
        struct.pack("!ii", 12, 196608) + b"user",
    ],
)
def test_bytes_that_are_no_login_close_only_their_own_connection(
    front: SqlServer, first: bytes
) -> None:
    with socket.create_connection(("127.0.0.1", front.port), timeout=20) as peer:
        peer.sendall(first)
        assert peer.recv(1000)[:1] == b"E"
        assert peer.recv(1000) == b""
    assert front.rows("SELECT count(*) FROM numbers") == [(100,)]


def test_a_client_that_leaves_in_a_statement_leaves_the_server_to_others(front: SqlServer) -> None:
    for _ in range(5):
        connection = front.connect()
        connection.pgconn.send_query(b"SELECT a.id FROM numbers a, numbers b, numbers c")
        connection.pgconn.flush()
        # As a killed client: its socket is closed without a word.
        with socket.socket(fileno=os.dup(connection.fileno())) as peer:
            peer.shutdown(socket.SHUT_RDWR)
        connection.close()
    assert front.rows("SELECT count(*) FROM numbers") == [(100,)]


def test_statements_rows_and_errors_are_counted(tmp_path: Path) -> None:
    port = free_port()
    with sql_server(tmp_path, HEADRACE_HTTP_PORT=str(port)) as server:
        with server.connect() as connection:
            assert len(connection.execute("SELECT id FROM numbers").fetchall()) == 100
            with pytest.raises(psycopg.errors.FeatureNotSupported):
                connection.execute("SELECT id FROM ONLY numbers")
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
            text = answer.read().decode()
    found = {
        line.partition("{")[0]: float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.startswith("headrace_sql_")
    }
    assert found["headrace_sql_statements_total"] == 1
    assert found["headrace_sql_rows_total"] == 100
    assert found["headrace_sql_lsn"] == 101
    assert 'sqlstate="0A000"' in text
