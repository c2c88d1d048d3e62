"""The replication stream, over libpq: asyncpg has no replication mode (docs/adr/0003).

Promises raw pgoutput messages in the order in which PostgreSQL sends them, with their LSN, and
keepalives as marks. Confirms to PostgreSQL only the LSN that it is given. Never blocks: the event
loop watches the socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from psycopg import pq
from psycopg.conninfo import make_conninfo

from headrace.contract.scalars import NAME_SETTINGS, SESSION_SETTINGS
from headrace.lsn import parse_lsn
from headrace.pgoutput.messages import PG_EPOCH_US
from headrace.postgres import slot_reader
from headrace.postgres.connection import (
    NO_TIME_LIMITS,
    NO_TRANSACTION_TIMEOUT,
    PostgresError,
    PostgresUnreachableError,
    explained,
    has_transaction_timeout,
)
from headrace.postgres.quoting import quote_literal, quote_name
from headrace.postgres.replication_errors import (
    ReplicationRefusedError,
    refusal,
    state_of_refusal,
)
from headrace.postgres.slot_reader import SlotReader
from headrace.settings import PostgresSettings

# Messages of the streaming replication protocol, in network byte order: the kind, the LSNs,
# PostgreSQL's clock, flags.
_KEEPALIVE = struct.Struct(">xQQB")
_XLOG_DATA = struct.Struct(">xQQQ")
_XLOG_DATA_KIND = ord("w")
_STATUS = struct.Struct(">cQQQQB")
# The event loop must run between two batches, even if PostgreSQL sends without a pause.
_BATCH_MESSAGES = 512
# For commands that answer immediately, or not at all: on a half-open connection nothing else would
# end the wait.
_ANSWER_TIMEOUT_S = 30.0

# Creating a slot waits for the locks of older transactions.
_SESSION = {**NO_TIME_LIMITS, "lock_timeout": "0"}


@dataclass(frozen=True, slots=True)
class SystemIdentity:
    """The server's identity and timeline."""

    system_id: str
    timeline: int
    lsn: int
    database: str


@dataclass(frozen=True, slots=True)
class SlotState:
    """A replication slot."""

    confirmed_lsn: int
    plugin: str
    database: str
    wal_status: str
    # Whether it has delivered transactions, as far as PostgreSQL's statistics know.
    used: bool = False
    # Whether it sends transactions when they are prepared, and not when they are committed.
    two_phase: bool = False


@dataclass(frozen=True, slots=True)
class ExportedSnapshot:
    """A snapshot of exactly the transactions committed before `lsn`, and its name."""

    lsn: int
    name: str


@dataclass(frozen=True, slots=True)
class Keepalive:
    """PostgreSQL has sent everything before `lsn`."""

    lsn: int
    reply_wanted: bool


Message = tuple[int, bytes] | Keepalive


def conninfo(settings: PostgresSettings, application: str) -> str:
    """libpq's connection string; libpq's variables provide the rest."""
    session = {**SESSION_SETTINGS, **NAME_SETTINGS, **_SESSION}
    options = " ".join(f"-c {name}={value}" for name, value in session.items())
    given = {
        "host": settings.host,
        "port": settings.port,
        "dbname": settings.database,
        "user": settings.user,
        "password": settings.password,
    }
    return make_conninfo(
        **{key: str(value) for key, value in given.items() if value is not None},
        replication="database",
        application_name=application,
        options=options,
        connect_timeout=settings.connect_timeout_s,
        client_encoding="UTF8",
        # A half-open connection is found by TCP after about 25 s, even if nothing is to be sent.
        keepalives_idle=10,
        keepalives_interval=5,
        keepalives_count=3,
    )


