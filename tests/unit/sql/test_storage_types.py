"""The type that a column has in the copy holds what the lake's type holds."""

from __future__ import annotations

import duckdb
import pytest

from headrace.contract import type_oids
from headrace.sql.storage_types import Meaning, TypeStorage, storage

NUMERIC_ARRAY = 1231
UNKNOWN = 90_000


def numeric(precision: int, scale: int) -> int:
    """As `numerictypmodin` packs it."""
    return ((precision << 16) | (scale & 0x7FF)) + 4


@pytest.mark.parametrize(
    ("type_oid", "modifier", "expected"),
    [
        (type_oids.INT2, -1, TypeStorage("SMALLINT", Meaning.VALUE)),
        (type_oids.NUMERIC, numeric(10, 3), TypeStorage("DECIMAL(10,3)", Meaning.VALUE)),
        (type_oids.NUMERIC, numeric(38, 38), TypeStorage("DECIMAL(38,38)", Meaning.VALUE)),
        (25, -1, TypeStorage("VARCHAR", Meaning.CHARACTERS)),
        (1042, 9, TypeStorage("VARCHAR", Meaning.CHARACTERS)),
    ],
)
def test_a_type_with_a_counterpart_in_duckdb_is_that(
    type_oid: int, modifier: int, expected: TypeStorage
) -> None:
    assert storage(type_oid, modifier) == expected


@pytest.mark.parametrize(
    ("type_oid", "modifier"),
    [
        (type_oids.NUMERIC, -1),
        (type_oids.NUMERIC, numeric(39, 0)),
        (type_oids.NUMERIC, numeric(3, -2)),
        (type_oids.NUMERIC, numeric(3, 5)),
        (type_oids.TIMETZ, -1),
        (type_oids.JSON, -1),
        (type_oids.JSONB, -1),
        (UNKNOWN, -1),
    ],
)
def test_a_type_without_a_counterpart_is_text_whose_order_says_nothing(
    type_oid: int, modifier: int
) -> None:
    assert storage(type_oid, modifier) == TypeStorage("VARCHAR", Meaning.TEXT)


def test_an_array_is_a_list_of_its_elements_storage() -> None:
    found = storage(NUMERIC_ARRAY, numeric(5, 2))
    assert found.duckdb == "DECIMAL(5,2)[]"
    assert found.element == TypeStorage("DECIMAL(5,2)", Meaning.VALUE)


def test_duckdb_has_every_type() -> None:
    oids = [*range(1, 4000), *type_oids.ELEMENT_OIDS]
    names = {storage(oid, modifier).duckdb for oid in oids for modifier in (-1, numeric(12, 2))}
    assert len(names) > 30
    with duckdb.connect() as database:
        for name in names:
            database.execute(f"SELECT NULL::{name}")
