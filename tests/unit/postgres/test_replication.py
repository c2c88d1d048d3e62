"""The replication connection, on a libpq connection that is played by the test."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections import deque
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from psycopg import pq

from headrace.lsn import parse_lsn
from headrace.postgres import replication
from headrace.postgres.connection import (
    PostgresError,
    PostgresRefusedError,
    PostgresUnreachableError,
)
from headrace.postgres.replication import (
    ExportedSnapshot,
    Keepalive,
    ReplicationConnection,
    SlotState,
    SystemIdentity,
    conninfo,
)
from headrace.postgres.replication_errors import (
    ReplicationRefusedError,
    SlotBusyError,
    SlotLostError,
    SlotMissingError,
)
from headrace.settings import PostgresSettings

SETTINGS = PostgresSettings(host="db", port=5433, database="app", user="u", password="p")
# PostgreSQL counts microseconds from 2000-01-01.
EPOCH_S = 946_684_800


class Result:
    """An answer: rows of texts, or an error."""

    def __init__(
        self, *rows: tuple[str | None, ...], status: Any = pq.ExecStatus.TUPLES_OK, **error: str
    ) -> None:
        self.rows = rows
        self.status = status
        self.error = error
        self.ntuples = len(rows)
        self.nfields = len(rows[0]) if rows else 0

    def get_value(self, row: int, column: int) -> bytes | None:
        value = self.rows[row][column]
        return None if value is None else value.encode()

    def error_field(self, which: pq.DiagnosticField) -> bytes | None:
        name = {pq.DiagnosticField.SQLSTATE: "state", pq.DiagnosticField.MESSAGE_PRIMARY: "text"}
        value = self.error.get(name[which])
        return None if value is None else value.encode()

    def get_error_message(self) -> str:
        return self.error.get("whole", "")


def refused(state: str, text: str) -> Result:
    return Result(status=pq.ExecStatus.FATAL_ERROR, state=state, text=text)


class Server:
    """libpq's connection, and what the server behind it does."""

    def __init__(self) -> None:
        ours, self.other = socket.socketpair()
        self.ours = ours
        ours.setblocking(False)
        self.socket = ours.fileno()
        self.version = 160_004
        self.encoding = b"UTF8"
        self.polls = deque([pq.PollingStatus.OK])
        self.error = ""
        self.nonblocking = 0
        self.status = pq.ConnStatus.OK
        self.backend_pid = 4711
        self.finished = 0
        # Commands that were sent, and the answers to the next ones.
        self.commands: list[str] = []
        self.answers: deque[list[Any]] = deque()
        self.results: deque[Any] = deque()
        # The server answers when the socket was read this often.
        self.busy = 0
        self.flushes = 0
        self.flush_error: Exception | None = None
        # Copied data that has arrived, and that arrives with the next reading.
        self.copied: deque[bytes | None] = deque()
        self.coming: deque[bytes | None] = deque()
        self.sent: list[bytes] = []
        self.broken: Exception | None = None

    @property
    def server_version(self) -> int:
        return self.version

    def connect_poll(self) -> pq.PollingStatus:
        """Each stage ends while the event loop turns."""
        if len(self.polls) > 1:
            asyncio.get_running_loop().call_soon(self.polls.popleft)
        return self.polls[0]

    def parameter_status(self, name: bytes) -> bytes:
        assert name == b"server_encoding"
        return self.encoding

    def get_error_message(self) -> str:
        return self.error

    def finish(self) -> None:
        self.finished += 1

    def send_query(self, command: bytes) -> None:
        self.commands.append(command.decode())
        self.results = deque(self.answers.popleft() if self.answers else [Result()])
        self.results.append(None)

    def flush(self) -> int:
        if self.flush_error is not None:
            raise self.flush_error
        if self.flushes:
            asyncio.get_running_loop().call_soon(self._flushed)
        return self.flushes

    def _flushed(self) -> None:
        """The socket takes more while the event loop turns."""
        self.flushes = max(0, self.flushes - 1)

    def is_busy(self) -> int:
        return self.busy

    def consume_input(self) -> None:
        if self.broken is not None:
            raise self.broken
        self.busy = max(0, self.busy - 1)
        self.copied += self.coming
        self.coming.clear()

    def get_result(self) -> Any:
        return self.results.popleft() if self.results else None

    def get_copy_data(self, asynchronous: int) -> tuple[int, memoryview]:
        assert asynchronous == 1
        if not self.copied:
            return 0, memoryview(b"")
        data = self.copied.popleft()
        if data is None:
            return -1, memoryview(b"")
        return len(data), memoryview(data)

    def put_copy_data(self, data: bytes) -> None:
        self.sent.append(data)

    def arrives(self) -> None:
        """Bytes are there to be read."""
        self.other.send(b"x")


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    made = Server()
    libpq = SimpleNamespace(**vars(pq))
    libpq.PGconn = SimpleNamespace(connect_start=lambda _: made)
    monkeypatch.setattr(replication, "pq", libpq)
    yield made
    made.ours.close()
    made.other.close()


