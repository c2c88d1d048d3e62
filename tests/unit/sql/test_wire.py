"""Messages of PostgreSQL's protocol are read as they were written, and nothing else is read."""

from __future__ import annotations

import struct

import pytest

from headrace.sql import wire


def body(message: bytes) -> bytes:
    kind, length = wire.header(message, 1 << 20)
    assert len(message) == wire.HEADER_BYTES + length
    assert kind == message[:1]
    return message[wire.HEADER_BYTES :]


def test_messages_of_the_extended_protocol_are_read_as_they_were_written() -> None:
    parse = wire.Parse(b"name", "SELECT 'ä'".encode(), (23, 0))
    assert wire.parse_of(body(parse.encode())) == parse
    bind = wire.Bind(b"p", b"s", (0, 1), (b"1", None), (1,))
    assert wire.bind_of(body(bind.encode())) == bind
    assert wire.execute_of(body(wire.execute(b"p", 7))) == wire.Execute(b"p", 7)
    assert wire.target_of(body(wire.describe(b"S", b"x"))) == wire.WireTarget(b"S", b"x")
    assert wire.query_of(body(wire.query(b"SELECT 1"))) == b"SELECT 1"


def test_a_startup_message_is_read_as_it_was_written() -> None:
    startup = wire.Startup(196608, {"user": "ann", "options": "-c a=b c"})
    encoded = startup.encode()
    assert struct.unpack_from("!i", encoded) == (len(encoded),)
    assert wire.startup_of(encoded[4:]) == startup


def test_another_version_of_the_protocol_is_refused() -> None:
    with pytest.raises(wire.WireError):
        wire.startup_of(struct.pack("!i", 2 << 16) + b"user\0ann\0\0")


def test_results_are_read_as_they_were_written() -> None:
    columns = (
        wire.WireColumn(b"a", 16384, 1, 23, 4, -1),
        wire.WireColumn(b"b", 0, 0, 1700, -1, 655366),
    )
    described = wire.row_description(columns, (0, 1))
    assert [column.form for column in wire.columns_of(body(described))] == [0, 1]
    assert wire.columns_of(body(described))[0] == columns[0]
    assert wire.values_of(body(wire.data_row([b"", None, b"x"]))) == (b"", None, b"x")
    types = (4294967295, 23)
    assert wire.parameter_types_of(body(wire.parameter_description(types))) == types


def test_an_error_has_the_fields_that_clients_look_for_and_no_zero_in_them() -> None:
    problem = wire.Problem("0A000", "no\0t this", detail="d", hint="h", position=3)
    notice = wire.notice_of(body(problem.encode()))
    assert (notice.severity, notice.code, notice.message) == (b"ERROR", b"0A000", b"not this")
    assert (notice.detail, notice.fields["H"], notice.fields["P"]) == (b"d", b"h", b"3")


@pytest.mark.parametrize(
    ("formats", "columns", "expected"),
    [((), 2, (0, 0)), ((1,), 3, (1, 1, 1)), ((0, 1), 2, (0, 1)), ((1,), 0, ())],
)
def test_forms_are_given_for_no_column_for_all_or_for_each(
    formats: tuple[int, ...], columns: int, expected: tuple[int, ...]
) -> None:
    assert wire.result_forms(formats, columns) == expected


@pytest.mark.parametrize("formats", [(2,), (0, 1, 1), (-1, 0)])
def test_forms_that_fit_no_column_are_refused(formats: tuple[int, ...]) -> None:
    with pytest.raises(wire.WireError):
        wire.result_forms(formats, 2)


def test_a_message_beyond_the_limit_is_refused_before_it_is_read() -> None:
    with pytest.raises(wire.WireError):
        wire.header(struct.pack("!ci", b"Q", 101), 96)
    with pytest.raises(wire.WireError):
        wire.header(struct.pack("!ci", b"Q", 3), 96)


@pytest.mark.parametrize("cut", range(1, 25))
def test_a_message_that_was_cut_short_is_refused(cut: int) -> None:
    whole = body(wire.Bind(b"p", b"s", (0,), (b"12345",), (1,)).encode())
    with pytest.raises(wire.WireError):
        wire.bind_of(whole[:-cut])


def test_what_follows_a_message_s_end_is_refused() -> None:
    with pytest.raises(wire.WireError):
        wire.parse_of(body(wire.Parse(b"", b"SELECT 1", ()).encode()) + b"x")
