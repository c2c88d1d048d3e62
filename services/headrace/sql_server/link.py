"""One end of a connection: messages of PostgreSQL's protocol over a stream.

Reading can be cancelled at any moment: bytes that have arrived stay for the next call. A peer that
takes no bytes for too long is given up.
"""

from __future__ import annotations

import asyncio
import contextlib

from headrace.sql import wire
from headrace.sql.wire import WireMessage

_CHUNK_BYTES = 256 * 1024


class ClosedError(ConnectionError):
    """The other end closed the connection."""


class Link:
    """A stream, and the bytes that have arrived and are not read yet."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        message_bytes_max: int,
        send_timeout_s: float,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._bytes_max = message_bytes_max
        self._send_timeout_s = send_timeout_s
        self._data = bytearray()

    async def raw(self, length: int) -> bytes:
        """So many bytes, as they come."""
        while len(self._data) < length:
            await self._fill()
        return self._taken(length)

    async def receive(self) -> WireMessage:
        """The next message."""
        while (message := self.waiting()) is None:
            await self._fill()
        return message

    def waiting(self) -> WireMessage | None:
        """The next message if it has arrived."""
        if len(self._data) < wire.HEADER_BYTES:
            return None
        kind, length = wire.header(bytes(self._data[: wire.HEADER_BYTES]), self._bytes_max)
        whole = wire.HEADER_BYTES + length
        if len(self._data) < whole:
            return None
        return WireMessage(kind, self._taken(whole)[wire.HEADER_BYTES :])

    async def arrival(self) -> None:
        """Return when a whole message waits; raise if the other end has closed the connection."""
        while True:
            if len(self._data) >= wire.HEADER_BYTES:
                _, length = wire.header(bytes(self._data[: wire.HEADER_BYTES]), self._bytes_max)
                if len(self._data) >= wire.HEADER_BYTES + length:
                    return
            await self._fill()

    def write(self, data: bytes) -> None:
        """Send bytes with the next `flush`, or earlier."""
        # uvloop's transports raise a RuntimeError when they are closed.
        if self._writer.is_closing():
            raise ClosedError("the connection is closed")
        self._writer.write(data)

    async def flush(self) -> None:
        """Wait until few bytes wait to be sent."""
        try:
            async with asyncio.timeout(self._send_timeout_s):
                await self._writer.drain()
        except TimeoutError as error:
            # A client that reads nothing would hold its rows in memory forever.
            raise ClosedError("the other end takes no bytes") from error

    async def send(self, data: bytes) -> None:
        """`write` and `flush`."""
        self.write(data)
        await self.flush()

    def abort(self) -> None:
        """Close the connection immediately."""
        self._writer.transport.abort()

    async def close(self) -> None:
        """Send what waits, and close the connection."""
        self._writer.close()
        with contextlib.suppress(OSError):
            async with asyncio.timeout(self._send_timeout_s):
                await self._writer.wait_closed()

    async def _fill(self) -> None:
        try:
            chunk = await self._reader.read(_CHUNK_BYTES)
        except OSError as error:
            raise ClosedError(str(error)) from error
        if not chunk:
            raise ClosedError("the other end closed the connection")
        self._data += chunk

    def _taken(self, length: int) -> bytes:
        taken = bytes(self._data[:length])
        # A bytearray gives up its beginning without moving the rest, also if many messages wait.
        del self._data[:length]
        return taken