async def opened(server: Server) -> ReplicationConnection:
    connection = await ReplicationConnection.open(SETTINGS, "headrace test")
    assert server.nonblocking == 1
    server.commands.clear()
    return connection


# Connecting.


def test_the_connection_string_names_what_is_set_and_leaves_the_rest_to_libpq() -> None:
    text = conninfo(SETTINGS, "headrace test")
    for part in (
        "host=db",
        "port=5433",
        "dbname=app",
        "user=u",
        "password=p",
        "replication=database",
        "application_name='headrace test'",
        "client_encoding=UTF8",
        "keepalives_idle=10",
        "keepalives_interval=5",
        "keepalives_count=3",
    ):
        assert part in text
    assert "-c DateStyle=ISO" in text or "-c datestyle=ISO" in text
    empty = conninfo(PostgresSettings(host=None, password=None), "x")
    assert "host=" not in empty
    assert "password=" not in empty


async def test_connecting_waits_until_libpq_is_ready(server: Server) -> None:
    server.polls = deque([pq.PollingStatus.WRITING, pq.PollingStatus.READING, pq.PollingStatus.OK])
    server.arrives()
    connection = await opened(server)
    assert connection.backend_pid == 4711
    connection.close()
    assert server.finished == 1


async def test_a_refused_connection_is_explained_and_closed(server: Server) -> None:
    server.polls = deque([pq.PollingStatus.FAILED])
    server.error = (
        'connection to server at "db" failed: FATAL:  password authentication failed for user "u"'
    )
    with pytest.raises(PostgresRefusedError, match="password authentication failed") as found:
        await ReplicationConnection.open(SETTINGS, "x")
    assert "connection to server" not in str(found.value)
    assert server.finished == 1


async def test_a_server_that_does_not_answer_is_unavailable(server: Server) -> None:
    settings = PostgresSettings(connect_timeout_s=1)
    server.polls = deque([pq.PollingStatus.READING])
    with pytest.raises(PostgresUnreachableError, match="did not answer in time"):
        await ReplicationConnection.open(settings, "x")
    assert server.finished == 1


@pytest.mark.parametrize(
    ("version", "encoding", "commands"),
    [
        (160_004, b"UTF8", []),
        (170_000, b"UTF8", ["SET transaction_timeout = 0"]),
        (160_004, b"SQL_ASCII", ["SET client_encoding TO 'SQL_ASCII'"]),
    ],
)
async def test_a_session_is_prepared_for_its_server(
    server: Server, version: int, encoding: bytes, commands: list[str]
) -> None:
    server.version = version
    server.encoding = encoding
    await ReplicationConnection.open(SETTINGS, "x")
    assert server.commands == commands


# Queries.


