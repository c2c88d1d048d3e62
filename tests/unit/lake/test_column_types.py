"""Which Iceberg type stores a column, and which Arrow type its values have."""

from __future__ import annotations

import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
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
    MapType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)

from headrace.archive.metadata import ColumnInfo
from headrace.lake.column_types import (
    ITEM_EXACT,
    ReservedColumnError,
    arrow_schema,
    arrow_type,
    iceberg_type,
)

NUMERIC = 1700
NUMERIC_ARRAY = 1231


def column(type_oid: int, modifier: int = -1, name: str = "c") -> ColumnInfo:
    return ColumnInfo(name, type_oid, modifier, "?", False)


def numeric(precision: int, scale: int) -> int:
    """As `numerictypmodin` packs it."""
    return ((precision << 16) | (scale & 0x7FF)) + 4


@pytest.mark.parametrize(
    ("type_oid", "modifier", "stored"),
    [
        (16, -1, BooleanType()),
        (17, -1, BinaryType()),
        (20, -1, LongType()),
        (21, -1, IntegerType()),
        (23, -1, IntegerType()),
        (26, -1, LongType()),
        (700, -1, FloatType()),
        (701, -1, DoubleType()),
        (790, -1, DecimalType(19, 2)),
        (1082, -1, DateType()),
        (1114, -1, TimestampType()),
        (1114, 0, TimestampType()),
        (1184, -1, TimestamptzType()),
        (NUMERIC, numeric(12, 2), DecimalType(12, 2)),
        (NUMERIC, numeric(38, 38), DecimalType(38, 38)),
        (NUMERIC, numeric(38, 0), DecimalType(38, 0)),
        (NUMERIC, numeric(39, 0), StringType()),
        (NUMERIC, numeric(3, -2), StringType()),
        (NUMERIC, numeric(2, 5), StringType()),
        (NUMERIC, numeric(1000, 1000), StringType()),
        (NUMERIC, -1, StringType()),
        # text, uuid, jsonb, time, timetz, interval, int4range, and types of users.
        *[(oid, -1, StringType()) for oid in (25, 2950, 3802, 1083, 1266, 1186, 3904, 16384)],
    ],
)
def test_a_scalar_is_stored_in_the_type_that_has_its_values(
    type_oid: int, modifier: int, stored: IcebergType
) -> None:
    assert iceberg_type(column(type_oid, modifier)) == stored


@pytest.mark.parametrize(
    ("type_oid", "modifier", "element"),
    [
        (1007, -1, IntegerType()),
        (1009, -1, StringType()),
        (NUMERIC_ARRAY, numeric(12, 2), DecimalType(12, 2)),
        (NUMERIC_ARRAY, -1, StringType()),
        (1185, -1, TimestamptzType()),
        (1020, -1, StringType()),
    ],
)
def test_an_array_is_a_list_of_optional_elements(
    type_oid: int, modifier: int, element: IcebergType
) -> None:
    stored = iceberg_type(column(type_oid, modifier))
    assert isinstance(stored, ListType)
    assert (stored.element_type, stored.element_required) == (element, False)


@pytest.mark.parametrize(
    "given",
    [
        *[column(oid) for oid in (16, 17, 20, 21, 26, 700, 701, 790, 1082, 1114, 1184, 25, 16384)],
        column(NUMERIC, numeric(12, 2)),
        column(1007),
        column(NUMERIC_ARRAY, numeric(12, 2)),
        column(1001),
    ],
)
def test_the_arrow_type_is_that_of_pyiceberg_except_for_the_width_of_offsets(
    given: ColumnInfo,
) -> None:
    due = schema_to_pyarrow(Schema(NestedField(1, "c", iceberg_type(given), required=False)))
    narrow = str(due.field("c").type).replace("large_", "")
    assert str(arrow_type(given)) == narrow


def test_a_tables_schema_ends_with_the_exact_texts() -> None:
    schema = arrow_schema([column(20, name="a"), column(25, name="b")])
    assert schema.names == ["a", "b", ITEM_EXACT]
    texts = MapType(2, StringType(), 3, StringType(), value_required=False)
    due = schema_to_pyarrow(Schema(NestedField(1, ITEM_EXACT, texts, required=False)))
    assert str(schema.field(ITEM_EXACT).type) == str(due.field(0).type).replace("large_", "")


def test_a_column_with_the_name_of_the_lakes_own_is_refused() -> None:
    with pytest.raises(ReservedColumnError, match="_headrace_exact"):
        arrow_schema([column(25, name=ITEM_EXACT)])


def test_a_numeric_with_the_smallest_modifier_is_a_decimal() -> None:
    """Precision 1 and scale 0 are the least; below it, there are no bounds."""
    assert iceberg_type(column(NUMERIC, numeric(1, 0))) == DecimalType(1, 0)
    assert iceberg_type(column(NUMERIC, 3)) == StringType()
