"""The readers of the lake's rows with unusual batches: empty, damaged, or with other columns."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

import pyarrow as pa
import pytest

from headrace.archive.metadata import ColumnInfo
from headrace.errors import DecodeError
from headrace.lake.column_types import ITEM_EXACT, arrow_schema
from headrace.lake.copy_rows import CopyRows
from headrace.lake.rows import JsonRows

ID = ColumnInfo("id", 20, -1, "bigint", True)
SMALL = ColumnInfo("small", 21, -1, "smallint", False)
NOTE = ColumnInfo("note", 25, -1, "text", False)
AT = ColumnInfo("at", 1184, -1, "timestamp with time zone", False)
AMOUNT = ColumnInfo("amount", 1700, (6 << 16 | 2) + 4, "numeric(6,2)", False)
RAW = ColumnInfo("raw", 17, -1, "bytea", False)
DOCUMENT = ColumnInfo("doc", 3802, -1, "jsonb", False)


def json_rows(columns: list[ColumnInfo], *texts: str | None) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = (
        JsonRows(columns).read(pa.array(texts, pa.string()), None).to_pylist()
    )
    return rows


def test_no_rows_have_the_schema_of_rows() -> None:
    columns = [ID, NOTE, AT]
    assert JsonRows(columns).read(pa.array([], pa.string()), []).schema == arrow_schema(columns)
    assert CopyRows(columns, {}).read(b"").schema == arrow_schema(columns)


def test_a_row_without_json_is_one_of_nulls() -> None:
    assert json_rows([ID, DOCUMENT], None, '{"id":1,"doc":[]}') == [
        {"id": None, "doc": None, ITEM_EXACT: None},
        {"id": 1, "doc": "[]", ITEM_EXACT: None},
    ]


def test_members_of_other_names_are_ignored() -> None:
    assert json_rows([ID], '{"other":{"id":7},"id":1,"more":"x"}') == [{"id": 1, ITEM_EXACT: None}]


def test_a_slice_of_texts_is_read_as_the_slice() -> None:
    texts = pa.array([f'{{"id":{number}}}' for number in range(9)]).slice(3, 2)
    assert JsonRows([ID]).read(texts, None)["id"].to_pylist() == [3, 4]


def test_postgresqls_text_takes_the_place_of_the_value_in_json() -> None:
    texts = pa.array(['{"id":1,"doc":null,"amount":"1.00"}'] * 4)
    exact = [None, {"doc": "null"}, {"at": "infinity", "amount": "2.50"}, {"amount": "NaN"}]
    found = JsonRows([ID, DOCUMENT, AT, AMOUNT]).read(texts, exact).to_pylist()
    assert [(row["doc"], row["at"], row["amount"], row[ITEM_EXACT]) for row in found] == [
        (None, None, Decimal("1.00"), None),
        ("null", None, Decimal("1.00"), None),
        (None, None, Decimal("2.50"), [("at", "infinity")]),
        (None, None, None, [("amount", "NaN")]),
    ]


def test_exact_text_of_a_value_that_fits_replaces_one_that_did_not() -> None:
    found = JsonRows([AMOUNT]).read(pa.array(['{"amount":"NaN"}']), [{"amount": "1.50"}])
    assert found.to_pylist() == [{"amount": Decimal("1.50"), ITEM_EXACT: None}]


@pytest.mark.parametrize("value", ["3000000000", "1.5", "x"])
def test_a_value_that_the_declared_type_does_not_have_is_not_lost(value: str) -> None:
    due = [
        {"id": 1, "small": None, ITEM_EXACT: [("small", value)]},
        {"id": 2, "small": 7, ITEM_EXACT: None},
    ]
    quoted = value if value != "x" else '"x"'
    given = f'{{"id":1,"small":{quoted}}}', '{"id":2,"small":7}'
    assert json_rows([ID, SMALL], *given) == due
    assert CopyRows([ID, SMALL], {}).read(f"1,{value}\n2,7\n".encode()).to_pylist() == due


@pytest.mark.parametrize(
    ("column", "text"), [(AMOUNT, "1.555"), (AMOUNT, "10000.00"), (AT, "2025-13-12 00:00:00+00")]
)
def test_a_value_outside_the_column_is_kept_beside_others(column: ColumnInfo, text: str) -> None:
    found = CopyRows([column], {}).read(f"{text}\nNaN\n\n".encode())
    assert found[column.name].to_pylist() == [None, None, None]
    assert found[ITEM_EXACT].to_pylist() == [[(column.name, text)], [(column.name, "NaN")], None]


def test_null_and_the_empty_string_stay_distinct() -> None:
    assert CopyRows([NOTE], {}).read(b'\n""\nNULL\n')["note"].to_pylist() == [None, "", "NULL"]


@pytest.mark.parametrize("data", [b"secret,1\n", b"\xffsecret\n"])
def test_copy_of_other_columns_is_an_error_without_values(data: bytes) -> None:
    with pytest.raises(DecodeError) as caught:
        CopyRows([NOTE], {}).read(data)
    assert "secret" not in str(caught.value)


def by_copy() -> pa.Table:
    return CopyRows([RAW], {}).read(b"secret\n")


def by_json() -> pa.Table:
    return JsonRows([RAW]).read(pa.array(['{"raw":"AP8!="}']), None)


@pytest.mark.parametrize("read", [by_copy, by_json])
def test_bytes_in_another_form_are_an_error_without_values(read: Callable[[], pa.Table]) -> None:
    with pytest.raises(DecodeError) as caught:
        read()
    assert "secret" not in str(caught.value)
