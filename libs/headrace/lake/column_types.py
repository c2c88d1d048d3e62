"""The types of the lake's columns: how Iceberg stores a column of PostgreSQL, and the Arrow type
that it is written from.

Every column is optional, because a value that its type can't hold is null there, and its text is in
the map `_headrace_exact`. A type without an Iceberg type of the same values is a string in the
contract's form. That includes `uuid`: Spark's Parquet reader refuses Parquet's UUID type, and
PyIceberg can't filter by it. It also includes domains: the log names only their own OID. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import pyarrow as pa
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from headrace.archive.metadata import ColumnInfo
from headrace.contract import type_oids
from headrace.errors import HeadraceError

ITEM_EXACT: Final = "_headrace_exact"
"""The column of the texts of values that their columns can't hold, by the column's name."""

ARROW_EXACT: Final = pa.map_(pa.string(), pa.string())

# A table of Iceberg assigns fields' ids, also those of elements.
_UNASSIGNED = -1
# The limit of Iceberg's decimals.
_PRECISION_MAX = 38
# The modifier of numeric: 4 bytes of a header that it counts, 16 bits of precision, 11 of scale.
_MODIFIER_OFFSET = 4
_SCALE_MASK = 0x7FF
_SCALE_SIGN = 0x400

_SCALARS: Final[Mapping[int, PrimitiveType]] = MappingProxyType(
    {
        type_oids.BOOL: BooleanType(),
        type_oids.INT2: IntegerType(),
        type_oids.INT4: IntegerType(),
        type_oids.INT8: LongType(),
        type_oids.OID: LongType(),
        type_oids.FLOAT4: FloatType(),
        type_oids.FLOAT8: DoubleType(),
        # 64 bits of cents.
        type_oids.MONEY: DecimalType(19, 2),
        type_oids.BYTEA: BinaryType(),
        type_oids.DATE: DateType(),
        type_oids.TIMESTAMP: TimestampType(),
        type_oids.TIMESTAMPTZ: TimestamptzType(),
    }
)
_ARROW: Final[Mapping[type[PrimitiveType], pa.DataType]] = MappingProxyType(
    {
        BooleanType: pa.bool_(),
        IntegerType: pa.int32(),
        LongType: pa.int64(),
        FloatType: pa.float32(),
        DoubleType: pa.float64(),
        BinaryType: pa.binary(),
        DateType: pa.date32(),
        TimestampType: pa.timestamp("us"),
        TimestamptzType: pa.timestamp("us", tz="UTC"),
        StringType: pa.string(),
    }
)


class ReservedColumnError(HeadraceError):
    """A table has a column with the name of the lake's own."""

    remedy = "Rename the column, or exclude it with HEADRACE_EXCLUDE_COLUMNS."


def iceberg_type(column: ColumnInfo) -> IcebergType:
    """The type of the column in the lake; elements of lists have no ids yet."""
    element_oid = type_oids.ELEMENT_OIDS.get(column.type_oid)
    if element_oid is None:
        return _scalar(column.type_oid, column.type_modifier)
    element = _scalar(element_oid, column.type_modifier)
    return ListType(_UNASSIGNED, element, element_required=False)


def arrow_type(column: ColumnInfo) -> pa.DataType:
    """The type of the column's values before they are written."""
    stored = iceberg_type(column)
    if isinstance(stored, ListType):
        return pa.list_(pa.field("element", _arrow(stored.element_type)))
    return _arrow(stored)


def arrow_schema(columns: Sequence[ColumnInfo]) -> pa.Schema:
    """The columns of a table's rows, and after them `_headrace_exact`."""
    if any(column.name == ITEM_EXACT for column in columns):
        raise ReservedColumnError(f"the lake's tables have a column {ITEM_EXACT} themselves")
    fields = [pa.field(column.name, arrow_type(column)) for column in columns]
    return pa.schema([*fields, pa.field(ITEM_EXACT, ARROW_EXACT)])


def numeric_bounds(modifier: int) -> tuple[int, int] | None:
    """Precision and scale of a numeric whose bounds Iceberg's decimals have too."""
    if modifier < _MODIFIER_OFFSET:
        return None
    precision = (modifier - _MODIFIER_OFFSET) >> 16
    # Since PostgreSQL 15 the scale can be negative, or greater than the precision.
    scale = (((modifier - _MODIFIER_OFFSET) & _SCALE_MASK) ^ _SCALE_SIGN) - _SCALE_SIGN
    if precision > _PRECISION_MAX or not 0 <= scale <= precision:
        return None
    return precision, scale


def _scalar(type_oid: int, modifier: int) -> PrimitiveType:
    if type_oid == type_oids.NUMERIC:
        return _numeric(modifier)
    return _SCALARS.get(type_oid, StringType())


def _numeric(modifier: int) -> PrimitiveType:
    bounds = numeric_bounds(modifier)
    return StringType() if bounds is None else DecimalType(*bounds)


def _arrow(stored: IcebergType) -> pa.DataType:
    if isinstance(stored, DecimalType):
        return pa.decimal128(stored.precision, stored.scale)
    assert isinstance(stored, PrimitiveType), "lists contain scalars only"
    return _ARROW[type(stored)]
