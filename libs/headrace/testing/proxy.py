"""A TCP proxy that fails on demand, between any two processes.

Promises that no byte is changed or reordered: it is delayed, lost together with all later ones of
its connection, or delivered. A connection that lost a byte is reset when the fault ends, because
TCP never continues after a hole.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from headrace.embedded.ports import LOOPBACK

_READ_BYTES = 64 * 1024
_CHANCE = random.Random()  # noqa: S311  # nothing is kept secret with it
_CRUMB_PAUSES_S = (0.0, 0.0, 0.0, 0.0, 0.001, 0.02)
# Closed with it, a socket sends RST: the other end notices immediately, as with a dead process.
_RESET = struct.pack("ii", 1, 0)


@dataclass(slots=True, eq=False)
class _Passage:
    """One connection through the proxy: both its ends, and whether a byte of it was lost."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    lossy: bool = False
    pumps: list[asyncio.Task[None]] = field(default_factory=list)


class Proxy:
    """A TCP proxy that fails on demand, as an asynchronous context manager.

    For each new connection, `target` returns the port on 127.0.0.1 to
    which it is forwarded. No byte is ever changed or reordered. A connection that lost a byte is
    reset by `restore`.
    """

    def __init__(self, target: Callable[[], int], port: int = 0) -> None:
        # The port on 127.0.0.1 on which it listens; free if it is 0.
        self.port = port
        # How long to delay each block of bytes.
        self.delay_s = 0.0
        # If positive, forward pieces of 1 to this many bytes, with short pauses between some.
        self.crumb_bytes_max = 0
        # If a client sends these bytes, hold back them and everything later until `restore`.
        self.hold_at = b""
        # Set when `hold_at` has taken effect.
        self.held = asyncio.Event()
        # Set when an answer was lost after `lose_answer`.
        self.answer_lost = asyncio.Event()
        # Answers that still pass before one is lost.
        self._answers_left: int | None = None
        self._target = target
        self._passages: set[_Passage] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._refusing = False
        # Directions whose bytes vanish: False from the client, True from the server.
        self._swallowed: set[bool] = set()
        self._listener: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._accept, LOOPBACK, self.port)
        self.port = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._listener is not None
        self._listener.close()
        self.cut()
        await asyncio.sleep(0)

    def cut(self) -> None:
        """Reset every connection, at both ends."""
        for passage in list(self._passages):
            self._end(passage)

    def refuse(self) -> None:
        """Reset every connection, and every new one, until `restore`."""
        self._refusing = True
        self.cut()

    def stall(self) -> None:
        """Hold back all bytes until `restore`, which delivers them."""
        self._flowing.clear()

    def lose(self, *, from_server: bool) -> None:
        """Drop the bytes of one direction until `restore`, which resets the connections."""
        self._swallowed.add(from_server)

    def half_open(self, *, server_knows: bool) -> None:
        """End one side of every connection; the other side notices nothing until `restore`."""
        for passage in list(self._passages):
            passage.lossy = True
            _reset(passage.server if server_knows else passage.client)

    def lose_answer(self, number: int) -> None:
        """Lose one block of bytes from a server, after this many others, and reset its connection:
        the server has done what the answer says.
        """
        self.answer_lost.clear()
        self._answers_left = number

    def keep_answers(self) -> None:
        """Lose no answer any more."""
        self._answers_left = None

    def restore(self) -> None:
        """End all faults except `delay_s` and `crumb_bytes_max`."""
        self.hold_at = b""
        self._refusing = False
        self._swallowed.clear()
        self._flowing.set()
        for passage in list(self._passages):
            if passage.lossy:
                self._end(passage)

    async def _accept(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        if self._refusing:
            _reset(client)
            return
        try:
            answers, server = await asyncio.open_connection(LOOPBACK, self._target())
        except OSError:
            _reset(client)
            return
        passage = _Passage(client, server)
        self._passages.add(passage)
        passage.pumps = [
            asyncio.create_task(
                self._pump(passage, reader, server, from_server=False), name="proxy up"
            ),
            asyncio.create_task(
                self._pump(passage, answers, client, from_server=True), name="proxy down"
            ),
        ]

    async def _pump(
        self,
        passage: _Passage,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        from_server: bool,
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_READ_BYTES):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                if self.hold_at and not from_server and self.hold_at in data:
                    self.stall()
                    self.held.set()
                await self._flowing.wait()
                if from_server and self._is_lost():
                    break
                if passage.lossy or from_server in self._swallowed:
                    passage.lossy = True
                    continue
                await self._pass_on(data, writer)
        if not passage.lossy:
            self._end(passage)

    def _is_lost(self) -> bool:
        """Whether this is the answer to lose."""
        if self._answers_left is None:
            return False
        self._answers_left -= 1
        if self._answers_left >= 0:
            return False
        self._answers_left = None
        self.answer_lost.set()
        return True

    async def _pass_on(self, data: bytes, writer: asyncio.StreamWriter) -> None:
        at = 0
        while at < len(data):
            crumb_bytes = (
                _CHANCE.randint(1, self.crumb_bytes_max) if self.crumb_bytes_max else len(data)
            )
            writer.write(data[at : at + crumb_bytes])
            at += crumb_bytes
            await writer.drain()
            if self.crumb_bytes_max:
                await asyncio.sleep(_CHANCE.choice(_CRUMB_PAUSES_S))

    def _end(self, passage: _Passage) -> None:
        self._passages.discard(passage)
        for pump in passage.pumps:
            if pump is not asyncio.current_task():
                pump.cancel()
        _reset(passage.client)
        _reset(passage.server)


def _reset(writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    if connection is not None and not writer.transport.is_closing():
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
