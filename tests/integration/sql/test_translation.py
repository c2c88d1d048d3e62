"""Parameters, privileges and the tables of a statement, from PostgreSQL's own trees."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from decimal import Decimal
from typing import Any

import pytest

from headrace.sql.duckdb_errors import OVERFLOWS
from headrace.sql.errors import NotProvenEqualError
from headrace.sql.translation import RequiredPrivilege, required_privileges, translate
from headrace.testing.servers import SessionServers
from tests.support import sql_tables
from tests.support.sql_pair import SqlPair, difference, same, sql_pair

# pg_class.relacl's bit of SELECT.
SELECT = 2
PARAMETERS: list[tuple[str, tuple[str | None, ...], tuple[Any, ...]]] = [
    ("SELECT id, i4 + $1 FROM calm WHERE tx = $2 ORDER BY id", ("7", "a"), (7, "a")),
    ("SELECT id FROM calm WHERE n > $1 ORDER BY id", ("1.5",), (Decimal("1.5"),)),
    ("SELECT id, n * $1, $1::numeric FROM calm ORDER BY id", ("-0.250",), (Decimal("-0.250"),)),
    ("SELECT id FROM calm WHERE n = $1 OR i4 = $2", (None, "3"), (None, 3)),
    ("SELECT id FROM calm WHERE d >= $1 ORDER BY id", ("2005-01-01",), (date(2005, 1, 1),)),
    ("SELECT id FROM calm WHERE i4 = ANY ($1) ORDER BY id", ("{1,2,3,NULL}",), ([1, 2, 3, None],)),
    ("SELECT id FROM calm WHERE tx <> ALL ($1) ORDER BY id", ("{a,b}",), (["a", "b"],)),
    ("SELECT id, tx <> ALL ($1::text[]) FROM calm ORDER BY id", (None,), (None,)),
    ("SELECT id FROM calm ORDER BY id LIMIT $1 OFFSET $2", ("3", "2"), (3, 2)),
    (
        "SELECT id, current_date = $1::date FROM calm ORDER BY id",
        ("2001-01-01",),
        (date(2001, 1, 1),),
    ),
]
# More digits than 64 bits have, of single values and of sums, also below subqueries.
WIDE = [
    "SELECT sum(m * m), min(m * n), count(*) FROM wild",
    "SELECT b, sum(n * m - m * m), avg(m * (1 - m)) FROM wild GROUP BY b ORDER BY b",
    "SELECT max(x), sum(x) FROM (SELECT m * m AS x, id FROM wild) s WHERE x > 1",
    "SELECT count(*) FROM wild WHERE m * m * n > 0",
    "SELECT sum(CASE WHEN b THEN m * m ELSE n * n END) FROM wild",
]
CHARACTERS = [
    "'ab'", "'ab  '", "'ab        '", "'abcde'", "' '", "''", "'a'::bpchar", "'ab'::char(4)", "'ab'::char(2)",
    "'abcdef'::char(9)", "'é'", "NULL", "c.ch", "c.vc::char(3)", "c.tx::bpchar", "(SELECT 'a'::bpchar)",
    "lag(w.ch, 1, 'a'::bpchar) OVER (ORDER BY w.id, c.id)",
]  # fmt: skip
# Together more digits than a DECIMAL of DuckDB has.
_WHOLE = "SELECT c.n::numeric(38,0) FROM calm c"
DIGITS = [
    f"SELECT id FROM calm WHERE n IN ({_WHOLE}) ORDER BY id",
    f"SELECT id, n > ALL ({_WHOLE} WHERE c.id = calm.id) FROM calm ORDER BY id",
    f"SELECT id, n < ANY ({_WHOLE} WHERE c.id = calm.id) FROM calm ORDER BY id",
    f"SELECT id FROM calm WHERE n NOT IN ({_WHOLE} WHERE c.n IS NOT NULL) ORDER BY id",
    "SELECT id, n::numeric(38,0) = ANY (SELECT m FROM other) FROM calm ORDER BY id",
]
SETS_OF_TEXTS = [
    "SELECT vc FROM calm INTERSECT SELECT ch FROM other ORDER BY 1",
    "SELECT vc FROM calm EXCEPT SELECT ch FROM other ORDER BY 1",
    "SELECT ch::text FROM calm INTERSECT SELECT ch FROM other ORDER BY 1",
    "SELECT x || '|', length(x), x = 'ab' FROM (SELECT vc AS x FROM calm UNION ALL SELECT ch FROM calm) q ORDER BY 1",
    "SELECT x || '|' FROM (SELECT tx AS x FROM wild UNION SELECT ch FROM wild) q WHERE x IS NOT NULL ORDER BY 1",
    "SELECT ch FROM calm UNION ALL SELECT 'zz '::varchar ORDER BY 1",
]
SUBSTRINGS = [(1, 2), (0, 2), (-3, 4), (-3, 5), (2, 0), (5, 99), (2147483647, 2147483647), (-2147483647, 2147483647), (2, -1)]  # fmt: skip
LEAST_INTEGERS = "SELECT right(tx, -2147483648), left(tx, -2147483648) FROM calm ORDER BY id"
_ZEROS = "(SELECT -f * 0 AS x, id FROM calm WHERE id < 4) s"
NEGATIVE_ZEROS = [
    "SELECT ceil(f), id FROM calm ORDER BY 1, 2",
    f"SELECT x, id FROM {_ZEROS} ORDER BY x DESC, id",
    f"SELECT x, rank() OVER (PARTITION BY x ORDER BY id) FROM {_ZEROS} ORDER BY id",
    f"SELECT x, lag(x) OVER (ORDER BY x, id) FROM {_ZEROS} ORDER BY id",
    f"SELECT array_agg(x ORDER BY x, id) FROM {_ZEROS}",
    f"SELECT max(x) OVER (ORDER BY x, id ROWS CURRENT ROW) FROM {_ZEROS} ORDER BY id",
]


@pytest.fixture(scope="module", params=[18, 16])
def pair(request: pytest.FixtureRequest, session_servers: SessionServers) -> Iterator[SqlPair]:
    server = session_servers.shared_postgres(request.param)
    view = "CREATE VIEW seen AS SELECT id, n FROM calm WHERE b"
    with sql_pair(server, *sql_tables.statements(), view) as made:
        yield made


@pytest.mark.parametrize(("sql", "texts", "values"), PARAMETERS)
def test_parameters_have_the_same_effect(
    pair: SqlPair, sql: str, texts: tuple[str | None, ...], values: tuple[Any, ...]
) -> None:
    expected, found = pair.expected(sql, texts), pair.answered(sql, values)
    assert expected.rows
    assert not found.refused, found.refused
    assert same(expected, found, ordered=True), difference(sql, expected, found)


@pytest.mark.parametrize("sql", DIGITS)
def test_numerics_of_many_digits_are_not_rounded_to_be_compared(pair: SqlPair, sql: str) -> None:
    expected, found = pair.expected(sql), pair.answered(sql)
    assert not found.refused, found.refused
    assert same(expected, found, ordered=True), difference(sql, expected, found)


@pytest.mark.parametrize("sql", WIDE)
def test_numbers_that_need_more_than_64_bits_are_computed_with_more(
    pair: SqlPair, sql: str
) -> None:
    narrow = pair.translation(sql, narrow=True)
    assert narrow.narrow
    with pytest.raises(OVERFLOWS):
        pair.duck.execute(narrow.sql).fetchall()
    expected, found = pair.expected(sql), pair.answered(sql)
    assert not found.refused, found.refused
    assert same(expected, found, ordered=True), difference(sql, expected, found)


def test_a_statement_that_sends_rows_while_it_computes_has_only_wide_numbers(
    pair: SqlPair,
) -> None:
    for sql in (
        "SELECT m * m FROM wild",
        "SELECT sum(m * m) FROM calm UNION ALL SELECT m FROM wild",
    ):
        assert not pair.translation(sql, narrow=True).narrow
        assert pair.translation(sql, narrow=True) == pair.translation(sql)


@pytest.mark.parametrize("other", CHARACTERS)
@pytest.mark.parametrize("operator", ["=", "<>", "<", ">="])
def test_characters_of_any_length_compare_as_in_postgresql(
    pair: SqlPair, operator: str, other: str
) -> None:
    sql = f"SELECT w.id, c.id, w.ch {operator} {other}, {other} {operator} w.ch FROM wild w, calm c ORDER BY 1, 2"
    expected, found = pair.expected(sql), pair.answered(sql)
    assert not found.refused, found.refused
    assert same(expected, found, ordered=True), difference(sql, expected, found)


def test_the_least_integer_is_a_length_as_in_postgresql(pair: SqlPair) -> None:
    expected, found = pair.expected(LEAST_INTEGERS), pair.answered(LEAST_INTEGERS)
    assert not found.refused, found.refused
    assert same(expected, found, ordered=True), difference(LEAST_INTEGERS, expected, found)


@pytest.mark.parametrize(("start", "length"), SUBSTRINGS)
def test_a_part_of_a_text_by_constants_is_postgresqls(
    pair: SqlPair, start: int, length: int
) -> None:
    part = f"FROM {start} FOR {length}"
    sql = f"SELECT id, substring(tx {part}), substring(ch {part}), substr(vc, i4 * 0 + 1, 2) FROM wild ORDER BY id"
    expected, found = pair.expected(sql), pair.answered(sql)
    assert not found.refused, found.refused
    assert same(expected, found, ordered=True), difference(sql, expected, found)


@pytest.mark.parametrize("sql", SETS_OF_TEXTS)
def test_a_set_operation_leaves_the_padding_out_where_the_text_has_none(
    pair: SqlPair, sql: str
) -> None:
    expected, found = pair.expected(sql), pair.answered(sql)
    assert expected.rows
    assert not found.refused, found.refused
    assert same(expected, found, ordered=True), difference(sql, expected, found)


def test_a_set_operation_with_a_name_is_left_to_postgresql(pair: SqlPair) -> None:
    """A name has 63 bytes at most."""
    for sql in (
        "SELECT tx::name FROM calm UNION SELECT repeat(tx, 99) FROM calm",
        "SELECT ch FROM calm UNION SELECT tx::name FROM calm",
    ):
        assert pair.answered(sql).refused, sql


def test_a_part_of_a_text_from_a_null_place_is_null(pair: SqlPair) -> None:
    sql = (
        "SELECT id, substr(tx, i4), substring(tx, i2::int), substr(tx, NULL), substr(tx, i4, i2), "
        "substring(tx, 2), substr(tx, -5), substr(tx, i4 * 0 + 2) FROM calm WHERE i2 > 0 OR i2 IS NULL "
        "ORDER BY id"
    )
    expected, found = pair.expected(sql), pair.answered(sql)
    assert any(row[1] is None and row[5] is not None for row in expected.rows)
    assert not found.refused, found.refused
    assert same(expected, found, ordered=True), difference(sql, expected, found)


def test_an_overflow_next_to_a_division_is_not_taken_for_one_by_zero(pair: SqlPair) -> None:
    """DuckDB's error quotes the statement, which has the other error's text."""
    found = pair.answered("SELECT m % $1 FROM wild", (Decimal("1E-30"),))
    assert found.refused
    assert not found.sqlstate


@pytest.mark.parametrize("sql", NEGATIVE_ZEROS)
def test_a_negative_zero_keeps_its_sign_where_rows_are_sorted_by_it(
    pair: SqlPair, sql: str
) -> None:
    expected, found = pair.expected(sql), pair.answered(sql)
    assert "-0" in str(expected.rows)
    assert not found.refused, found.refused
    assert same(expected, found, ordered=True), difference(sql, expected, found)


@pytest.mark.parametrize("column", ["i8", "m"])
@pytest.mark.parametrize("condition", ["< 0", "> 0"])
def test_a_sum_next_to_an_aggregate_of_no_rows_does_not_overflow(
    pair: SqlPair, column: str, condition: str
) -> None:
    sql = (
        f"SELECT sum(w.{column}), avg(w.{column}) FROM wild w, calm c, "
        f"(SELECT min(i8) AS x FROM wild WHERE vc LIKE 'é%') z WHERE w.{column} {condition}"
    )
    expected, found = pair.expected(sql), pair.answered(sql)
    # More than 64 bits hold, scaled as DuckDB stores it.
    assert abs(Decimal(expected.rows[0][0] or 0)) * (10**6 if column == "m" else 1) > 2**63
    assert not found.refused, found.refused
    assert same(expected, found, ordered=True), difference(sql, expected, found)


@pytest.mark.parametrize("operation", ["EXCEPT", "INTERSECT"])
def test_set_operations_that_count_equal_floats_are_refused(pair: SqlPair, operation: str) -> None:
    # DuckDB would show -0 as 0.
    with pytest.raises(NotProvenEqualError, match=f"{operation} ALL of floats"):
        pair.translation(f"SELECT f FROM calm {operation} ALL SELECT f FROM other")


def test_a_statement_with_numeric_parameters_is_described_before_they_have_values(
    pair: SqlPair,
) -> None:
    translation = pair.translation("SELECT id FROM calm WHERE n > $1 AND i4 = $2")
    assert translation.parameters == (1700, 23)
    assert [column.type_oid for column in translation.columns] == [23]


def test_values_of_the_session_are_parameters_after_the_clients(pair: SqlPair) -> None:
    translation = pair.translation("SELECT id FROM calm WHERE i4 = $1 AND d < current_date")
    assert [value.expression for value in translation.session_values] == ["current_date"]
    assert "$2" in translation.sql


def test_the_lakes_tables_are_found_wherever_a_statement_reads_them(pair: SqlPair) -> None:
    names = {relation.name: relid for relid, relation in pair.relations.items()}
    translation = pair.translation(
        "WITH q AS (SELECT id FROM other) SELECT * FROM q WHERE EXISTS (SELECT FROM seen WHERE seen.id = q.id)"
    )
    assert translation.relids == {names["calm"], names["other"]}
    assert pair.translation("SELECT * FROM seen").relids == {names["calm"]}


def test_a_view_needs_its_owners_privilege_on_the_table_and_the_clients_on_the_view(
    pair: SqlPair,
) -> None:
    names = {relation.name: relid for relid, relation in pair.relations.items()}
    row = pair.postgres.execute(
        "SELECT 'seen'::regclass::oid::int8, current_user::regrole::oid::int8"
    ).fetchone()
    assert row is not None
    view, owner = row
    needed = required_privileges(pair.tree("SELECT n FROM seen"))
    assert RequiredPrivilege(view, SELECT, frozenset({2}), 0) in needed
    # The columns id, n and b of the table.
    assert RequiredPrivilege(names["calm"], SELECT, frozenset({1, 5, 13}), owner) in needed


def test_a_column_that_the_copy_cannot_hold_is_refused_by_name(pair: SqlPair) -> None:
    relations = {
        relid: replace(
            relation,
            columns=tuple(replace(column, held=column.name != "n") for column in relation.columns),
        )
        for relid, relation in pair.relations.items()
    }
    assert translate(pair.tree("SELECT m FROM calm"), relations, pair.builtins).columns
    with pytest.raises(NotProvenEqualError, match=r"the column public\.calm\.n"):
        translate(pair.tree("SELECT m FROM calm WHERE n > 1"), relations, pair.builtins)


def test_what_depends_on_the_time_zone_or_the_date_style_needs_to_know_them(pair: SqlPair) -> None:
    for sql in ("SELECT d::timestamptz FROM calm", "SELECT d::text FROM calm"):
        assert pair.translation(sql).sql
        with pytest.raises(NotProvenEqualError):
            translate(pair.tree(sql), pair.relations, pair.builtins)