class ReplicationConnection:
    """One connection in replication mode."""

    def __init__(self, settings: PostgresSettings, connection: pq.abc.PGconn) -> None:
        self._settings = settings
        self._pg = connection
        self._loop = asyncio.get_running_loop()
        # Pending while the event loop watches the socket.
        self._waiting: asyncio.Future[None] | None = None
        # The stream has ended; libpq reports it only once.
        self._over = False

    @classmethod
    async def open(cls, settings: PostgresSettings, application: str) -> ReplicationConnection:
        connection = pq.PGconn.connect_start(conninfo(settings, application).encode())
        self = cls(settings, connection)
        try:
            async with asyncio.timeout(settings.connect_timeout_s):
                await self._connect()
                # After connecting, which libpq does without blocking in any case.
                connection.nonblocking = 1
                await self._take_bytes_as_they_are()
                await self._take_as_long_as_it_takes()
        except TimeoutError as error:
            connection.finish()
            raise explained(None, "it did not answer in time", settings) from error
        except BaseException:
            connection.finish()
            raise
        return self

    def close(self) -> None:
        self._pg.finish()

    async def _connect(self) -> None:
        while True:
            status = self._pg.connect_poll()
            if status == pq.PollingStatus.OK:
                return
            if status == pq.PollingStatus.FAILED:
                raise self._connect_error()
            if status == pq.PollingStatus.READING:
                await self._readable()
            else:
                await self._writable()

    async def _take_bytes_as_they_are(self) -> None:
        """A SQL_ASCII database has no encoding: with UTF-8 requested, PostgreSQL would end the
        stream at invalid bytes.
        """
        if self._pg.parameter_status(b"server_encoding") == b"SQL_ASCII":
            await self._query("SET client_encoding TO 'SQL_ASCII'")

    async def _take_as_long_as_it_takes(self) -> None:
        """A walsender decodes each transaction inside its own one, which the server would end for
        its age.
        """
        # libpq's number for 17.2 is 170002.
        if has_transaction_timeout(self._pg.server_version // 10_000):
            await self._query(NO_TRANSACTION_TIMEOUT)

    def _connect_error(self) -> PostgresError:
        text = self._pg.get_error_message()
        return explained(state_of_refusal(text), text.split("failed:", 1)[-1], self._settings)

    async def identify(self) -> SystemIdentity:
        row = (await self._query("IDENTIFY_SYSTEM"))[0]
        if row[3] is None:
            raise ReplicationRefusedError("no database was named", remedy="Set PG_DB.")
        return SystemIdentity(str(row[0]), int(row[1] or 0), parse_lsn(row[2] or ""), row[3])

    async def forks(self, timeline: int) -> tuple[tuple[int, int], ...]:
        """The end of each timeline before this one; empty on the first."""
        # PostgreSQL has no history file for the first timeline.
        if timeline <= 1:
            return ()
        content = (await self._query(f"TIMELINE_HISTORY {timeline}"))[0][1] or ""
        lines = (line.split() for line in content.splitlines())
        return tuple(
            (int(words[0]), parse_lsn(words[1]))
            for words in lines
            if len(words) > 1 and words[0].isdigit()
        )

    async def slot(self, slot: str) -> SlotState | None:
        """The slot as PostgreSQL shows it; None if it doesn't exist."""
        columns = "confirmed_flush_lsn, plugin, database, wal_status, total_txns > 0, two_phase"
        name = quote_literal(slot)
        source = (
            "pg_catalog.pg_replication_slots LEFT JOIN pg_catalog.pg_stat_replication_slots "
            "USING (slot_name)"
        )
        # The replication protocol has no parameters; `name` is a quoted literal.
        query = f"SELECT {columns} FROM {source} WHERE slot_name = {name}"  # noqa: S608
        rows = await self._query(query)
        if not rows:
            return None
        lsn, plugin, database, wal_status, used, two_phase = rows[0]
        return SlotState(
            parse_lsn(lsn) if lsn else 0,
            plugin or "",
            database or "",
            wal_status or "",
            used == "t",
            two_phase == "t",
        )

    async def slot_reader(self, slot: str) -> SlotReader | None:
        """The connection that holds the slot, if any."""
        rows = await self._query(slot_reader.QUERY + quote_literal(slot))
        if rows:
            return SlotReader.of(rows[0])
        return None

    async def end_backend(self, pid: int) -> None:
        """End another connection of our role."""
        await self._query(f"SELECT pg_catalog.pg_terminate_backend({pid})")

    async def is_standby(self) -> bool:
        return (await self._query("SELECT pg_catalog.pg_is_in_recovery()"))[0][0] == "t"

    async def has_publication(self, publication: str) -> bool:
        """Queried beforehand, because PostgreSQL notices a missing publication only at the first
        change, or never.
        """
        name = quote_literal(publication)
        # The replication protocol has no parameters; `name` is a quoted literal.
        query = f"SELECT 1 FROM pg_catalog.pg_publication WHERE pubname = {name}"  # noqa: S608
        return bool(await self._query(query))

    async def create_slot(self, slot: str, *, failover: bool) -> None:
        """Create a permanent pgoutput slot; no snapshot is exported, because nothing is copied from
        it.
        """
        options = "SNAPSHOT 'nothing'" + (", FAILOVER" if failover else "")
        # It waits for running transactions, however long they take.
        await self._query(
            f"CREATE_REPLICATION_SLOT {quote_name(slot)} LOGICAL pgoutput ({options})",
            timeout_s=None,
        )

    async def drop_slot(self, slot: str) -> None:
        await self._query(f"DROP_REPLICATION_SLOT {quote_name(slot)}")

    async def export_snapshot(self, slot: str) -> ExportedSnapshot:
        """A snapshot with its exact LSN, from a temporary slot; both live as long as this
        connection.
        """
        command = (
            f"CREATE_REPLICATION_SLOT {quote_name(slot)} TEMPORARY LOGICAL pgoutput "
            "(SNAPSHOT 'export')"
        )
        _, lsn, name, _ = (await self._query(command, timeout_s=None))[0]
        return ExportedSnapshot(parse_lsn(lsn or ""), name or "")

    @property
    def backend_pid(self) -> int:
        """The walsender's pid."""
        return self._pg.backend_pid

    async def start(self, slot: str, publication: str) -> None:
        """Start streaming from the slot's confirmed LSN."""
        # A publication's name goes through the plugin's own list syntax, inside a string literal.
        name = quote_literal(quote_name(publication))
        options = f"proto_version '1', publication_names {name}, messages 'true'"
        # PostgreSQL replaces an LSN before the slot's confirmed one, such as 0/0, by that one.
        command = f"START_REPLICATION SLOT {quote_name(slot)} LOGICAL 0/0 ({options})"
        async with self._in_time(_ANSWER_TIMEOUT_S):
            self._pg.send_query(command.encode())
            result = await self._result()
        if result is None or result.status != pq.ExecStatus.COPY_BOTH:
            raise self._error(result)

    async def read(self, wait_s: float) -> list[Message]:
        """Available messages, after waiting up to `wait_s` for the first; empty on a time-out or
        `interrupt`.
        """
        messages = self.read_now()
        if messages or wait_s <= 0:
            return messages
        try:
            async with asyncio.timeout(wait_s):
                await self._readable()
        except TimeoutError:
            return []
        return self.read_now()

    def read_now(self) -> list[Message]:
        """Available messages, without waiting."""
        messages = self._available()
        if not messages:
            # Only now: polling the socket before each message costs more than decoding it.
            self._consume()
            messages = self._available()
        return messages

    def interrupt(self) -> None:
        """Let `read` return early."""
        if self._waiting is not None:
            _resolve(self._waiting)

    def _available(self) -> list[Message]:
        messages: list[Message] = []
        if self._over:
            raise self._error(self._pg.get_result())
        get = self._pg.get_copy_data
        while len(messages) < _BATCH_MESSAGES:
            # The argument asks libpq not to block: 0 then means that no complete message has
            # arrived.
            size, data = get(1)
            # Decoded here and not in `_message`: this is the path of every change.
            if size > _XLOG_DATA.size and data[0] == _XLOG_DATA_KIND:
                messages.append((_XLOG_DATA.unpack_from(data)[0], bytes(data[_XLOG_DATA.size :])))
            elif size > 0:
                messages.append(_message(bytes(data)))
            elif size == 0:
                break
            else:
                self._ended(messages)
                break
        return messages

    def _ended(self, messages: list[Message]) -> None:
        """The stream ended: return earlier messages first, then raise."""
        self._over = True
        if not messages:
            raise self._error(self._pg.get_result())

    def _consume(self) -> None:
        try:
            self._pg.consume_input()
        except Exception as error:
            raise PostgresUnreachableError(
                f"the replication connection was lost: {str(error).strip()}"
            ) from error

    async def status(self, received: int, confirmed: int, *, answer: bool = False) -> None:
        """Report to PostgreSQL what was received and what is durable; `answer` requests a
        keepalive.
        """
        now_us = time.time_ns() // 1000 - PG_EPOCH_US
        self._pg.put_copy_data(
            _STATUS.pack(b"r", max(received, confirmed), confirmed, confirmed, now_us, int(answer))
        )
        await self._flush()

    async def _query(
        self, command: str, timeout_s: float | None = _ANSWER_TIMEOUT_S
    ) -> list[tuple[str | None, ...]]:
        async with self._in_time(timeout_s):
            return await self._answered(command)

    @contextlib.asynccontextmanager
    async def _in_time(self, timeout_s: float | None) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(timeout_s):
                yield
        except TimeoutError as error:
            raise explained(None, f"it did not answer for {timeout_s} s", self._settings) from error

    async def _answered(self, command: str) -> list[tuple[str | None, ...]]:
        self._pg.send_query(command.encode())
        result = await self._result()
        # Read the whole answer, even an error's: until then the connection accepts no other
        # command.
        if result is not None:
            while await self._result() is not None:
                pass
        if result is None or result.status not in (
            pq.ExecStatus.TUPLES_OK,
            pq.ExecStatus.COMMAND_OK,
        ):
            raise self._error(result)
        return [
            tuple(_decoded(result.get_value(row, column)) for column in range(result.nfields))
            for row in range(result.ntuples)
        ]

    async def _result(self) -> pq.abc.PGresult | None:
        await self._flush()
        while self._pg.is_busy():
            await self._readable()
            self._consume()
        return self._pg.get_result()

    async def _flush(self) -> None:
        try:
            # libpq may need to read before it can write more, but PostgreSQL reads independently of
            # what it sends.
            while self._pg.flush():
                await self._writable()
        except OSError as error:
            raise PostgresUnreachableError(
                f"the replication connection was lost: {error}"
            ) from error
        except Exception as error:
            if self._pg.status != pq.ConnStatus.OK:
                raise PostgresUnreachableError(
                    f"the replication connection was lost: {str(error).strip()}"
                ) from error
            raise

    async def _readable(self) -> None:
        await self._ready(self._loop.add_reader, self._loop.remove_reader)

    async def _writable(self) -> None:
        await self._ready(self._loop.add_writer, self._loop.remove_writer)

    async def _ready(self, add: Callable[..., object], remove: Callable[[int], object]) -> None:
        future = self._loop.create_future()
        self._waiting = future
        # Asked each time: libpq may use another socket after trying another address.
        socket = self._pg.socket
        add(socket, _resolve, future)
        try:
            await future
        finally:
            self._waiting = None
            remove(socket)

    def _error(self, result: pq.abc.PGresult | None) -> PostgresError:
        if result is None:
            text = self._pg.get_error_message().strip()
            return PostgresUnreachableError(
                f"the replication stream ended: {text or 'the server closed it'}"
            )
        state = _decoded(result.error_field(pq.DiagnosticField.SQLSTATE))
        text = (
            _decoded(result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY))
            or result.get_error_message()
        )
        return refusal(state, text, self._settings)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _decoded(value: bytes | None) -> str | None:
    if value is None:
        return None
    return value.decode()


def _message(data: bytes) -> Message:
    if data[:1] == b"w":
        return _XLOG_DATA.unpack_from(data)[0], data[_XLOG_DATA.size :]
    if data[:1] == b"k":
        lsn, _, wanted = _KEEPALIVE.unpack(data)
        return Keepalive(lsn, bool(wanted))
    raise PostgresError(f"unknown replication message {data[:1]!r}")
