"""Types of a database that lacks some of PostgreSQL's values: what it holds, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.mirror import duckdb_types, mariadb_statements
from headrace.mirror.mirror_state import TABLE, tables_of
from headrace.mirror.native_types import (
    TEXT_MARK,
    Dialect,
    NativeTypes,
    ValueRefusedError,
    kept_as_chosen,
)
from headrace.mirror.table import BootstrapRun, Column, Phase, Table, TableState

MARIADB, DUCKDB = mariadb_statements.DIALECT, duckdb_types.DIALECT
KINDS = {
    "flag": "boolean",
    "ratio": "double precision",
    "price": "numeric(12,2)",
    "day": "date",
    "at": "timestamp with time zone",
    "clock": "time without time zone",
    "note": "text",
}
ALL = Table("public", "all", tuple(Column(*pair) for pair in KINDS.items()))


@pytest.mark.parametrize(
    ("dialect", "lacking"),
    [
        (
            MARIADB,
            [
                "ratio (DOUBLE): NaN, infinities",
                "price (DECIMAL(12,2)): NaN",
                "day (DATE): years before Christ, years after 9999, infinities",
                "at (DATETIME(6)): years before Christ, years after 9999, infinities",
            ],
        ),
        (
            DUCKDB,
            [
                "price (DECIMAL(12,2)): NaN",
                "day (DATE): years before Christ, years after 290000",
                "at (TIMESTAMPTZ): years before Christ, years after 290000",
            ],
        ),
    ],
)
def test_a_type_that_lacks_values_says_which(dialect: Dialect, lacking: list[str]) -> None:
    assert NativeTypes(dialect).limits(ALL) == lacking


@pytest.mark.parametrize(
    ("dialect", "name", "value", "text"),
    [
        (MARIADB, "day", "2026-01-02", "2026-01-02"),
        (MARIADB, "day", "9999-12-31", "9999-12-31"),
        (MARIADB, "day", "10000-01-01", None),
        (MARIADB, "day", "0044-03-15 BC", None),
        (MARIADB, "day", "infinity", None),
        (DUCKDB, "day", "infinity", "infinity"),
        (DUCKDB, "day", "10000-01-01", "10000-01-01"),
        (MARIADB, "at", "2026-01-02T03:04:05.000006Z", "2026-01-02 03:04:05.000006"),
        (MARIADB, "at", "2026-01-02 03:04:05+00", "2026-01-02 03:04:05"),
        (MARIADB, "at", "10000-01-02T03:04:05Z", None),
    ],
)
def test_a_moment_is_stored_to_the_digit_or_refused(
    dialect: Dialect, name: str, value: str, text: str | None
) -> None:
    column = NativeTypes(dialect).column(ALL, Column(name, KINDS[name]))
    if text is None:
        with pytest.raises(ValueRefusedError):
            column.text(value)
    else:
        assert column.text(value) == text


def test_only_tables_whose_columns_become_text_are_copied_again() -> None:
    prices = Table("public", "prices", (Column("price", "numeric(12,2)"),))
    notes = replace(prices, name="notes", columns=(Column("note", "text"),))
    run = BootstrapRun("id", 40, 1, 1, replace(prices, name="loading", staging=True))
    states = (
        TableState("public", "prices", Phase.FOLLOWING, prices),
        TableState("public", "notes", Phase.FOLLOWING, notes),
        TableState("public", "loading", Phase.LOADING, None, run=run),
    )
    marks = {TABLE + state.token: state.encode() for state in states}
    assert kept_as_chosen({**marks, TEXT_MARK: "[]"}, NativeTypes(MARIADB)) == {}
    changed = kept_as_chosen(marks, NativeTypes(MARIADB, ["*.price"]))
    assert changed.pop(TEXT_MARK) == '["*.price"]'
    wanted = tables_of({key: text for key, text in changed.items() if text is not None})
    assert {token: (state.phase, state.awaited) for token, state in wanted.items()} == {
        "prices": (Phase.WANTED, True),
        "loading": (Phase.WANTED, False),
    }
    # A name that no column has changes no table.
    assert kept_as_chosen(marks, NativeTypes(MARIADB, ["*.other"])).keys() == {TEXT_MARK}
