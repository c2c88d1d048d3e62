"""The rules of a copy: templates of names, columns, and what a plan refuses."""

from __future__ import annotations

import json

import pytest

from headrace.mirror.event_steps import Resync, reshaped
from headrace.mirror.rules import (
    PLAIN,
    CopyRules,
    DestinationError,
    NameTemplate,
    RuleError,
    TableRules,
)
from headrace.mirror.table import Column, Phase, Table, TableState
from headrace.mirror.target import AlterTable, SamePlaceError
from headrace.mirror.target_tables import planned

ID = Column("id", "integer")
NAME = Column("name", "text")
USERS = Table("public", "users", (ID, NAME), ("id",), ("id",))


@pytest.mark.parametrize(
    ("template", "place"),
    [
        ("{schema}.{table}", ("a.b", "c{}.d")),
        ("shop.{table}", ("shop", "c{}.d")),
        ("{table}", ("public", "c{}.d")),
        ("copy_{schema}_{table}", ("public", "copy_a.b_c{}.d")),
        ("{table}.{schema}", ("c{}.d", "a.b")),
        ("{{x}}.{table}", ("{x}", "c{}.d")),
        ('"s".ü {table}', ('"s"', "ü c{}.d")),
    ],
)
def test_a_template_is_split_at_its_own_dot(template: str, place: tuple[str, str]) -> None:
    assert NameTemplate.parsed(template).of("a.b", "c{}.d") == place


@pytest.mark.parametrize(
    "template",
    ["", ".", ".{table}", "a.", "{schema}.a.{table}", "{}", "{operation}", "{table!r}", "{table:9}",
     "{table", "{data.id}"],
)  # fmt: skip
def test_a_template_that_is_no_name_is_refused(template: str) -> None:
    with pytest.raises(DestinationError):
        NameTemplate.parsed(template)


def test_a_plan_names_two_tables_with_one_name_as_the_target_compares_names() -> None:
    tables = [Table(schema, name, (ID,)) for schema, name in (("a", "X"), ("b", "x"))]
    rules = CopyRules("{table}")
    assert [one.place for one in planned("postgresql", tables, rules)] == [
        ("public", "X"),
        ("public", "x"),
    ]
    for scheme in ("sqlite", "duckdb"):
        with pytest.raises(SamePlaceError, match=r"a\.X and b\.x would both be public\.x"):
            planned(scheme, tables, rules)
    dotted = [Table("public", "a.b", (ID,)), Table("a", "b", (ID,))]
    assert len(planned("duckdb", dotted, CopyRules())) == 2
    for scheme in ("sqlite", "mariadb"):
        with pytest.raises(SamePlaceError):
            planned(scheme, dotted, CopyRules())


def test_columns_are_those_of_the_first_pattern_that_fits() -> None:
    rules = CopyRules(columns={"users": ("id",), "*.*": ("id", "x")})
    assert USERS.ruled(rules.of("public", "users")).columns == (ID,)
    assert USERS.ruled(rules.of("public", "others")).columns == (ID,)
    assert USERS.ruled(rules.of("app", "users")).rules.columns == ("id", "x")
    assert CopyRules(columns={"a": ("x",)}).of("public", "b") == PLAIN


def test_a_key_and_a_replica_identity_can_not_be_left_out() -> None:
    by_index = Table("public", "users", (ID, NAME, Column("n", "text")), ("id",), ("name",))
    for names, lost in (("name", "id"), ("id", "name"), ("n", "id, name")):
        with pytest.raises(RuleError, match=rf"leaves out {lost} of public\.users"):
            by_index.ruled(TableRules(columns=(names,)))
    whole = Table("public", "users", (ID, NAME), (), ("id", "name"))
    cut = whole.ruled(TableRules(columns=("name",)))
    # Rows that are equal as far as they are copied can't be distinguished, and needn't be.
    assert (cut.columns, cut.identity, cut.key) == ((NAME,), ("name",), ())
    with pytest.raises(RuleError, match="leaves out all columns"):
        whole.ruled(TableRules(columns=("other",)))


def schema_event(
    *columns: str, changes: list[dict[str, str]], key: str = "id"
) -> dict[str, object]:
    return {
        "schema": "public",
        "table": "users",
        "columns": [{"name": name, "data_type": "text"} for name in columns],
        "primary_key": [key],
        "replica_identity": "d",
        "changes": changes,
        "resync": False,
    }


def test_ddl_on_a_column_that_is_left_out_changes_nothing() -> None:
    table = Table("public", "users", (Column("id", "text"),), ("id",), ("id",))
    table = table.ruled(TableRules(columns=("id", "name")))
    changes = [{"change": "column_renamed", "from": "x", "column": "y"}]
    assert reshaped(table, schema_event("id", "y", "z", changes=changes)) is None
    # A column of the list appears, with NULL in all rows or with values that nobody knows.
    added = reshaped(table, schema_event("id", "name", changes=[]))
    assert isinstance(added, AlterTable)
    assert [column.name for column in added.after.columns] == ["id", "name"]
    changes = [{"change": "column_renamed", "from": "x", "column": "name"}]
    assert isinstance(reshaped(table, schema_event("id", "name", changes=changes)), Resync)
    # A key that is left out is refused by the next copy.
    assert isinstance(reshaped(table, schema_event("id", "k", changes=[], key="k")), Resync)


def test_a_state_without_rules_is_read_by_earlier_versions_and_theirs_here() -> None:
    plain = TableState("public", "users", Phase.FOLLOWING, USERS)
    assert "rules" not in plain.encode()
    assert TableState.decode(plain.encode()) == plain
    rules = TableRules(("shop", "users"), ("id",))
    ruled = TableState("public", "users", live=USERS.ruled(rules), rules=rules)
    assert TableState.decode(ruled.encode()) == ruled
    assert json.loads(ruled.encode())["live"]["rules"]["place"] == ["shop", "users"]
