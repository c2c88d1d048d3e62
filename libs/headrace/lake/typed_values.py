"""Texts of values as Arrow arrays of a column's type, and the texts that the type can't hold.

Works on whole columns. Only where a column has values such as `infinity`, a second pass separates
these. Never rounds, clamps or drops a value. Pure.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.compute

from headrace.archive.metadata import ColumnInfo
from headrace.contract import scalars, type_oids
from headrace.contract.arrays import parse_array
from headrace.contract.exact import Inexact
from headrace.contract.values import (
    Converter,
    Encoding,
    TypeInfo,
    ValueOptions,
    converter,
    text,
)
from headrace.errors import DecodeError
from headrace.lake.column_types import arrow_type

# pyarrow publishes no types, and third-party stubs lack calls that are used here.
Array = Any
Kind = Any
pc: Any = pyarrow.compute

# The texts that a column can't hold, by row.
Misfits = dict[int, str]
Found = tuple[Array, Misfits]
# Reads texts, of which some are null.
Reader = Callable[[Array], Found]

DOCUMENT_OIDS: Final = frozenset({type_oids.JSON, type_oids.JSONB})
_OPTIONS: Final = ValueOptions(encoding=Encoding.JSON)
_DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
# PostgreSQL writes a blank and +00, the contract T and Z.
_TIMESTAMP = rf"^{_DATE}[ T][0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}(?:\.[0-9]{{1,6}})?(?:Z|\+00)?$"


def from_json_forms(column: ColumnInfo) -> Reader:
    """The reader of a column's contract forms in JSON, as texts without their quotes."""
    kind = arrow_type(column)
    if pa.types.is_binary(kind):
        return _base64
    if pa.types.is_string(kind):
        return _unchanged
    return from_postgres(column, {})


def from_postgres(column: ColumnInfo, types: Mapping[int, TypeInfo]) -> Reader:
    """The reader of PostgreSQL's texts of a column; `types` describes types of users."""
    kind: Kind = arrow_type(column)
    element_oid = type_oids.ELEMENT_OIDS.get(column.type_oid)
    if element_oid is None:
        return _scalar(kind, column.type_oid, types)
    # box is the only built-in type with another delimiter.
    delimiter = b";" if element_oid == type_oids.BOX else b","
    return partial(_lists, kind, _scalar(kind.value_type, element_oid, types), delimiter)


def parsed_as(kind: Kind) -> Kind:
    """The type for Arrow's own readers; the texts of all other types are read here."""
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return kind
    return pa.string()


def _scalar(kind: Kind, type_oid: int, types: Mapping[int, TypeInfo]) -> Reader:
    if pa.types.is_string(kind):
        return _strings(type_oid, types)
    if pa.types.is_binary(kind):
        return _hexadecimal
    if type_oid == type_oids.MONEY:
        return partial(_money, kind)
    if pa.types.is_boolean(kind):
        return _booleans
    return partial(_cast, kind)


def _unchanged(texts: Array) -> Found:
    return texts, {}


def _strings(type_oid: int, types: Mapping[int, TypeInfo]) -> Reader:
    if type_oid in DOCUMENT_OIDS:
        return _unchanged
    convert = converter(type_oid, _OPTIONS, types.get)
    if convert is text:
        return _unchanged
    return partial(_converted, convert)


def _converted(convert: Converter, texts: Array) -> Found:
    """The contract's forms, as texts."""
    forms = [None if value is None else _form(convert(value.encode())) for value in to_list(texts)]
    return pa.array(forms, pa.string()), {}


def _form(value: object) -> str:
    if isinstance(value, Inexact):
        return value.text
    if isinstance(value, str):
        return value
    return unquoted(orjson.dumps(value).decode())


def unquoted(member: str) -> str:
    """The content of a JSON string; any other value's JSON, as it is."""
    if member.lstrip().startswith('"'):
        try:
            content: str = orjson.loads(member)
        except orjson.JSONDecodeError:
            # A document with half of a surrogate pair, which no other string can contain.
            return member
        return content
    return member


def _base64(texts: Array) -> Found:
    try:
        # Otherwise it would skip characters that aren't base64's.
        return _bytes(partial(binascii.a2b_base64, strict_mode=True), texts)
    except binascii.Error:
        raise DecodeError("a value of a bytea column is not base64") from None


