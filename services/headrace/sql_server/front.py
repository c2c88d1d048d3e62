"""The front: accepts clients, and keeps their sessions within limits.

Each session is a task. A session that fails ends with its connection, and never affects others.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from functools import partial

from headrace import log as logs
from headrace.errors import HeadraceError, describe
from headrace.settings import SqlSettings
from headrace.sql import wire
from headrace.sql.wire import BackendKey, Problem, Startup
from headrace.sql_server.backend import Backend
from headrace.sql_server.lake_run import Runner, SharedLake
from headrace.sql_server.link import Link
from headrace.sql_server.login import Cancel, Encryption, for_backend, log_in, startup
from headrace.sql_server.private_postgres import PrivateAddress
from headrace.sql_server.problems import SessionEndError
from headrace.sql_server.session import SqlSession
from headrace.sql_server.state import SessionState

log = logs.logger("sql-server")

# As PostgreSQL's authentication_timeout by default.
_LOGIN_TIMEOUT_S = 60.0
_CANCEL_TIMEOUT_S = 10.0
# PostgreSQL allocates less than this for a message.
_BACKEND_BYTES_MAX = 1 << 30
# Connections that were not answered yet.
_BACKLOG = 128


class SqlPortError(HeadraceError):
    """The SQL server can't listen on its port."""

    remedy = "Choose another one with HEADRACE_SQL_PORT, or stop the program that uses it."


@dataclass(frozen=True, slots=True)
class PrivateDatabase:
    """Where clients' own connections go, and the database that they may use."""

    address: PrivateAddress
    database: str


class Front:
    """Listens, and serves each client in a task."""

    def __init__(
        self,
        settings: SqlSettings,
        lake: SharedLake,
        target: PrivateDatabase,
        tls: Encryption,
    ) -> None:
        self._settings = settings
        self._lake = lake
        self._target = target
        self._tls = tls
        self._stats = lake.stats
        self._tasks: set[asyncio.Task[None]] = set()
        self._sessions: dict[BackendKey, Runner] = {}
        self.port = 0

    async def listen(self) -> asyncio.Server:
        """Accept clients from now on."""
        host, port = self._settings.host, self._settings.port
        try:
            server = await asyncio.start_server(self._accept, host, port, backlog=_BACKLOG)
        except OSError as error:
            raise SqlPortError(
                f"can't listen on port {port} of {host}: {error.strerror}"
            ) from error
        self.port = server.sockets[0].getsockname()[1]
        log.info("sql_listening", host=host, port=self.port)
        return server

    async def close(self) -> None:
        """End all sessions."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def sessions(self) -> int:
        """The connections now."""
        return len(self._tasks)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._stats.set("sql_connections", len(self._tasks))
        try:
            await self._serve(reader, writer)
        except asyncio.CancelledError:
            # Only `close` cancels, and asyncio would report the session as failed.
            return
        except OSError:
            # A client may leave at any moment, fail to encrypt, or be too slow at its login.
            return
        except SessionEndError as error:
            self._stats.count("sql_ended_connections")
            await _say(writer, error.problem)
        except wire.WireError as error:
            await _say(writer, Problem("08P01", describe(error), severity="FATAL"))
        except Exception as error:  # noqa: BLE001  # one session must not end the others
            self._stats.count("sql_session_failures")
            log.crash("session_crashed", error)
            await _say(writer, Problem("XX000", "internal error", severity="FATAL"))
        finally:
            self._tasks.discard(task)
            self._stats.set("sql_connections", len(self._tasks))
            # `close` would first wait until the client has read everything.
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(_LOGIN_TIMEOUT_S):
            first = await startup(reader, writer, self._tls)
        if isinstance(first, Cancel):
            await self._cancel(first.key)
            return
        # After the startup message: PostgreSQL's clients expect an error only then, and a cancel
        # request must always pass.
        if len(self._tasks) > self._settings.connections_max:
            raise SessionEndError(
                Problem("53300", "sorry, too many clients already", severity="FATAL")
            )
        client = Link(
            reader, writer, self._settings.message_bytes_max, self._settings.send_timeout_s
        )
        await self._session(first, client)

    async def _session(self, first: Startup, client: Link) -> None:
        given, level = for_backend(first, self._target.database)
        backend = await self._backend(client, level)
        runner = Runner(self._lake)
        key = BackendKey(0, b"")
        try:
            async with asyncio.timeout(_LOGIN_TIMEOUT_S):
                await backend.send(given.encode())
                key = await log_in(backend, client)
            # Only after the login: the key is a secret that the client has just received.
            self._sessions[key] = runner
            self._stats.count("sql_logins")
            cancel = partial(self._cancel_backend, key)
            state = SessionState(client, backend, self._lake, runner, cancel)
            await SqlSession(state, self._settings.idle_timeout_s).run()
            await client.close()
        finally:
            self._sessions.pop(key, None)
            # In any case: a cut that stays pinned keeps rows in the copy's memory.
            await runner.unpin()
            with contextlib.suppress(OSError):
                await backend.close()

    async def _backend(self, client: Link, level: str) -> Backend:
        reader, writer = await self._connected()
        link = Link(reader, writer, _BACKEND_BYTES_MAX, self._settings.send_timeout_s)
        exact = self._lake.exact_relids
        return Backend(link, client, lambda: self._lake.relids, exact, level)

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = self._target.address.host, self._target.address.port
        try:
            # As in libpq, a path is the folder of a socket.
            if host.startswith("/"):
                return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
            return await asyncio.open_connection(host, port)
        except OSError as error:
            raise SessionEndError(
                Problem("57P03", "the private PostgreSQL does not answer", severity="FATAL")
            ) from error

    async def _cancel(self, key: BackendKey) -> None:
        """Cancel a statement of another connection, wherever it runs."""
        runner = self._sessions.get(key)
        # No answer, as from PostgreSQL: it would help to guess keys.
        if runner is None:
            return
        # The statement runs in DuckDB; otherwise it is PostgreSQL's to cancel.
        if runner.busy:
            runner.cancel()
            return
        await self._cancel_backend(key)

    async def _cancel_backend(self, key: BackendKey) -> None:
        async with asyncio.timeout(_CANCEL_TIMEOUT_S):
            reader, writer = await self._connected()
            writer.write(wire.cancel_request(key.process, key.key))
            await writer.drain()
            # PostgreSQL closes the connection when it has sent the signal.
            await reader.read()
            writer.close()


async def _say(writer: asyncio.StreamWriter, problem: Problem | None) -> None:
    """Send a last error."""
    if problem is None or writer.is_closing():
        return
    with contextlib.suppress(OSError):
        async with asyncio.timeout(_CANCEL_TIMEOUT_S):
            writer.write(problem.encode())
            await writer.drain()
            writer.close()
            await writer.wait_closed()