async def test_the_server_identifies_itself(server: Server) -> None:
    connection = await opened(server)
    server.answers.append([Result(("7300", "3", "1/A0", "app"))])
    assert await connection.identify() == SystemIdentity("7300", 3, 0x1_0000_00A0, "app")
    assert server.commands == ["IDENTIFY_SYSTEM"]
    server.answers.append([Result(("7300", "3", "1/A0", None))])
    with pytest.raises(ReplicationRefusedError, match="no database"):
        await connection.identify()


async def test_the_ends_of_earlier_timelines_are_read_from_the_history(server: Server) -> None:
    connection = await opened(server)
    history = "1\t0/3000\tno recovery target\n\n2\t0/5000\tbefore\nx\t0/1\n7\n4\t0/7000\n"
    server.answers.append([Result(("00000003.history", history))])
    assert await connection.forks(3) == ((1, 0x3000), (2, 0x5000), (4, 0x7000))
    assert server.commands == ["TIMELINE_HISTORY 3"]
    assert await connection.forks(1) == ()
    assert len(server.commands) == 1


async def test_the_second_timeline_has_a_history(server: Server) -> None:
    connection = await opened(server)
    server.answers.append([Result(("00000002.history", "1\t0/3000\tx"))])
    assert await connection.forks(2) == ((1, 0x3000),)


async def test_a_slot_is_shown_as_it_is(server: Server) -> None:
    connection = await opened(server)
    server.answers.append([Result(("0/20", "pgoutput", "app", "reserved", "f", "f"))])
    assert await connection.slot("it's") == SlotState(0x20, "pgoutput", "app", "reserved")
    assert server.commands[0].endswith("WHERE slot_name = 'it''s'")
    server.answers.append([Result(("0/20", "pgoutput", "app", "reserved", "t", "t"))])
    used = SlotState(0x20, "pgoutput", "app", "reserved", used=True, two_phase=True)
    assert await connection.slot("s") == used
    server.answers.append([Result((None, None, None, None, None, None))])
    assert await connection.slot("s") == SlotState(0, "", "", "")
    server.answers.append([Result()])
    assert await connection.slot("s") is None


async def test_the_reader_of_a_slot_is_found(server: Server) -> None:
    connection = await opened(server)
    server.answers.append([Result(("12", "psql", "10.0.0.1", "now", None))])
    reader = await connection.slot_reader("s")
    assert reader is not None
    assert (reader.pid, reader.application, reader.client) == (12, "psql", "10.0.0.1")
    assert server.commands[0].endswith("s.slot_name = 's'")
    server.answers.append([Result()])
    assert await connection.slot_reader("s") is None


async def test_small_questions_have_their_answers(server: Server) -> None:
    connection = await opened(server)
    server.answers.append([Result(("t",))])
    assert await connection.is_standby()
    server.answers.append([Result(("f",))])
    assert not await connection.is_standby()
    server.answers.append([Result(("1",))])
    assert await connection.has_publication("p")
    server.answers.append([Result()])
    assert not await connection.has_publication("p")
    await connection.end_backend(12)
    assert server.commands[-1] == "SELECT pg_catalog.pg_terminate_backend(12)"


async def test_slots_are_created_and_dropped(server: Server) -> None:
    connection = await opened(server)
    await connection.create_slot("s", failover=False)
    await connection.create_slot("s", failover=True)
    await connection.drop_slot("s")
    server.answers.append([Result(("s", "0/30", "0003-1", "pgoutput"))])
    assert await connection.export_snapshot("t") == ExportedSnapshot(0x30, "0003-1")
    assert server.commands == [
        """CREATE_REPLICATION_SLOT "s" LOGICAL pgoutput (SNAPSHOT 'nothing')""",
        """CREATE_REPLICATION_SLOT "s" LOGICAL pgoutput (SNAPSHOT 'nothing', FAILOVER)""",
        'DROP_REPLICATION_SLOT "s"',
        """CREATE_REPLICATION_SLOT "t" TEMPORARY LOGICAL pgoutput (SNAPSHOT 'export')""",
    ]


