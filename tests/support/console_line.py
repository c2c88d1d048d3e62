"""A line with telemetry and a console at an address that it keeps, for tests in a browser."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.embedded.nats import EmbeddedNats
from headrace.embedded.ports import free_port
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.testing.database import fresh_database
from headrace.testing.line import Line, running_line
from headrace.testing.names import Names
from headrace.testing.servers import SessionServers


@dataclass(frozen=True)
class ConsoleLine:
    """The line, and the ports of its telemetry and its console."""

    line: Line
    nats: EmbeddedNats
    port: int
    telemetry: int

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start_console(self) -> None:
        await self.line.suite.start(
            "console",
            HEADRACE_HTTP_PORT=str(self.port),
            HEADRACE_TELEMETRY_URL=f"http://127.0.0.1:{self.telemetry}",
        )


@contextlib.asynccontextmanager
async def described_line(
    servers: SessionServers, folder: Path, settings: Mapping[str, str] | None = None
) -> AsyncIterator[Line]:
    """A line with its own database and NATS server, and with a schema-publisher."""
    nats = servers.new_nats()
    try:
        await nats.start()
        async with (
            fresh_database(servers.shared_postgres(18), Names.new().other("db")) as database,
            running_line(database, nats, folder, settings or {}) as line,
        ):
            await line.suite.start("schema-publisher")
            yield line
    finally:
        servers.discard(nats)


@contextlib.asynccontextmanager
async def console_line(
    postgres: EmbeddedPostgres, nats: EmbeddedNats, folder: Path, settings: Mapping[str, str]
) -> AsyncIterator[ConsoleLine]:
    """The line with schema-publisher and telemetry; the console is started by the caller, when
    there is something to see.
    """
    async with (
        fresh_database(postgres, Names.new().other("db")) as database,
        running_line(database, nats, folder, dict(settings)) as line,
    ):
        found = ConsoleLine(line, nats, free_port(), free_port())
        await line.suite.start("schema-publisher")
        await line.suite.start("telemetry", HEADRACE_HTTP_PORT=str(found.telemetry))
        yield found
