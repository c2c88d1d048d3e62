"""Subjects, ids and tokens: the contract's plain cases to the letter, and the cases that would collide."""

from __future__ import annotations

import pytest

from headrace.contract.subjects_and_ids import (
    CDC_SUBJECTS,
    GAP_SUBJECT,
    SNAPSHOT_REQUEST_SUBJECTS,
    Operation,
    batch_subject,
    change_subject,
    chunk_subject,
    message_id,
    message_subject,
    meta_subject,
    schema_subject,
    snapshot_error_subject,
    snapshot_progress_subject,
    snapshot_request_subject,
    split_table_token,
    table_token,
)
from headrace.errors import DecodeError

TOKENS = [
    ("public", "users", "users"),
    ("public", "order_items-2", "order_items-2"),
    ("shop", "users", "shop=2Fusers"),
    ("public", "My Table", "My=20Table"),
    ("public", "a.b", "a=2Eb"),
    ("public", 'q"q', "q=22q"),
    ("public", "50%=*>", "50=25=3D=2A=3E"),
    ("public", "größe", "gr=C3=B6=C3=9Fe"),
    ("public", "𝄞", "=F0=9D=84=9E"),
    ("public", "é" * 31 + "x", "=C3=A9" * 31 + "x"),
    ("public", "_users", "_users"),
    ("Shop.EU", "T", "Shop=2EEU=2FT"),
    # A slash within a name is not the slash between names.
    ("public", "a/b", "a=2fb"),
    ("a", "b", "a=2Fb"),
    ("a/b", "c", "a=2fb=2Fc"),
    ("a", "b/c", "a=2Fb=2fc"),
    ("public", "=2F", "=3D2F"),
    ("public", "=2f", "=3D2f"),
    # A table is not a special subject.
    ("public", "_message", "=5Fmessage"),
    ("public", "_gap", "=5Fgap"),
    ("public", "_messages", "_messages"),
    ("public", "_Gap", "_Gap"),
    ("shop", "_gap", "shop=2F_gap"),
    ("_gap", "t", "_gap=2Ft"),
]


@pytest.mark.parametrize(("schema", "table", "token"), TOKENS)
def test_a_table_has_the_token_of_the_contract(schema: str, table: str, token: str) -> None:
    assert table_token(schema, table) == token


@pytest.mark.parametrize(("schema", "table", "token"), TOKENS)
def test_a_token_leads_back_to_its_table(schema: str, table: str, token: str) -> None:
    assert split_table_token(token) == (schema, table)


@pytest.mark.parametrize(
    "token",
    ["", "a b", "a.b", "a/b", "=", "=2", "=zz", "=41", "=2e", "=2E=2F", "=2Fa", "a=2Fb=2Fc", "public=2Fa", "_gap",
     "_message", "=5Fusers", "=FF", "=C3", "=C0=AF", "a=3d", "größe", "\ud800"],
)  # fmt: skip
def test_what_is_no_tables_token_is_an_error(token: str) -> None:
    with pytest.raises(DecodeError, match="not the token of a table"):
        split_table_token(token)


def test_subjects_are_those_of_the_contract() -> None:
    assert [change_subject("users", operation) for operation in Operation] == [
        "cdc.users.insert",
        "cdc.users.update",
        "cdc.users.delete",
        "cdc.users.truncate",
    ]
    assert batch_subject("shop=2Fusers") == "cdc.shop=2Fusers.batch"
    assert schema_subject("users") == "cdc.users.schema"
    assert message_subject("audit") == "cdc._message.audit"
    assert GAP_SUBJECT == "cdc._gap"
    assert snapshot_request_subject("users") == "snapshot.request.users"
    assert snapshot_progress_subject("users") == "snapshot.progress.users"
    assert chunk_subject("users", "snap-1", 0) == "init.snap.users.snap-1.0"
    assert meta_subject("users") == "init.meta.users"
    assert snapshot_error_subject("users") == "init.error.users"
    assert (CDC_SUBJECTS, SNAPSHOT_REQUEST_SUBJECTS) == ("cdc.>", "snapshot.request.>")


def test_an_id_is_the_lsn_in_hex_the_table_and_the_operation() -> None:
    assert message_id(0x191BFD0, "users", Operation.INSERT) == "191bfd0-users-insert"
    assert (
        message_id(0xFFFFFFFF00000001, "shop=2Fusers", Operation.DELETE)
        == "ffffffff00000001-shop=2Fusers-delete"
    )


def test_changes_that_share_a_wal_record_have_their_own_ids() -> None:
    ids = [message_id(0x10, "users", Operation.INSERT, repeat) for repeat in range(3)]
    assert ids == ["10-users-insert", "10-users-insert-1", "10-users-insert-2"]


def test_a_message_prefix_is_one_token() -> None:
    assert message_subject("audit.log/1") == "cdc._message.audit=2Elog=2F1"
    assert message_subject("") == "cdc._message.="


@pytest.mark.parametrize("table", ["_message", "_gap"])
def test_a_table_called_as_a_special_subject_stays_off_it(table: str) -> None:
    token = table_token("public", table)
    mine = {change_subject(token, Operation.INSERT), batch_subject(token), schema_subject(token)}
    assert not mine & {
        message_subject("insert"),
        message_subject("batch"),
        message_subject("schema"),
        GAP_SUBJECT,
    }
    assert not any(subject.startswith((GAP_SUBJECT, "cdc._message")) for subject in mine)
