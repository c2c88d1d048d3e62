"""No two tables share a token, a subject or an ID, for any names."""

from __future__ import annotations

import re

from hypothesis import example, given
from hypothesis import strategies as st

from headrace.contract.subjects_and_ids import (
    Operation,
    message_id,
    message_subject,
    split_table_token,
    table_token,
)
from headrace.errors import DecodeError

# Names that the encoding itself uses are drawn often: that is where collisions would be.
tricky = st.lists(
    st.sampled_from(
        ["/", "=", "=2F", "=2f", "2F", "_", "_gap", "_message", "-", "a", ".", "-1", "é"]
    )
)
anything = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=63)
names = (tricky.map("".join) | anything).filter(bool)
schemas = st.just("public") | names
tables = st.tuples(schemas, names)
TOKEN = re.compile(r"(?:[A-Za-z0-9_-]|=[0-9A-F]{2}|=2f)+")


@given(tables)
def test_a_token_leads_back_to_its_table(table: tuple[str, str]) -> None:
    assert split_table_token(table_token(*table)) == table


@given(tables)
def test_a_token_holds_only_what_subjects_keys_and_headers_allow(table: tuple[str, str]) -> None:
    assert TOKEN.fullmatch(table_token(*table))


@given(tables, tables)
@example(("public", "a/b"), ("a", "b"))
@example(("a", "b/c"), ("a/b", "c"))
@example(("a/", "b"), ("a", "/b"))
def test_two_tables_never_share_a_token(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert (table_token(*one) == table_token(*other)) == (one == other)


@given(st.text() | tables.map(lambda table: table_token(*table) + "=2F"))
def test_arbitrary_text_is_a_token_or_a_decode_error(token: str) -> None:
    try:
        table = split_table_token(token)
    except DecodeError:
        return
    assert table_token(*table) == token


changes = st.tuples(
    st.integers(0, 2**64 - 1), tables, st.sampled_from(Operation), st.integers(0, 20)
)


def identified(change: tuple[int, tuple[str, str], Operation, int]) -> str:
    lsn, table, operation, repeat = change
    return message_id(lsn, table_token(*table), operation, repeat)


@given(changes, changes)
@example(
    (1, ("public", "t"), Operation.INSERT, 1), (1, ("public", "t-insert-1"), Operation.INSERT, 0)
)
@example((1, ("public", "2-t"), Operation.INSERT, 0), (0x12, ("public", "t"), Operation.INSERT, 0))
def test_two_changes_never_share_an_id(
    one: tuple[int, tuple[str, str], Operation, int],
    other: tuple[int, tuple[str, str], Operation, int],
) -> None:
    assert (identified(one) == identified(other)) == (one == other)


@given(anything, anything)
def test_two_message_prefixes_never_share_a_subject(one: str, other: str) -> None:
    assert (message_subject(one) == message_subject(other)) == (one == other)
    assert message_subject(one).count(".") == 2
