"""TLS in front of a PostgreSQL that was built without it, as with a connection pooler or a tunnel.

It negotiates TLS as PostgreSQL does (SSLRequest, one byte of reply, the handshake), then forwards
bytes. The embedded PostgreSQL has no OpenSSL, but clients check and send the same certificates.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct
from collections.abc import Callable
from typing import Self

from headrace.embedded.ports import LOOPBACK

_SSL_REQUEST = struct.pack("!ii", 8, 80877103)
_GSS_REQUEST = struct.pack("!ii", 8, 80877104)
_PLAIN_REFUSED = b"SFATAL\0C28000\0Mno pg_hba.conf entry for this host, no encryption\0\0"


class TlsFront:
    """Listens on a free port. Without a context it refuses TLS; with `plain` it also accepts
    connections without TLS.
    """

    def __init__(
        self,
        target: Callable[[], int],
        context: ssl.SSLContext | None,
        *,
        plain: bool = False,
        port: int = 0,
    ) -> None:
        self.port = port
        self.encrypted = self.plain = 0
        # Common names that clients proved by a certificate.
        self.proved: set[str] = set()
        self._target = target
        self._context = context
        self._lets_plain_in = plain or context is None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._accept, LOOPBACK, self.port)
        self.port = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listener.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            # A client that didn't like what it saw.
            return
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.readexactly(8)
        while first in (_SSL_REQUEST, _GSS_REQUEST):
            if first == _SSL_REQUEST and self._context is not None:
                await self._encrypt(writer)
            else:
                writer.write(b"N")
            first = await reader.readexactly(8)
        if writer.get_extra_info("ssl_object") is None:
            if not self._lets_plain_in:
                writer.write(b"E" + struct.pack("!i", len(_PLAIN_REFUSED) + 4) + _PLAIN_REFUSED)
                await writer.drain()
                writer.close()
                return
            self.plain += 1
        answers, server = await asyncio.open_connection(LOOPBACK, self._target())
        server.write(first)
        try:
            await asyncio.wait(
                [
                    asyncio.ensure_future(_pump(reader, server)),
                    asyncio.ensure_future(_pump(answers, writer)),
                ],
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            server.transport.abort()

    async def _encrypt(self, writer: asyncio.StreamWriter) -> None:
        assert self._context is not None
        writer.write(b"S")
        await writer.drain()
        await writer.start_tls(self._context)
        self.encrypted += 1
        certificate = writer.get_extra_info("ssl_object").getpeercert() or {}
        for part in certificate.get("subject", ()):
            self.proved |= {value for key, value in part if key == "commonName"}


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