def _hexadecimal(texts: Array) -> Found:
    return _bytes(lambda value: scalars.binary(value.encode()), texts)


def _bytes(decode: Callable[[str], bytes], texts: Array) -> Found:
    values = [None if value is None else decode(value) for value in to_list(texts)]
    return pa.array(values, pa.binary()), {}


def _money(kind: Kind, texts: Array) -> Found:
    """From PostgreSQL's text, `-$1,234.50`, or the contract's form, `-1234.50`."""
    values, misfits = _cast(kind, pc.replace_substring_regex(texts, r"[$,]", ""))
    # With the signs that were removed for the cast: a misfit is kept as PostgreSQL wrote it.
    return values, {row: texts[row].as_py() for row in misfits}


def _booleans(texts: Array) -> Found:
    """From PostgreSQL's `t`, or JSON's `true`."""
    true = pc.is_in(texts, pa.array(["t", "true"]))
    known = pc.or_(true, pc.is_in(texts, pa.array(["f", "false"])))
    return pc.if_else(known, true, pa.scalar(None, pa.bool_())), _texts_outside(known, texts)


def _lists(kind: Kind, element: Reader, delimiter: bytes, texts: Array) -> Found:
    """From PostgreSQL's literals; a list has one dimension, whose bounds start at 1."""
    elements: list[str | None] = []
    misfits: Misfits = {}
    ends = [0]
    literals = to_list(texts)
    for row, literal in enumerate(literals):
        # Bounds other than 1 stand before the braces; a second dimension has its own brace.
        if literal is not None and literal.startswith(("[", "{{")):
            misfits[row] = literal
        elif literal is not None:
            elements += parse_array(literal.encode(), text, delimiter)
        ends.append(len(elements))
    values, unfit = element(pa.array(elements, pa.string()))
    misfits |= _owners(unfit, ends, literals)
    null = [literal is None or row in misfits for row, literal in enumerate(literals)]
    offsets = pa.array(ends, pa.int32())
    lists = pa.ListArray.from_arrays(offsets, values, type=kind, mask=pa.array(null))
    return lists, misfits


def _owners(unfit: Misfits, ends: Sequence[int], literals: Sequence[str | None]) -> Misfits:
    """The literals that contain elements that their type can't hold."""
    if not unfit:
        return {}
    return {
        row: literal
        for row, literal in enumerate(literals)
        if literal is not None and any(at in unfit for at in range(ends[row], ends[row + 1]))
    }


def _cast(kind: Kind, texts: Array) -> Found:
    try:
        return texts.cast(kind), {}
    except pa.ArrowInvalid:
        pass
    pattern = _pattern(kind)
    if pattern is None:
        return _one_by_one(kind, texts)
    fits = pc.match_substring_regex(texts, pattern)
    null = pa.scalar(None, pa.string())
    try:
        return pc.if_else(fits, texts, null).cast(kind), _texts_outside(fits, texts)
    except pa.ArrowInvalid:
        return _one_by_one(kind, texts)


def _pattern(kind: Kind) -> str | None:
    """The texts of the type that are the values of `kind`."""
    if pa.types.is_timestamp(kind):
        return _TIMESTAMP
    if pa.types.is_date(kind):
        return f"^{_DATE}$"
    if pa.types.is_decimal(kind):
        return r"^-?[0-9]+(?:\.[0-9]+)?$"
    return None


def _one_by_one(kind: Kind, texts: Array) -> Found:
    """For values that the declared type doesn't have, so that nothing is lost even then."""
    values = []
    misfits: Misfits = {}
    for row, value in enumerate(to_list(texts)):
        try:
            values.append(pa.array([value], pa.string()).cast(kind))
        except pa.ArrowInvalid:
            values.append(pa.nulls(1, kind))
            misfits[row] = value
    return pa.concat_arrays(values), misfits


def _texts_outside(fits: Array, texts: Array) -> Misfits:
    rows = pc.indices_nonzero(pc.and_(pc.is_valid(texts), pc.invert(fits)))
    return dict(zip(rows.to_pylist(), texts.take(rows).to_pylist(), strict=True))


def to_list(texts: Array) -> list[Any]:
    """The values in Python."""
    values: list[Any] = texts.to_numpy(zero_copy_only=False).tolist()
    return values


def only_chunk(column: Array) -> Array:
    """A column as one array."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return column.combine_chunks()
