"""The start of a connection: TLS, cancel requests, the login, which passes end to end.

The private PostgreSQL checks passwords; the front sees only SCRAM's messages. Superusers and
replication are refused, and so is any database but the lake's.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from dataclasses import dataclass
from typing import Final

from headrace.sql import wire
from headrace.sql.wire import BackendKey, Startup, WireMessage
from headrace.sql_server.backend import ANALYZER_OPTIONS, Backend
from headrace.sql_server.link import ClosedError, Link
from headrace.sql_server.problems import SessionEndError, fatal

_LEVEL: Final = "client_min_messages"
# Authentication requests that the client answers: a password, MD5, SASL and its continuation.
_ANSWERED: Final = frozenset({3, 5, 10, 11})
_PASSWORD_BYTES_MAX: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Cancel:
    """A request to cancel what another connection does."""

    key: BackendKey


@dataclass(frozen=True, slots=True)
class Encryption:
    """How connections are encrypted."""

    context: ssl.SSLContext | None
    required: bool


def encryption(cert: str | None, key: str | None, *, required: bool) -> Encryption:
    """TLS with a certificate, or none."""
    if cert is None:
        return Encryption(None, required)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # As PostgreSQL's ssl_min_protocol_version by default.
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(cert, key)
    return Encryption(context, required)


async def startup(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tls: Encryption
) -> Startup | Cancel:
    """Read what a client sends first, and encrypt the connection if it asks for that."""
    encrypted = False
    while True:
        try:
            (length,) = struct.unpack("!i", await reader.readexactly(4))
            # Before memory is used for someone who has not logged in.
            if not 8 <= length <= wire.STARTUP_BYTES_MAX:
                raise fatal("08P01", "invalid length of startup packet")
            body = await reader.readexactly(length - 4)
        except (asyncio.IncompleteReadError, OSError) as error:
            raise ClosedError("the client left before its login") from error
        (code,) = struct.unpack_from("!i", body)
        if code == wire.CANCEL_REQUEST:
            return Cancel(wire.backend_key_of(body[4:]))
        if code == wire.GSS_REQUEST:
            writer.write(b"N")
        elif code == wire.SSL_REQUEST:
            # `N` means no; the client decides whether it continues in plain text.
            if tls.context is None or encrypted:
                writer.write(b"N")
                continue
            writer.write(b"S")
            await writer.drain()
            await writer.start_tls(tls.context)
            encrypted = True
        else:
            if tls.required and not encrypted:
                raise fatal("28000", "this server requires TLS", hint="Use sslmode=require.")
            return wire.startup_of(body)


def for_backend(given: Startup, database: str) -> tuple[Startup, str]:
    """The startup message for the private PostgreSQL, and the client's level of notices."""
    parameters = dict(given.parameters)
    # In the protocol, the database without a name has the user's.
    wanted = parameters.get("database") or parameters.get("user", "")
    if wanted != database:
        raise fatal(
            "3D000",
            f'database "{wanted}" does not exist',
            hint=f'The lake is the database "{database}".',
        )
    if parameters.get("replication", "false").lower() not in ("false", "off", "no", "0"):
        raise fatal("0A000", "replication connections are not supported")
    # The front needs `log` for the trees, and filters notices by the client's level itself.
    level = parameters.pop(_LEVEL, "notice")
    # The last of several options is valid: RESET ALL returns to it, too.
    options = f"{parameters.get('options', '')} {ANALYZER_OPTIONS}".strip()
    return Startup(given.version, parameters | {"options": options}), level


async def log_in(backend: Backend, client: Link) -> BackendKey:
    """Pass the login's messages until the private PostgreSQL is ready for statements."""
    held: list[WireMessage] = []
    key = BackendKey(0, b"")
    while True:
        message = await backend.raw_message()
        if message.kind == b"E":
            await client.send(message.encode())
            raise SessionEndError("the login failed")
        if message.kind == b"R":
            await client.send(message.encode())
            (request,) = struct.unpack_from("!i", message.body)
            if request in _ANSWERED:
                answer = await client.receive()
                if answer.kind != b"p" or len(answer.body) > _PASSWORD_BYTES_MAX:
                    raise fatal("08P01", "expected a password response")
                await backend.send(answer.encode())
            continue
        if message.kind == b"S":
            # Raises for superusers, before the client hears of its success.
            backend.note_setting(message)
        if message.kind == b"K":
            key = wire.backend_key_of(message.body)
        if message.kind != b"N":
            # Kept until the login is complete: a client must not see success before the checks have
            # passed.
            held.append(message)
        if message.kind == b"Z":
            for each in held:
                client.write(each.encode())
            await client.flush()
            return key
