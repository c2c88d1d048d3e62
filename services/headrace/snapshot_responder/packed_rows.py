"""Converts COPY's CSV to rows in MessagePack, whole columns at a time, without Python objects per
value.

Only for common types. Promises bytes that decode to exactly the rows of `csv_rows`. The bytes of a
row depend only on its values, never on the rows it arrives with: a retried task packs the same.
Runs in Spark's tasks: needs pyarrow and NumPy.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate
from typing import Any, Final

import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.compute

from headrace.contract import scalars
from headrace.contract.values import Converter, Encoding, text
from headrace.contract.values_json import native_documents, native_json
from headrace.snapshot_responder.chunks import Block
from headrace.spark.csv_rows import CsvRows, Exact, iso_timestamps

# pyarrow publishes no types, and third-party stubs lack calls that are used here.
Array = Any
pc: Any = pyarrow.compute
Pieces = list[Array]
# A column's pieces: joined row by row, they are the packed key and value.
Packing = Callable[[Array], Pieces]
Matrix = np.ndarray[Any, np.dtype[np.uint8]]

_NIL: Final = b"\xc0"
_FALSE = b"\xc2"
_TRUE = b"\xc3"
_FLOAT64: Final = 0xCB
_NUMBER_BYTES: Final = 8
_INT64: Final = 0xD3
# Integers from the widest to the narrowest: minimum, end, marker, bytes after it. The narrowest are
# their own marker.
_INTEGER_KINDS: Final = (
    (-(1 << 31), 0, 0xD2, 4),
    (0, 1 << 32, 0xCE, 4),
    (0, 1 << 16, 0xCD, 2),
    (-32, 128, 0, 0),
)
# Documents that are parsed together: one that needs a closer look takes the block's others with it.
_TOGETHER: Final = 1024
_ARRAY_SHORT = 16
_ARRAY_HEAD = 3
_SHORT: Final = 256
_MEDIUM: Final = 65536


class PackedRows:
    """Parses whole rows of COPY's CSV, as `CsvRows` does, and packs them."""

    def __init__(self, names: Sequence[str], converters: Sequence[Converter]) -> None:
        self._csv = CsvRows(names, converters)
        self._exact: Exact = {}
        head = bytes(msgpack.Packer().pack_map_header(len(names)))
        self._packings: list[Packing] = []
        for place, (name, converter) in enumerate(zip(names, converters, strict=True)):
            prefix = bytes(msgpack.packb(name))
            self._packings.append(
                # The map's header belongs to the first column: that saves a piece for each row.
                self._packing(head + prefix if place == 0 else prefix, converter, place)
            )

    def block(self, data: bytes) -> Block:
        """The rows of `data`, which contains only whole rows."""
        columns = self._csv.columns(data)
        # Filled by the packings of this block, as places of its rows.
        self._exact.clear()
        pieces = [
            piece
            for pack, column in zip(self._packings, columns, strict=True)
            for piece in pack(column)
        ]
        if len(pieces) > 1:
            # The last argument is the separator.
            rows = pc.binary_join_element_wise(*pieces, _EMPTY)
        else:
            rows = pieces[0]
        _, offsets, body = rows.buffers()
        # The beginning of each row in the joined bytes: chunks are cut there without packing again.
        starts = np.frombuffer(offsets, np.int32, len(rows) + 1).tolist()
        return Block.of(memoryview(body).cast("B"), starts, dict(self._exact), Encoding.MSGPACK)

    def _packing(self, prefix: bytes, converter: Converter, place: int) -> Packing:
        one_by_one = self._one_by_one(prefix, place)
        if converter in {scalars.timestamp, scalars.timestamp_utc}:
            return _timestamps(prefix, converter, one_by_one)
        if converter is native_json:
            return _documents(prefix, one_by_one)
        if converter is text:
            return _texts(prefix)
        makers: dict[Converter, Callable[[bytes], Packing]]
        makers = {scalars.integer: _integers, scalars.number: _floats, scalars.boolean: _booleans}
        plain = makers.get(converter)
        if plain is None:
            return one_by_one
        return plain(prefix)

    def _one_by_one(self, prefix: bytes, place: int) -> Packing:
        """For types without a rule for whole columns, and for uncommon values."""
        pack = msgpack.Packer().pack

        def packed(column: Array) -> Pieces:
            return [
                _binary(
                    [
                        prefix + pack(value)
                        for value in self._csv.natives(place, column, self._exact)
                    ]
                )
            ]

        return packed


