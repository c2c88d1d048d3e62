"""Cuts a range's rows into chunks, and builds the bytes of a chunk's message.

A chunk has at most `rows_max` rows and never more than `bytes_max` bytes before compression; a
larger row gets its own chunk, which is then sent by reference. The cut depends only on the rows and
these two bounds, never on how the rows arrived: a retried task cuts the same chunks. Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final

import msgpack
import orjson
import zstandard

from headrace.contract import events
from headrace.contract.json_bytes import compact_json
from headrace.contract.values import Encoding

Row = dict[str, Any]
# Index of a row → column → PostgreSQL's text, as from `CsvRows`.
Exact = dict[int, dict[str, str]]

ZSTD_LEVEL: Final = 1
# A message without its rows: subject, headers, and the map around the rows with names of at most 63
# bytes, which JSON may escape to six times as much.
ENVELOPE_BYTES_MAX: Final = 4096
# A row's index as a key, in either encoding: ten digits and what is around them.
_PLACE_BYTES_MAX: Final = 16


@dataclass(frozen=True, slots=True)
class Block:
    """Rows in their encoded form: row `i` is `data[offsets[i]:offsets[i + 1]]`, in JSON with a
    comma at its end.

    `exact` contains the texts of values whose native forms lose information; `ends` is `offsets`
    plus the bytes of these texts.
    """

    data: memoryview
    offsets: Sequence[int]
    exact: Exact = field(default_factory=dict)
    ends: Sequence[int] = ()

    @classmethod
    def of(
        cls, data: memoryview, offsets: Sequence[int], exact: Exact, encoding: Encoding
    ) -> Block:
        if not exact:
            return cls(data, offsets, exact, offsets)
        write = events.writer(encoding)
        sizes = (
            len(write(exact[row])) + _PLACE_BYTES_MAX if row in exact else 0
            for row in range(len(offsets) - 1)
        )
        more = accumulate(sizes, initial=0)
        return cls(
            data, offsets, exact, [end + size for end, size in zip(offsets, more, strict=True)]
        )


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows in their encoded form, without what is around them; `large` is a single row above the
    limit.
    """

    rows: int
    body: bytes | memoryview
    large: bool = False
    exact: Exact = field(default_factory=dict)


def block_of(rows: Sequence[Row], encoding: Encoding, exact: Exact | None = None) -> Block:
    """Rows encoded one by one."""
    exact = exact or {}
    if encoding is Encoding.JSON:
        elements = [compact_json(row) for row in rows]
        ends = accumulate((len(element) + 1 for element in elements), initial=0)
        # Also after the last.
        return Block.of(memoryview(b",".join([*elements, b""])), list(ends), exact, encoding)
    pack = msgpack.Packer().pack
    elements = [bytes(pack(row)) for row in rows]
    return Block.of(
        memoryview(b"".join(elements)),
        list(accumulate(map(len, elements), initial=0)),
        exact,
        encoding,
    )


@dataclass(slots=True)
class ChunkCutter:
    """Takes rows as they arrive, returns chunks as they fill."""

    rows_max: int
    bytes_max: int
    _parts: list[memoryview] = field(default_factory=list)
    _exact: Exact = field(default_factory=dict)
    _rows: int = 0
    _bytes: int = 0

    def feed(self, block: Block) -> Iterator[Chunk]:
        """Chunks that these rows complete."""
        offsets = block.offsets
        ends = block.ends
        at = 0
        while at < len(offsets) - 1:
            # `ends` includes the exact texts, which are in the same message.
            fitting = bisect_right(ends, ends[at] + self.bytes_max - self._bytes, at) - 1
            end = min(fitting, at + self.rows_max - self._rows)
            if end > at:
                self._take(block, at, end)
                at = end
            elif self._rows:
                yield from self.finish()
            else:
                exact = {0: block.exact[at]} if at in block.exact else {}
                yield Chunk(1, block.data[offsets[at] : offsets[at + 1]], large=True, exact=exact)
                at += 1

    def finish(self) -> Iterator[Chunk]:
        """The rest of the range."""
        if self._rows:
            yield Chunk(self._rows, b"".join(self._parts), exact=self._exact)
            self._parts = []
            self._exact = {}
            self._rows = 0
            self._bytes = 0

    def _take(self, block: Block, at: int, end: int) -> None:
        self._parts.append(block.data[block.offsets[at] : block.offsets[end]])
        for row in range(at, end) if block.exact else ():
            if row in block.exact:
                self._exact[self._rows + row - at] = block.exact[row]
        self._rows += end - at
        self._bytes += block.ends[end] - block.ends[at]


def message(head: dict[str, Any], chunk: Chunk, encoding: Encoding, *, zstd: bool) -> bytes:
    """The payload: `head`, the exact texts of the rows, and the rows as `data` at its end."""
    if chunk.exact:
        head = {**head, "exact": {str(row): texts for row, texts in chunk.exact.items()}}
    if encoding is Encoding.JSON:
        # In a block every row ends in a comma, and JSON allows none after the last.
        rows = memoryview(chunk.body)[:-1]
        payload = b"".join((orjson.dumps(head)[:-1], b',"data":[', rows, b"]}"))
    else:
        # By default the packer would return and forget each part.
        packer = msgpack.Packer(autoreset=False)
        packer.pack_map_header(len(head) + 1)
        for key, value in head.items():
            packer.pack(key)
            packer.pack(value)
        packer.pack("data")
        packer.pack_array_header(chunk.rows)
        payload = b"".join((packer.bytes(), chunk.body))
    if zstd:
        return zstandard.ZstdCompressor(ZSTD_LEVEL).compress(payload)
    return payload


def key_only(chunk: Chunk, key: Collection[str], encoding: Encoding) -> Chunk:
    """A large row's key columns, for the message that refers to the stored row."""
    row: Row
    if encoding is Encoding.JSON:
        row = orjson.loads(memoryview(chunk.body)[:-1])
    else:
        row = msgpack.unpackb(chunk.body)
    small = block_of([{name: value for name, value in row.items() if name in key}], encoding)
    return Chunk(1, bytes(small.data))
