"""Short connections of operator commands, and their output.

Promises: a refusal by PostgreSQL or NATS is one error with the remedy; colors only on a terminal.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import asyncpg
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.errors import ServiceUnavailableError
from rich.text import Text

from headrace.cli.terminal import Console
from headrace.errors import HeadraceError
from headrace.jetstream.connection import NatsForbiddenError, NatsUnreachableError, connect_once
from headrace.jetstream.errors import NO_JETSTREAM_REMEDY, JetStreamError, MissingObjectError
from headrace.jetstream.state import bucket, known_identity
from headrace.postgres import connection
from headrace.postgres.replication_errors import refusal
from headrace.settings import Settings

DENIED = "42501"


@contextlib.asynccontextmanager
async def postgres(
    settings: Settings, command: str, denied: str | None = None
) -> AsyncIterator[asyncpg.Connection]:
    """A connection for the time of a command; `denied` is the remedy if the role lacks a
    permission.
    """
    session = await connection.connect(settings.postgres, f"headrace {command}")
    try:
        yield session
    except asyncpg.PostgresError as error:
        # Its first argument is only the message; as a string it has further lines.
        message = str(error.args[0])
        if denied is not None and error.sqlstate == DENIED:
            raise connection.PostgresRefusedError(message, remedy=denied) from error
        raise refusal(error.sqlstate, message, settings.postgres) from error
    except (OSError, asyncpg.InterfaceError) as error:
        raise connection.explained(None, str(error), settings.postgres) from error
    finally:
        # `close` would wait for a server that may not answer.
        session.terminate()


@contextlib.asynccontextmanager
async def nats(settings: Settings, command: str) -> AsyncIterator[tuple[Client, list[str]]]:
    """A connection, and the server's complaints meanwhile: a missing permission is reported in no
    other way.
    """
    complaints: list[str] = []

    async def note(error: Exception) -> None:
        complaints.append(str(error))

    client = await connect_once(settings.nats, f"headrace-{command}", error_cb=note)
    try:
        yield client, complaints
    except TimeoutError as error:
        refused = next(
            (complaint for complaint in complaints if "permissions violation" in complaint.lower()),
            None,
        )
        if refused is not None:
            raise NatsForbiddenError(refused) from error
        raise NatsUnreachableError(
            "NATS did not answer in time", remedy="Try again; `headrace doctor` examines it."
        ) from error
    finally:
        # The command's result is known: a failure to disconnect doesn't change it.
        with contextlib.suppress(Exception):
            async with asyncio.timeout(2):
                await client.close()


async def suite_of(settings: Settings, command: str) -> str | None:
    """This suite's identity: empty if none was created, None if NATS doesn't say."""
    try:
        async with nats(settings, command) as (client, _):
            return await known_identity(await bucket(client.jetstream(), settings.streams.state))
    except MissingObjectError:
        return ""
    except (HeadraceError, NatsError):
        return None


def refused(error: NatsError) -> HeadraceError:
    """An unexpected answer of NATS, as an error of the suite."""
    if isinstance(error, ServiceUnavailableError):
        return JetStreamError(
            "JetStream does not answer on this NATS server", remedy=NO_JETSTREAM_REMEDY
        )
    return NatsUnreachableError(
        f"NATS refused: {error}", remedy="Try again; `headrace doctor` examines it."
    )


def kind_and_name(stream: str) -> tuple[str, str]:
    """A user's name for this stream: KV buckets and object stores are streams too."""
    for prefix, kind in (("KV_", "bucket"), ("OBJ_", "object store")):
        if stream.startswith(prefix):
            return kind, stream.removeprefix(prefix)
    return "stream", stream


class Screen:
    """Output lines: a mark, a kind of object, its name, the outcome."""

    def __init__(self) -> None:
        self.console = Console(soft_wrap=True)

    def title(self, text: str) -> None:
        self.console.print(Text(text, style="bold"))

    def made(self, kind: str, name: str, what: str) -> None:
        self._line("✓", "green", kind, name, what)

    def kept(self, kind: str, name: str, what: str) -> None:
        self._line("·", "dim", kind, name, what)

    def _line(self, mark: str, style: str, kind: str, name: str, what: str) -> None:
        line = Text("  ").append(mark, style=style).append(f" {kind:<12} ", style="dim")
        self.console.print(line.append(f"{name:<26} ").append(what, style=style))