def _documents(prefix: bytes, otherwise: Packing) -> Packing:
    """Many documents with one call to the parser and one to the packer, split again at a mark
    between them.
    """
    pack = msgpack.Packer().pack
    just_prefix = _binary([prefix])[0]
    # Random, so that nobody can write a document that contains it.
    mark = os.urandom(16)
    cut = bytes(pack(mark))

    def packed(column: Array) -> Pieces:
        values = column.to_numpy(zero_copy_only=False).tolist()
        elements: list[bytes] = []
        for at in range(0, len(values), _TOGETHER):
            some = values[at : at + _TOGETHER]
            documents = native_documents(some)
            # One document needs a closer look, such as a number that JSON can't hold exactly.
            if documents is None:
                return otherwise(column)
            marked = [mark] * (2 * len(some))
            marked[::2] = documents  # type: ignore[assignment]  # a list of documents of any type
            parts = bytes(pack(marked))[_ARRAY_HEAD if len(marked) >= _ARRAY_SHORT else 1 :].split(
                cut
            )
            # Not impossible: a document may contain the mark by chance.
            if len(parts) != len(some) + 1:
                return otherwise(column)
            elements += parts[:-1]
        return [just_prefix, _binary(elements)]

    return packed


def _binary(elements: Sequence[bytes]) -> Array:
    """An array of these. Not by `pa.array`, which would import pandas: longer than a small snapshot
    takes.
    """
    ends = np.fromiter(accumulate(map(len, elements), initial=0), np.int32, len(elements) + 1)
    return _from_buffers(ends, b"".join(elements))


def _from_buffers(ends: np.ndarray[Any, np.dtype[np.int32]], data: bytes | memoryview) -> Array:
    return pa.Array.from_buffers(
        pa.binary(), len(ends) - 1, [None, pa.py_buffer(ends.data), pa.py_buffer(data)]
    )


def _scalar(value: np.generic) -> Any:
    """A scalar. Not by `pa.scalar`, for the same reason."""
    kind = pa.from_numpy_dtype(value.dtype)
    return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(value.tobytes())])[0]


def _raw(column: Array, kind: type[np.generic]) -> np.ndarray[Any, Any]:
    """A column's numbers; arbitrary values where it is NULL."""
    return np.frombuffer(
        column.buffers()[1], kind, len(column), column.offset * np.dtype(kind).itemsize
    )


_EMPTY: Final = _binary([b""])[0]


def _texts(prefix: bytes) -> Packing:
    """The header of a text depends only on its length."""
    # Made once for a column: each row then takes its header by its length.
    heads_short = _binary([prefix + head for head in _text_heads(_SHORT)])
    just_prefix = _binary([prefix])[0]

    def packed(column: Array) -> Pieces:
        lengths = pc.binary_length(column)
        longest = pc.max(lengths).as_py() or 0
        if column.null_count:
            values = column.cast(pa.binary()).fill_null(_EMPTY)
        else:
            values = column.cast(pa.binary())
        if longest >= _MEDIUM:
            # Header by header: a text may be a hundred million characters, which must not be copied
            # more often.
            heads = [
                _NIL if length is None else _text_head(length) for length in lengths.to_pylist()
            ]
            return [just_prefix, _binary(heads), values]
        # Nearly all columns: prefix and header are one piece.
        if longest < _SHORT:
            return [heads_short.take(lengths.fill_null(_scalar(np.int32(_SHORT)))), values]
        return [
            just_prefix,
            _heads_medium().take(lengths.fill_null(_scalar(np.int32(_MEDIUM)))),
            values,
        ]

    return packed


