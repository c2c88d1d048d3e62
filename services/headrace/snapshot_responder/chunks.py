"""The cut of a range's rows into chunks, and the bytes of a chunk's message.

A chunk has at most `rows_max` rows and never more than `bytes_max` bytes before compression. The cut depends on the
rows and these two bounds alone, never on how the rows arrived: a retried task cuts the same chunks. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgpack
import orjson
import zstandard

from headrace.contract.values import Encoding
from headrace.errors import HeadraceError

Row = dict[str, Any]

BLOCK_ROWS: Final = 500
ZSTD_LEVEL: Final = 1
# What a message has besides its rows: subject, headers, and the map around the rows with names of at most 63 bytes,
# which JSON may escape to six times as much.
ENVELOPE_BYTES_MAX: Final = 4096

_ARRAY_16, _ARRAY_32 = 0xDC, 0xDD


class RowTooLargeError(HeadraceError):
    """A single row doesn't fit into a NATS message."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows in their encoded form, without what is around them."""

    rows: int
    body: bytes


class RowsEncoder:
    """Rows to the elements of an array, in one encoding."""

    def __init__(self, encoding: Encoding) -> None:
        self._json = encoding is Encoding.JSON
        self._pack = msgpack.Packer(autoreset=True).pack
        self.separator = b"," if self._json else b""

    def elements(self, rows: Sequence[Row]) -> bytes:
        """The rows as they stand inside an array, without its brackets or header."""
        if self._json:
            return orjson.dumps(rows)[1:-1]
        packed: bytes = self._pack(rows)
        header = {_ARRAY_16: 3, _ARRAY_32: 5}.get(packed[0], 1)
        return packed[header:]


@dataclass(slots=True)
class ChunkCutter:
    """Takes rows as they come, gives chunks as they fill."""

    encoder: RowsEncoder
    rows_max: int
    bytes_max: int
    _pending: list[Row] = field(default_factory=list)
    _blocks: list[bytes] = field(default_factory=list)
    _rows: int = 0
    _bytes: int = 0

    def feed(self, rows: list[Row]) -> Iterator[Chunk]:
        """Chunks that these rows complete."""
        pending = self._pending
        pending += rows
        block = min(BLOCK_ROWS, self.rows_max)
        at = 0
        while len(pending) - at >= block:
            yield from self._add(pending[at : at + block])
            at += block
        del pending[:at]

    def finish(self) -> Iterator[Chunk]:
        """What is left of the range."""
        if self._pending:
            yield from self._add(self._pending)
            self._pending = []
        yield from self._cut()

    def _add(self, rows: list[Row]) -> Iterator[Chunk]:
        body = self.encoder.elements(rows)
        if len(body) > self.bytes_max:
            if len(rows) == 1:
                raise _too_large(len(body), self.bytes_max)
            half = len(rows) // 2
            yield from self._add(rows[:half])
            yield from self._add(rows[half:])
            return
        if self._rows + len(rows) > self.rows_max or self._bytes + len(body) + len(self._blocks) > self.bytes_max:
            yield from self._cut()
        self._blocks.append(body)
        self._rows += len(rows)
        self._bytes += len(body)

    def _cut(self) -> Iterator[Chunk]:
        if self._rows:
            yield Chunk(self._rows, self.encoder.separator.join(self._blocks))
            self._blocks, self._rows, self._bytes = [], 0, 0


def _too_large(size: int, bytes_max: int) -> RowTooLargeError:
    return RowTooLargeError(
        f"a row of {size} bytes doesn't fit into a NATS message, of which rows may take {bytes_max} bytes",
        remedy="Raise max_payload of the NATS server, or leave the large columns out (columns in the request).",
    )


def message(head: dict[str, Any], chunk: Chunk, encoding: Encoding, *, zstd: bool) -> bytes:
    """The payload: `head` with `data` at its end."""
    if encoding is Encoding.JSON:
        payload = b"".join((orjson.dumps(head)[:-1], b',"data":[', chunk.body, b"]}"))
    else:
        packer = msgpack.Packer(autoreset=False)
        packer.pack_map_header(len(head) + 1)
        for key, value in head.items():
            packer.pack(key)
            packer.pack(value)
        packer.pack("data")
        packer.pack_array_header(chunk.rows)
        payload = packer.bytes() + chunk.body
    return zstandard.ZstdCompressor(ZSTD_LEVEL).compress(payload) if zstd else payload
