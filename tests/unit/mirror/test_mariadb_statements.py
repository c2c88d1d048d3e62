"""The statements of a mirror in MariaDB: rows, definitions, and tables that it can't have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headrace.mirror import mariadb_statements
from headrace.mirror.mariadb_statements import (
    DIALECT,
    STATEMENT_BYTES,
    RowStatement,
    Statements,
    indexes,
)
from headrace.mirror.mirror_state import STALE
from headrace.mirror.native_types import NativeTypes
from headrace.mirror.table import Column, Table
from headrace.mirror.target import InsertRows, TargetError

STATEMENTS = Statements(NativeTypes(DIALECT), "exact")
COLUMNS = (Column("id", "integer"), Column("name", "text"), Column("code", "uuid"))
USERS = Table("app", "users", COLUMNS, ("id",), ("id",))


def test_rows_are_inserted_together_with_a_value_for_each_column() -> None:
    rows: list[dict[str, Any]] = [{"id": 1, "name": "it's", "code": None}, {"id": 2}]
    assert list(STATEMENTS.rows(InsertRows(USERS, rows))) == [
        RowStatement(
            USERS,
            r"INSERT INTO `app.users` (`id`, `name`, `code`) VALUES (1,'it\'s',NULL),(2,NULL,NULL)",
            2,
        )
    ]


def test_a_statement_ends_before_it_is_longer_than_the_server_takes() -> None:
    name = "x" * (STATEMENT_BYTES // 3)
    rows = [{"id": number, "name": name} for number in range(5)]
    made = list(STATEMENTS.rows(InsertRows(USERS, rows)))
    assert [one.expected for one in made] == [2, 2, 1]
    # Of a row that is larger than a statement, the server decides.
    (large,) = STATEMENTS.rows(InsertRows(USERS, [{"id": 1, "name": 4 * name}]))
    assert large.expected == 1


def test_only_a_keys_columns_are_never_null() -> None:
    assert STATEMENTS.create(USERS) == (
        "CREATE TABLE IF NOT EXISTS `app.users` (`id` INT NOT NULL, "
        "`name` LONGTEXT CHARACTER SET utf8mb4 COLLATE exact, "
        "`code` CHAR(36) CHARACTER SET ascii COLLATE ascii_bin, PRIMARY KEY (`id`)) "
        "ENGINE=InnoDB ROW_FORMAT=DYNAMIC CHARACTER SET utf8mb4 COLLATE exact"
    )


def test_an_identity_beside_the_key_has_an_index_and_the_key_has_no_second_one() -> None:
    assert indexes(USERS) == []
    beside = replace(USERS, identity=("code",))
    assert indexes(beside) == [("headrace_0", ("id",)), ("headrace_1", ("code",))]


@pytest.mark.parametrize(
    "table",
    [
        replace(USERS, columns=(Column("id", "integer"), Column("Name", "text"), COLUMNS[1])),
        replace(USERS, schema="public", name="headrace_users"),
        replace(USERS, name="x" * 61),
    ],
)
def test_a_table_that_the_server_can_not_have_is_refused(table: Table) -> None:
    for one in (table, replace(table, staging=True)):
        with pytest.raises(TargetError, match=r"case|the mirror's own|64 characters"):
            STATEMENTS.check(one)


def test_a_table_that_the_server_can_have_is_not_refused() -> None:
    longest = mariadb_statements._NAME_CHARACTERS - len("app.")
    for table in (USERS, replace(USERS, name="x" * longest), STALE):
        STATEMENTS.check(table)