@cache
def _heads_medium() -> Array:
    return _binary(_text_heads(_MEDIUM))


def _text_heads(lengths: int) -> list[bytes]:
    """The header for a text of each length, and at the end the encoding of NULL."""
    return [*map(_text_head, range(lengths)), _NIL]


def _text_head(length: int) -> bytes:
    if length < 32:
        return bytes([0xA0 | length])
    if length < _SHORT:
        return bytes([0xD9, length])
    if length < _MEDIUM:
        return b"\xda" + length.to_bytes(2, "big")
    return b"\xdb" + length.to_bytes(4, "big")


def _timestamps(prefix: bytes, converter: Converter, otherwise: Packing) -> Packing:
    texts = _texts(prefix)

    def packed(column: Array) -> Pieces:
        iso = iso_timestamps(column, converter)
        if iso is None:
            return otherwise(column)
        return texts(iso)

    return packed


def _booleans(prefix: bytes) -> Packing:
    forms = _binary([prefix + form for form in (_FALSE, _TRUE, _NIL)])

    def packed(column: Array) -> Pieces:
        return [forms.take(column.cast(pa.int8()).fill_null(_scalar(np.int8(2))))]

    return packed


def _floats(prefix: bytes) -> Packing:
    def packed(column: Array) -> Pieces:
        values = _raw(column, np.float64)
        markers = np.full(len(values), _FLOAT64, np.uint8)
        sizes = np.full(len(values), _NUMBER_BYTES, np.uint8)
        return [_numbers(prefix, markers, values.astype(">f8"), sizes, column)]

    return packed


def _integers(prefix: bytes) -> Packing:
    def packed(column: Array) -> Pieces:
        values = _raw(column, np.int64)
        # From the widest type to the narrowest: the last that fits a value is used.
        markers = np.full(len(values), _INT64, np.uint8)
        sizes = np.full(len(values), _NUMBER_BYTES, np.uint8)
        for least, end, marker, size in _INTEGER_KINDS:
            within = (values >= least) & (values < end)
            markers[within] = marker
            sizes[within] = size
        # Small integers are their own marker: the last byte, also of a negative one.
        fixed = sizes == 0
        markers[fixed] = values[fixed] & 0xFF
        return [_numbers(prefix, markers, values.astype(">i8"), sizes, column)]

    return packed


def _numbers(
    prefix: bytes, markers: Matrix, values: np.ndarray[Any, Any], sizes: Matrix, column: Array
) -> Array:
    """One piece: the prefix, a marker, and the last `size` of a number's eight bytes, most
    significant first.
    """
    if column.null_count:
        null = column.is_null().to_numpy(zero_copy_only=False)
        markers[null] = _NIL[0]
        # After the sizes were chosen: the value of a null is arbitrary.
        sizes[null] = 0
    rows = len(values)
    fixed = len(prefix) + 1
    size = int(sizes.max(initial=0))
    matrix = np.empty((rows, fixed + size), np.uint8)
    matrix[:, : fixed - 1] = np.frombuffer(prefix, np.uint8)
    matrix[:, fixed - 1] = markers
    matrix[:, fixed:] = values.view(np.uint8).reshape(rows, _NUMBER_BYTES)[
        :, _NUMBER_BYTES - size :
    ]
    # Rows of equal size need no selection.
    if int(sizes.min(initial=size)) < size:
        kept = np.ones(matrix.shape, np.bool_)
        kept[:, fixed:] = np.arange(size, 0, -1, dtype=np.uint8) <= sizes[:, np.newaxis]
        matrix = matrix[kept]
    ends = np.zeros(rows + 1, np.int32)
    np.cumsum(sizes, dtype=np.int32, out=ends[1:])
    # Each row has its prefix and marker besides the number's bytes.
    ends += np.arange(0, (rows + 1) * fixed, fixed, dtype=np.int32)
    return _from_buffers(ends, matrix.data)
