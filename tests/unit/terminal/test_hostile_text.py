"""Text from a database is shown and never interpreted: by terminals, by markup, by SQL, by memory."""

from __future__ import annotations

import io
import json
import tracemalloc
from typing import Any

import pytest
import zstandard
from rich.table import Table
from rich.text import Text

from headrace.audit.revert import RowImage, SourceColumn, undo_update
from headrace.audit.revert import SourceTable as AuditedTable
from headrace.cli.terminal import Console
from headrace.cli.watch.tail import show
from headrace.consumer.event import Event
from headrace.contract.events import decode
from headrace.errors import DecodeError
from headrace.log import quote
from headrace.lsn import Position
from headrace.mirror.postgres_values import type_in
from headrace.snapshot_responder.requests import _named
from headrace.spark.request import REQUEST_BYTES_MAX, RequestError, parse_request
from headrace.terminal.text import one_line, plain

TITLE = "\x1b]0;owned\x07"
EIGHT_BIT = "\x9b31m"
TURNED = "\u202egnp.exe"
HOSTILE = (
    TITLE,
    EIGHT_BIT,
    TURNED,
    "over\rwritten",
    "\x7f",
    "[red]markup[/red]",
    "[/no]",
    ":bomb:",
)
OBEYED = ("\x1b", "\x9b", "\u202e", "\r", "\x7f", "\x07")


def obeyed(text: str) -> list[str]:
    return [mark for mark in OBEYED if mark in text]


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_that_a_terminal_obeys_is_left_in_plain_text(text: str) -> None:
    assert not obeyed(plain(text))
    assert plain(plain(text)) == plain(text)
    assert plain("two\nlines\tand ünïcödé ☃") == "two\nlines\tand ünïcödé ☃"
    assert one_line("a name\nGAP forged") == "a name\\u000aGAP forged"


@pytest.mark.parametrize("text", HOSTILE)
def test_json_that_was_made_plain_still_says_the_same(text: str) -> None:
    written = json.dumps({text: [text]}, ensure_ascii=False, indent=2)
    assert json.loads(plain(written)) == {text: [text]}
    assert not obeyed(plain(written))
    assert not obeyed(quote(text))


@pytest.mark.parametrize("text", HOSTILE)
def test_a_console_shows_a_hostile_name_and_neither_obeys_it_nor_takes_it_for_markup(
    text: str,
) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, color_system=None, width=200)
    table = Table("name", title=text)
    table.add_row(text)
    for thing in (text, Text(text), table):
        console.print(thing)
    said = file.getvalue()
    assert said.count(plain(text).replace("\\u000d", "").replace("\\u0007", "")[:4]) >= 3, said
    assert not [mark for mark in ("\x1b]", "\x9b", "\u202e", "\x7f", "\x07", "💣") if mark in said]


def test_headrace_tail_shows_an_event_of_hostile_names_and_values_on_one_line() -> None:
    for text in (*HOSTILE, "new\nline"):
        payload: dict[str, Any] = {
            "operation": "INSERT",
            "table": text,
            "schema": text,
            "data": {text: text},
            "tx": {},
        }
        event = Event(
            "s", text, text, "INSERT", Position(1, 0), payload, "cdc.x.insert", 1, "s", closes=True
        )
        file = io.StringIO()
        show(Console(file=file, soft_wrap=True, color_system=None), event, as_json=False)
        assert file.getvalue().count("\n") == 1
        assert not obeyed(file.getvalue())


def test_a_name_with_a_line_of_its_own_does_not_leave_the_comment_of_a_reverting_script() -> None:
    table = AuditedTable(
        "public", "t\nDROP TABLE victim; --", {"id": SourceColumn("id", 1)}, ("id",)
    )
    made = undo_update(
        {"operation": "UPDATE"}, table, RowImage({"id": 1}), RowImage({"id": 1})
    ).statement
    assert made.startswith("--")
    assert "\n" not in made


@pytest.mark.parametrize(
    "data_type", ["numeric(1); DROP TABLE victim; --)", "text(\n)", 'text("x")', "int4 DEFAULT f()"]
)
def test_a_type_that_is_more_than_a_type_is_text_in_a_mirror(data_type: str) -> None:
    assert type_in(data_type) == "text"
    assert type_in("numeric(10,-2)") == "numeric(10,-2)"


def bomb(mib: int) -> bytes:
    """A small message of as many empty lists as there are bytes in so many MiB."""
    return zstandard.compress(b"\xdd" + (mib << 20).to_bytes(4, "big") + b"\x90" * (mib << 20))


def test_a_small_request_that_unpacks_into_all_memory_is_refused_before_it_does() -> None:
    payload = bomb(64)
    assert len(payload) < REQUEST_BYTES_MAX
    tracemalloc.start()
    try:
        with pytest.raises(RequestError):
            parse_request("snapshot.request.users", payload)
        assert _named(payload) == ""
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    with pytest.raises(DecodeError):
        decode(payload, 1 << 20)
    assert parse_request(
        "snapshot.request.users", zstandard.compress(b'{"columns": ["id"]}')
    ).columns == ("id",)