async def test_an_answer_is_waited_for_and_read_to_its_end(server: Server) -> None:
    connection = await opened(server)
    server.answers.append([Result(("t",)), Result()])
    server.busy = 2
    server.arrives()
    assert await connection.is_standby()
    assert not server.results, "a rest would block the next command"


async def test_a_refusal_is_explained_and_read_to_its_end(server: Server) -> None:
    connection = await opened(server)
    server.answers.append([refused("55006", "slot is active"), Result()])
    with pytest.raises(SlotBusyError, match="slot is active"):
        await connection.drop_slot("s")
    assert not server.results
    server.answers.append([refused("42704", 'replication slot "s" does not exist')])
    with pytest.raises(SlotMissingError):
        await connection.drop_slot("s")


async def test_a_refusal_without_details_has_the_whole_text(server: Server) -> None:
    connection = await opened(server)
    failed = Result(status=pq.ExecStatus.FATAL_ERROR, whole="FATAL: terminating")
    server.answers.append([failed])
    with pytest.raises(PostgresUnreachableError, match="terminating"):
        await connection.drop_slot("s")


async def test_a_server_that_does_not_answer_a_command_is_unavailable(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replication, "_ANSWER_TIMEOUT_S", 0.05)
    connection = await opened(server)
    server.busy = 1
    with pytest.raises(PostgresUnreachableError, match="did not answer"):
        await connection.start("s", "p")


async def test_a_connection_that_ends_during_a_command_is_unavailable(server: Server) -> None:
    connection = await opened(server)
    server.answers.append([])
    server.error = "server closed the connection unexpectedly\n"
    with pytest.raises(PostgresUnreachableError, match="stream ended: server closed the conn"):
        await connection.is_standby()
    server.answers.append([])
    server.error = ""
    with pytest.raises(PostgresUnreachableError, match="the server closed it"):
        await connection.is_standby()


# Streaming.


def xlog(start: int, payload: bytes) -> bytes:
    return struct.pack(">cQQq", b"w", start, start + 100, 5) + payload


def keepalive(lsn: int, wanted: int) -> bytes:
    return struct.pack(">cQqB", b"k", lsn, 5, wanted)


async def started(server: Server) -> ReplicationConnection:
    connection = await opened(server)
    server.answers.append([Result(status=pq.ExecStatus.COPY_BOTH)])
    await connection.start("s", "p")
    return connection


async def test_streaming_starts_at_the_slots_confirmed_lsn(server: Server) -> None:
    connection = await opened(server)
    server.answers.append([Result(status=pq.ExecStatus.COPY_BOTH)])
    await connection.start("s", "it's")
    options = """proto_version '1', publication_names '"it''s"', messages 'true'"""
    assert server.commands == [f'START_REPLICATION SLOT "s" LOGICAL 0/0 ({options})']
    server.answers.append([refused("55000", "can no longer get changes from replication slot")])
    with pytest.raises(SlotLostError):
        await connection.start("s", "p")


async def test_messages_come_with_their_lsn_and_keepalives_with_theirs(server: Server) -> None:
    connection = await started(server)
    server.copied += [xlog(7, b"B1"), keepalive(9, 1), xlog(8, b""), keepalive(10, 0)]
    assert connection.read_now() == [
        (7, b"B1"),
        Keepalive(9, reply_wanted=True),
        (8, b""),
        Keepalive(10, reply_wanted=False),
    ]
    assert connection.read_now() == []


@pytest.mark.parametrize("data", [b"x", b"k", b"w123"])
async def test_a_malformed_message_is_an_error(server: Server, data: bytes) -> None:
    connection = await started(server)
    server.copied.append(data)
    with pytest.raises((PostgresError, struct.error)):
        connection.read_now()


