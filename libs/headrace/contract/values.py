"""The contract's table of values: the form of each PostgreSQL type in events and snapshots.

Owns the choice of a conversion by type and options. Both services use it on the same text forms, so
that a value looks the same everywhere. Promises a conversion for every type (PostgreSQL's text, if
the table has no other rule) whose result msgpack or orjson can write, or an `Inexact` of it, or
raises `DecodeError`. Pure: `resolve` looks up the catalog, and must answer from memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from headrace.contract import scalars, type_oids
from headrace.contract.arrays import Lists
from headrace.contract.scalars import SESSION_SETTINGS, text
from headrace.contract.values_json import embedded_json, native_json

__all__ = [
    "SESSION_SETTINGS",
    "ArrayForm",
    "Converter",
    "Encoding",
    "JsonForm",
    "Resolve",
    "TypeInfo",
    "TypeKind",
    "ValueOptions",
    "converter",
    "may_be_inexact",
    "text",
]


class Encoding(StrEnum):
    """The encoding of messages."""

    MSGPACK = "msgpack"
    JSON = "json"


class ArrayForm(StrEnum):
    """PostgreSQL's literal, or native lists."""

    LITERAL = "literal"
    LIST = "list"


class JsonForm(StrEnum):
    """json and jsonb as part of the message, or as PostgreSQL's text."""

    NATIVE = "native"
    TEXT = "text"


class TypeKind(StrEnum):
    """pg_type's typtype, with arrays (which are base types there) as a separate kind."""

    BASE = "base"
    DOMAIN = "domain"
    ARRAY = "array"
    ENUM = "enum"
    COMPOSITE = "composite"
    RANGE = "range"
    MULTIRANGE = "multirange"
    PSEUDO = "pseudo"


@dataclass(frozen=True, slots=True)
class ValueOptions:
    """The operator's options; `int8_as_string` applies to JSON only."""

    encoding: Encoding = Encoding.MSGPACK
    arrays: ArrayForm = ArrayForm.LITERAL
    json_values: JsonForm = JsonForm.NATIVE
    int8_as_string: bool = False


@dataclass(frozen=True, slots=True)
class TypeInfo:
    """A type that is not built in: `base_oid` for a domain, `element_oid` and `delimiter` for an
    array.
    """

    kind: TypeKind
    base_oid: int = 0
    element_oid: int = 0
    delimiter: str = ","


Converter = Callable[[bytes], object]
Resolve = Callable[[int], TypeInfo | None]

_SAME_IN_BOTH: Final[Mapping[int, Converter]] = MappingProxyType(
    {
        type_oids.BOOL: scalars.boolean,
        type_oids.INT2: scalars.integer,
        type_oids.INT4: scalars.integer,
        type_oids.INT8: scalars.integer,
        type_oids.OID: scalars.integer,
        type_oids.MONEY: scalars.money,
        type_oids.TIMESTAMP: scalars.timestamp,
        type_oids.TIMESTAMPTZ: scalars.timestamp_utc,
        type_oids.TIMETZ: scalars.time_with_zone,
    }
)
_CONVERTERS: Final[Mapping[Encoding, Mapping[int, Converter]]] = MappingProxyType(
    {
        Encoding.MSGPACK: {
            **_SAME_IN_BOTH,
            type_oids.FLOAT4: scalars.number,
            type_oids.FLOAT8: scalars.number,
            type_oids.BYTEA: scalars.binary,
            type_oids.JSON: native_json,
            type_oids.JSONB: native_json,
        },
        # JSON has no form for NaN, infinity and bytes. Its documents are embedded as they are.
        Encoding.JSON: {
            **_SAME_IN_BOTH,
            type_oids.FLOAT4: scalars.number_or_name,
            type_oids.FLOAT8: scalars.number_or_name,
            type_oids.BYTEA: scalars.binary_base64,
            type_oids.JSON: embedded_json,
            type_oids.JSONB: embedded_json,
        },
    }
)


_DOCUMENTS: Final = frozenset({native_json, embedded_json})


def may_be_inexact(convert: Converter) -> bool:
    """Whether it returns `Inexact` for some values."""
    return convert in _DOCUMENTS or isinstance(convert, Lists)


def converter(type_oid: int, options: ValueOptions, resolve: Resolve) -> Converter:
    """The function that converts the text of a value of this type, never NULL, for the encoder.

    Built once per column, when its relation arrives. `resolve` describes a type that is not built
    in; None means that it is unknown, which makes it text.
    """
    element_oid = type_oids.ELEMENT_OIDS.get(type_oid)
    if element_oid is not None:
        # box is the only built-in type with another delimiter, because its own text has commas.
        return _array_converter(
            element_oid, ";" if element_oid == type_oids.BOX else ",", options, resolve
        )
    if type_oid in _CONVERTERS[options.encoding]:
        info = None
    else:
        info = resolve(type_oid)
    if info is not None and info.kind == TypeKind.DOMAIN:
        # A domain's values have the text of its base type, which may be a domain as well.
        return converter(info.base_oid, options, resolve)
    if info is not None and info.kind == TypeKind.ARRAY:
        return _array_converter(info.element_oid, info.delimiter, options, resolve)
    return _scalar_converter(type_oid, options)


def _array_converter(
    element_oid: int, delimiter: str, options: ValueOptions, resolve: Resolve
) -> Converter:
    if options.arrays == ArrayForm.LITERAL:
        return text
    element = converter(element_oid, options, resolve)
    return Lists(element, delimiter.encode(), documents=element in _DOCUMENTS)


def _scalar_converter(type_oid: int, options: ValueOptions) -> Converter:
    if options.json_values == JsonForm.TEXT and type_oid in {type_oids.JSON, type_oids.JSONB}:
        return text
    if options.int8_as_string and options.encoding == Encoding.JSON and type_oid == type_oids.INT8:
        return scalars.integer_text
    return _CONVERTERS[options.encoding].get(type_oid, text)
