"""Any table can be named in a setting or a command, with any characters in its name."""

from __future__ import annotations

import pytest

from headrace.archive import WalReaderOptions
from headrace.audit.query import Search, conditions
from headrace.contract.schemas import renamed
from headrace.contract.selection import Selection
from headrace.contract.table_patterns import listed, names_table, table_of
from headrace.errors import SettingError
from headrace.mirror.event_steps import Gone, gone
from headrace.settings import load


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("users", ("public", "users")),
        ("app.users", ("app", "users")),
        ("app.a.b", ("app", "a.b")),
        ('"my.schema".users', ("my.schema", "users")),
        ('"my.schema"."a.b"', ("my.schema", "a.b")),
        ('app."a.b"', ("app", "a.b")),
        ('"a.b"', ("public", "a.b")),
        ('"say ""so"""', ("public", 'say "so"')),
        ('we"ird.t', ('we"ird', "t")),
    ],
)
def test_one_table_is_named(text: str, named: tuple[str, str]) -> None:
    assert table_of(text) == named
    assert names_table(text, *named)


@pytest.mark.parametrize(
    ("text", "schema", "name"),
    [
        ("users", None, "users"),
        ("app.users", "app", "users"),
        ('"my.schema"."a.b"', "my.schema", "a.b"),
    ],
)
def test_the_archives_readers_and_searches_of_the_trail_take_such_names(
    text: str, schema: str | None, name: str
) -> None:
    assert WalReaderOptions(tables=(text,)).wanted == ((schema or "public", name),)
    # Without a schema a search is of each table of that name.
    assert conditions(Search(table=text))[1] == [name, *([schema] if schema else [])]


@pytest.mark.parametrize("text", ["", ".users", "app.", '"open', '"a"b', 'a."b".c', '""'[:1]])
def test_what_names_no_table_is_refused_and_says_how_to_write_it(text: str) -> None:
    with pytest.raises(SettingError, match="names no table"):
        table_of(text)


def test_a_quoted_name_is_no_pattern_and_others_are() -> None:
    assert names_table('"a*".*', "a*", "users")
    assert not names_table('"a*".*', "ab", "users")
    assert names_table("a*.u*", "ab", "users")
    assert not names_table("users", "app", "users")


def test_a_list_is_separated_by_the_commas_outside_quotes() -> None:
    assert listed(' users, "a,b".t ,app."x "",""y",,') == ("users", '"a,b".t', 'app."x "",""y"')
    assert listed('we"ird,other') == ('we"ird', "other")
    assert load({"HEADRACE_EXCLUDE": '"my.schema".*,"a,b"'}).format.exclude == (
        '"my.schema".*',
        '"a,b"',
    )


def test_tables_and_columns_of_a_schema_with_a_dot_are_left_out() -> None:
    chosen = Selection(
        exclude=('"my.schema".users',),
        exclude_columns=('"my.schema".people.password', 'people."a.b"'),
    )
    assert not chosen.wants("my.schema", "users")
    assert chosen.wants("my", "schema.users")
    assert chosen.hidden_columns("my.schema", "people") == {"password"}
    assert chosen.hidden_columns("public", "people") == {"a.b"}
    with pytest.raises(SettingError, match="names no column"):
        Selection(exclude_columns=("password",)).hidden_columns("public", "users")


@pytest.mark.parametrize(
    ("schema", "name"), [("my.schema", "users"), ("my", "schema.users"), ("public", "people")]
)
def test_a_table_is_followed_into_a_schema_with_a_dot(schema: str, name: str) -> None:
    assert gone({"columns": [], "changes": [renamed("to", schema, name)]}) == Gone((schema, name))