async def test_the_socket_is_read_once_nothing_is_left(server: Server) -> None:
    connection = await started(server)
    server.copied.append(xlog(7, b"1"))
    server.coming.append(xlog(8, b"2"))
    assert connection.read_now() == [(7, b"1")]
    assert connection.read_now() == [(8, b"2")]


async def test_a_reading_is_bounded(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replication, "_BATCH_MESSAGES", 3)
    connection = await started(server)
    server.copied += [xlog(number, b"x") for number in range(5)]
    assert [lsn for lsn, _ in connection.read_now()] == [0, 1, 2]  # type: ignore[misc]  # no keepalive
    assert [lsn for lsn, _ in connection.read_now()] == [3, 4]  # type: ignore[misc]  # as above


async def test_reading_waits_for_the_first_message(server: Server) -> None:
    connection = await started(server)
    assert await connection.read(0) == []
    assert await connection.read(0.01) == []

    async def send() -> None:
        server.coming.append(xlog(7, b"1"))
        server.arrives()

    asyncio.get_running_loop().call_later(0.02, lambda: asyncio.ensure_future(send()))
    assert await connection.read(0.9) == [(7, b"1")]
    assert not asyncio.get_running_loop().remove_reader(server.socket), "it is no longer watched"
    server.copied.append(xlog(8, b"2"))
    assert await connection.read(30.0) == [(8, b"2")]


async def test_a_wait_can_be_interrupted(server: Server) -> None:
    connection = await started(server)
    connection.interrupt()
    reading = asyncio.ensure_future(connection.read(30.0))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    connection.interrupt()
    connection.interrupt()
    assert await reading == []


async def test_messages_before_the_end_of_the_stream_are_returned_first(server: Server) -> None:
    connection = await started(server)
    server.copied += [xlog(7, b"1"), None]
    server.results = deque([refused("57P01", "terminating connection")])
    assert connection.read_now() == [(7, b"1")]
    server.copied.append(None)
    with pytest.raises(PostgresUnreachableError, match="terminating connection"):
        connection.read_now()


async def test_a_lost_connection_is_unavailable(server: Server) -> None:
    connection = await started(server)
    server.broken = RuntimeError("SSL error \n")
    with pytest.raises(PostgresUnreachableError, match=r"was lost: SSL error\."):
        connection.read_now()


async def test_a_status_reports_what_was_received_and_what_is_durable(server: Server) -> None:
    connection = await started(server)
    await connection.status(30, 20)
    await connection.status(10, 20, answer=True)
    first, second = (struct.unpack(">cQQQqB", one) for one in server.sent)
    assert first[:4] == (b"r", 30, 20, 20)
    assert second[:4] == (b"r", 20, 20, 20), "what is durable was received"
    assert (first[5], second[5]) == (0, 1)
    assert abs(first[4] / 1e6 + EPOCH_S - time.time()) < 60


async def test_a_status_is_sent_to_its_end(server: Server) -> None:
    connection = await started(server)
    server.flushes = 3
    await connection.status(1, 1)
    assert server.flushes == 0


@pytest.mark.parametrize("error", [OSError("reset"), RuntimeError("reset")])
async def test_a_status_on_a_lost_connection_is_unavailable(
    server: Server, error: Exception
) -> None:
    connection = await started(server)
    server.flush_error = error
    server.status = pq.ConnStatus.BAD
    with pytest.raises(PostgresUnreachableError, match="was lost: reset"):
        await connection.status(1, 1)


async def test_an_error_on_a_good_connection_is_no_loss(server: Server) -> None:
    connection = await started(server)
    server.flush_error = RuntimeError("a defect")
    with pytest.raises(RuntimeError, match="a defect"):
        await connection.status(1, 1)


def test_lsns_are_read_as_postgresql_writes_them() -> None:
    assert parse_lsn("1/A0") == 0x1_0000_00A0
