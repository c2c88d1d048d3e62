"""The functions in C give the bytes of those in Python, or leave the message to them."""

from __future__ import annotations

import struct
from unittest import mock

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.accelerator import native
from headrace.bus import frame
from headrace.confirming.native_rows import native_rows
from headrace.confirming.row_compiler import COLUMNS_MAX, QuickRow, compiled
from headrace.contract import events, scalars
from headrace.contract.values import Converter, Encoding
from headrace.errors import DecodeError
from headrace.jetstream.publishing import fast_batch
from headrace.jetstream.publishing.fast_batch import BatchPlace, FastBatch
from headrace.jetstream.publishing.message import Outgoing
from tests.support.accelerated import without_accelerator

ENCODINGS = st.sampled_from(list(Encoding))
CONVERTERS: tuple[Converter | None, ...] = (
    None,
    scalars.text,
    scalars.integer,
    scalars.boolean,
    scalars.timestamp_utc,
    scalars.number,
)
# Also what no server prints.
ODD = [
    *(
        b"t",
        b"f",
        b"true",
        b"",
        b"-",
        b"-0",
        b"007",
        b"+1",
        b"1_0",
        b" 1",
        b"1.5",
        b"NaN",
        b"-Infinity",
    ),
    *(b"2026-01-31 12:00:00.5+00", b"2026-01-31 12:00:00+00:30", b"0044-03-15 12:00:00+00 BC"),
    *(b"infinity", b"20260131xx +00", b"2026-01-3\xc3\xa9 12:00:00+00"),
    *(b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\x80", bytes(range(128))),
    *(b"a" * count for count in (31, 32, 255, 256, 65_536)),
]
TEXTS = st.one_of(
    st.text(max_size=70).map(str.encode),
    st.binary(max_size=20),
    st.integers(-(2**70), 2**70).map(lambda number: str(number).encode()),
    st.sampled_from(ODD),
)
VALUES = st.one_of(st.none(), st.just("unchanged"), TEXTS)
MESSAGES = st.tuples(st.text(max_size=9), st.text(max_size=9), st.binary(max_size=200)).map(
    lambda parts: Outgoing(*parts)
)
Columns = list[tuple[str, Converter | None]]
Case = tuple[Columns, bytes, bool]
NUMBERS = st.sampled_from(
    [2**n + d for n in (0, 5, 7, 8, 15, 16, 31, 32, 48, 63) for d in (-1, 0, 1)]
)


def values(row: list[bytes | str | None]) -> bytes:
    parts = [struct.pack(">H", len(row))]
    for value in row:
        if isinstance(value, bytes):
            parts.append(b"t" + struct.pack(">I", len(value)) + value)
        else:
            parts.append(b"n" if value is None else b"u")
    return b"".join(parts)


def test_it_is_built_where_the_tests_run() -> None:
    assert native is not None, "install a C compiler and Python's headers, then run ./taskw again"


@st.composite
def rows(draw: st.DrawFn) -> Case:
    """Columns, a message, and whether it has the old row."""
    columns = draw(
        st.lists(
            st.tuples(st.text('aé"\\{%\n', min_size=1, max_size=40), st.sampled_from(CONVERTERS)),
            max_size=20,
            unique_by=lambda one: one[0],
        )
    )
    one = st.lists(VALUES, min_size=len(columns), max_size=len(columns))
    old = draw(st.booleans())
    head = b"U" + struct.pack(">I", 16_385)
    message = head + (b"O" + values(draw(one)) if old else b"") + b"N" + values(draw(one))
    if draw(st.booleans()):
        cut = draw(st.integers(0, len(message)))
        message = (
            message[:cut] + draw(st.binary(max_size=8)) + message[cut + draw(st.integers(0, 8)) :]
        )
    return columns, message, old


@given(rows(), ENCODINGS)
def test_a_row(case: Case, encoding: Encoding) -> None:
    columns, message, old = case
    in_c, in_python = readers(columns, encoding, old_head=b"old" if old else None)
    found = in_c(message)
    assert found is None or found == in_python(message)


def readers(
    columns: Columns, encoding: Encoding, old_head: bytes | None = None
) -> tuple[QuickRow, QuickRow]:
    in_c = native_rows(columns, encoding, old_head=old_head, end=b"end")
    in_python = compiled(columns, events.writer(encoding), old_head=old_head, end=b"end")
    assert in_c is not None
    assert in_python is not None
    return in_c, in_python


SIZES = (
    0,
    31,
    32,
    33,
    127,
    128,
    129,
    32_768,
    32_769,
    65_535,
    65_536,
    2**31,
    2**31 + 1,
    2**32,
    10**17,
    2**63 - 1,
    2**63,
)
USUAL: list[tuple[Converter, bytes]] = [
    (scalars.text, b"text"),
    (scalars.text, 'é\U0001f600\0\x7f\n"\\'.encode()),
    (scalars.text, b"a" * 100_000),
    *((scalars.integer, str(size).encode()) for size in SIZES),
    *((scalars.integer, str(-size).encode()) for size in SIZES),
    (scalars.boolean, b"t"),
    (scalars.boolean, b"f"),
    (scalars.timestamp_utc, b"2026-01-31 12:00:00.123456+00"),
    (scalars.timestamp_utc, b"infinity"),
    (scalars.number, b"1.5"),
    (scalars.number, b"-Infinity"),
]


@pytest.mark.parametrize("encoding", list(Encoding))
@pytest.mark.parametrize(("convert", "value"), USUAL)
def test_usual_values_are_not_left_to_python(
    convert: Converter, value: bytes, encoding: Encoding
) -> None:
    columns: Columns = [("id", convert), ("hidden", None), ("b", convert)]
    in_c, in_python = readers(columns, encoding)
    message = b"I\0\0\0\1N" + values([value, b"secret", None])
    assert in_c(message) == in_python(message) is not None


@pytest.mark.parametrize("encoding", list(Encoding))
@pytest.mark.parametrize("count", [0, 1, 15, 16, COLUMNS_MAX])
def test_rows_of_any_width(count: int, encoding: Encoding) -> None:
    columns: Columns = [(f"c{n}", scalars.text) for n in range(count)]
    in_c, in_python = readers(columns, encoding)
    message = b"I\0\0\0\1N" + values([b"x"] * count)
    assert in_c(message) == in_python(message) is not None


def test_rows_are_refused_that_could_not_be_read() -> None:
    assert native is not None
    good = (b"t", (b"name",), (scalars.text,), orjson.dumps, int, (ValueError,), None, b"", False)
    native.Rows(*good)
    for place, bad in ((0, b"x"), (0, b"tt"), (1, ()), (1, ("name",)), (2, ()), (6, "old")):
        with pytest.raises(ValueError, match="column"):
            native.Rows(*(bad if n == place else value for n, value in enumerate(good)))


class UnknownError(Exception):
    """None that a converter raises."""


def test_an_error_of_a_converter_is_python_s_to_report_or_raised() -> None:
    def refuses(_: bytes) -> object:
        raise DecodeError("no such value")

    def fails(_: bytes) -> object:
        raise UnknownError

    message = b"I\0\0\0\1N" + values([b"x"])
    in_c, in_python = readers([("a", refuses)], Encoding.MSGPACK)
    assert in_c(message) is None
    assert in_python(message) is None
    in_c, in_python = readers([("a", fails)], Encoding.MSGPACK)
    for read in (in_c, in_python):
        with pytest.raises(UnknownError):
            read(message)


@given(
    st.lists(st.tuples(st.integers(0, 2**64 - 1), st.binary(max_size=50)), max_size=8), st.data()
)
def test_the_entries_of_a_frame(entries: list[tuple[int, bytes]], data: st.DataObject) -> None:
    whole = frame.header(frame.FrameKind.DATA, 1, 2)
    whole += b"".join(frame.encode_entry(lsn, message) for lsn, message in entries)
    assert frame.decode_entries(whole) == entries
    cut = whole[: data.draw(st.integers(0, len(whole)))]
    assert decoded(cut) == without(decoded, cut)


def decoded(whole: bytes) -> object:
    try:
        return frame.decode_entries(whole)
    except DecodeError as error:
        return str(error)


def without(function: object, *arguments: object) -> object:
    with without_accelerator():
        return function(*arguments)  # type: ignore[operator]


@given(
    st.lists(MESSAGES, min_size=1, max_size=5),
    NUMBERS,
    NUMBERS,
    st.booleans(),
)  # fmt: skip
@example([Outgoing("cdc.é.insert", "1-é", b"\r\n")], 1, 2**64 - 2, True)
def test_the_commands_of_messages(
    messages: list[Outgoing], number: int, base: int, end: bool
) -> None:
    place = BatchPlace("_INBOX.a.b.500.fail", "$FI", number, base % 2**62, end=end)
    in_c = fast_batch.in_c(messages, place, "Nats-Msg-Id")
    assert in_c == fast_batch.in_python(messages, place, lambda _: "Nats-Msg-Id")


def test_a_message_with_headers_is_left_to_python() -> None:
    messages = [Outgoing("a", "1", b""), Outgoing("a", "2", b"", {"More": "x"})]
    batch = FastBatch("_INBOX.x", 50)
    batch.start(7)
    with mock.patch.object(fast_batch, "in_python", wraps=fast_batch.in_python) as in_python:
        assert b"More: x\r\n" in batch.commands(messages, end=True)
    in_python.assert_called_once()
    assert batch.number == 2


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ([], 0, {}, None, (0, "", 0), 0, [], ()),
        (iter(()), 0, {}, None, (0, "", 0), 0, [], (tuple, tuple, None, b"", b"", 0, 0)),
        ([], 0, {}, (1, 2), (0, "", 0), 0, [], (tuple, tuple, None, b"", b"", 0, 0)),
        ([(1, "text")], 0, {}, None, (0, "", 0), 0, [], (tuple, tuple, None, b"", b"", 0, 0)),
        ([], 0, {}, None, (0, "", 0), 0, [], (list, tuple, None, b"", b"", 0, 0)),
    ],
)  # fmt: skip
def test_wrong_arguments_are_a_type_error(arguments: tuple[object, ...]) -> None:
    assert native is not None
    with pytest.raises(TypeError):
        native.take_rows(*arguments)
