"""Hand-made bytes of every pgoutput message, and of every way to spoil one."""

from __future__ import annotations

import struct

import pytest

from headrace.errors import DecodeError
from headrace.pgoutput import messages
from headrace.pgoutput.decoder import decode
from headrace.pgoutput.redaction import without

LSN_1 = b"\x00\x00\x00\x00\x01\x91\xbf\xd0"
LSN_2 = b"\xff\xff\xff\xff\x00\x00\x00\x01"
TS = b"\x00\x02\xe9\x9a\x52\x3d\x4f\x80"
RELATION_ID = b"\xff\x00\x40\x01"
ONE_ROW = b"\x00\x01t\x00\x00\x00\x02ab"
KEY_ROW = b"\x00\x02t\x00\x00\x00\x017n"
FULL_ROW = b"\x00\x04t\x00\x00\x00\x017nut\x00\x00\x00\x00"

CASES: list[tuple[bytes, messages.PgoutputMessage]] = [
    (
        b"B" + LSN_1 + TS + b"\xff\xff\xff\xfe",
        messages.Begin(0x191BFD0, 0x2E99A523D4F80, 0xFFFFFFFE),
    ),
    (
        b"C\x00" + LSN_1 + LSN_2 + TS,
        messages.Commit(0, 0x191BFD0, 0xFFFFFFFF00000001, 0x2E99A523D4F80),
    ),
    (b"O" + LSN_2 + b"node-\xc3\xa9\x00", messages.Origin(0xFFFFFFFF00000001, "node-é")),
    (
        b"R" + RELATION_ID + b"public\x00us ers\x00d\x00\x02"
        b"\x01id\x00\x00\x00\x00\x17\xff\xff\xff\xff"
        b"\x00n\xc3\xa4me\x00\x00\x00\x04\x13\x00\x00\x00\x24",
        messages.Relation(
            0xFF004001,
            "public",
            "us ers",
            "d",
            (
                messages.RelationColumn(True, "id", 23, -1),
                messages.RelationColumn(False, "näme", 1043, 36),
            ),
        ),
    ),
    (
        b"R" + RELATION_ID + b"\x00t\x00f\x00\x00",
        messages.Relation(0xFF004001, "pg_catalog", "t", "f", ()),
    ),
    (b"Y" + RELATION_ID + b"shop\x00mood\x00", messages.TypeMessage(0xFF004001, "shop", "mood")),
    (b"I" + RELATION_ID + b"N" + ONE_ROW, messages.Insert(0xFF004001, (b"ab",))),
    (
        b"I" + RELATION_ID + b"N" + FULL_ROW,
        messages.Insert(0xFF004001, (b"7", None, messages.UNCHANGED, b"")),
    ),
    (b"I" + RELATION_ID + b"N\x00\x00", messages.Insert(0xFF004001, ())),
    (b"U" + RELATION_ID + b"N" + ONE_ROW, messages.Update(0xFF004001, None, None, (b"ab",))),
    (
        b"U" + RELATION_ID + b"K" + KEY_ROW + b"N" + ONE_ROW,
        messages.Update(0xFF004001, (b"7", None), None, (b"ab",)),
    ),
    (
        b"U" + RELATION_ID + b"O" + KEY_ROW + b"N" + ONE_ROW,
        messages.Update(0xFF004001, None, (b"7", None), (b"ab",)),
    ),
    (b"D" + RELATION_ID + b"K" + KEY_ROW, messages.Delete(0xFF004001, (b"7", None), None)),
    (b"D" + RELATION_ID + b"O" + KEY_ROW, messages.Delete(0xFF004001, None, (b"7", None))),
    (
        b"T\x00\x00\x00\x02\x00" + RELATION_ID + b"\x00\x00\x00\x05",
        messages.Truncate((0xFF004001, 5), False, False),
    ),
    (b"T\x00\x00\x00\x01\x01" + RELATION_ID, messages.Truncate((0xFF004001,), True, False)),
    (b"T\x00\x00\x00\x01\x02" + RELATION_ID, messages.Truncate((0xFF004001,), False, True)),
    (b"T\x00\x00\x00\x01\x03" + RELATION_ID, messages.Truncate((0xFF004001,), True, True)),
    (
        b"M\x01" + LSN_1 + b"audit\x00\x00\x00\x00\x03a\x00\xff",
        messages.LogicalMessage(True, 0x191BFD0, "audit", b"a\x00\xff"),
    ),
    (
        b"M\x00" + LSN_1 + b"\x00\x00\x00\x00\x00",
        messages.LogicalMessage(False, 0x191BFD0, "", b""),
    ),
]
IDS = [f"{message.__class__.__name__}-{at}" for at, (_, message) in enumerate(CASES)]


@pytest.mark.parametrize(("data", "message"), CASES, ids=IDS)
def test_every_message_is_read_to_its_last_field(
    data: bytes, message: messages.PgoutputMessage
) -> None:
    assert decode(data) == message


@pytest.mark.parametrize(("data", "message"), CASES, ids=IDS)
def test_a_message_cut_anywhere_is_an_error(data: bytes, message: messages.PgoutputMessage) -> None:
    for end in range(len(data)):
        with pytest.raises(DecodeError):
            decode(data[:end])


@pytest.mark.parametrize(("data", "message"), CASES, ids=IDS)
def test_a_byte_too_many_is_an_error(data: bytes, message: messages.PgoutputMessage) -> None:
    with pytest.raises(DecodeError, match="1 bytes after its end"):
        decode(data + b"n")


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(DecodeError, match="unknown kind b'S'"):
        decode(b"S\x00\x00\x00\x01")


def test_no_bytes_are_no_message() -> None:
    with pytest.raises(DecodeError, match="empty"):
        decode(b"")


def test_a_binary_value_says_which_option_brought_it() -> None:
    with pytest.raises(DecodeError, match="without the option binary"):
        decode(b"I" + RELATION_ID + b"N\x00\x01b\x00\x00\x00\x01a")


def test_a_value_of_unknown_kind_is_an_error() -> None:
    with pytest.raises(DecodeError, match="value of unknown kind b'x' at byte 8"):
        decode(b"I" + RELATION_ID + b"N\x00\x01x")


@pytest.mark.parametrize(
    "head", [b"I" + RELATION_ID + b"K", b"U" + RELATION_ID + b"X", b"D" + RELATION_ID + b"N"]
)
def test_a_row_of_the_wrong_kind_is_an_error(head: bytes) -> None:
    with pytest.raises(DecodeError, match="row of unknown kind"):
        decode(head + ONE_ROW)


def test_an_update_whose_new_row_is_missing_is_an_error() -> None:
    with pytest.raises(DecodeError):
        decode(b"U" + RELATION_ID + b"K" + KEY_ROW)
    with pytest.raises(DecodeError, match="row of unknown kind b'K'"):
        decode(b"U" + RELATION_ID + b"K" + KEY_ROW + b"K" + KEY_ROW)


@pytest.mark.parametrize(
    "data",
    [
        b"I" + RELATION_ID + b"N\xff\xff" + b"n" * 100,
        b"I" + RELATION_ID + b"N\x00\x01t\xff\xff\xff\xff" + b"a" * 100,
        b"I" + RELATION_ID + b"N\x00\x01t\x80\x00\x00\x00" + b"a" * 100,
        b"T\xff\xff\xff\xff\x00" + RELATION_ID,
        b"M\x01" + LSN_1 + b"p\x00\xff\xff\xff\xffabc",
        b"R" + RELATION_ID + b"public\x00t\x00d\xff\xff",
    ],
)
def test_a_negative_count_or_size_is_an_error(data: bytes) -> None:
    with pytest.raises(DecodeError, match="ends too early"):
        decode(data)


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"O" + LSN_1 + b"\xff\x00", r"\xff"),
        (b"R" + RELATION_ID + b"\xffs\x00t\x00d\x00\x00", r"\xffs"),
        (b"R" + RELATION_ID + b"s\x00\xc3\x00d\x00\x00", r"\xc3"),
        (
            b"R" + RELATION_ID + b"s\x00t\x00d\x00\x01\x00\xed\xa0\x80\x00" + bytes(8),
            r"\xed\xa0\x80",
        ),
        (b"Y" + RELATION_ID + b"s\x00\xfe\x00", r"\xfe"),
    ],
)
def test_a_name_that_is_not_utf8_is_an_error_with_a_remedy(data: bytes, name: str) -> None:
    with pytest.raises(DecodeError, match=r"not UTF-8\. A SQL_ASCII .* client_encoding") as raised:
        decode(data)
    assert f'"{name}"' in str(raised.value)


def test_an_emitted_messages_prefix_may_be_any_bytes_and_no_other_prefix_is_taken_for_it() -> None:
    message = decode(b"M\x00" + LSN_1 + b"a\xff\x00\x00\x00\x00\x00")
    assert isinstance(message, messages.LogicalMessage)
    assert (message.readable, message.prefix.encode(errors="surrogateescape")) == (
        "a\\xff",
        b"a\xff",
    )
    assert message.prefix != "a\\xff"


def test_a_message_of_a_row_can_be_kept_without_a_column() -> None:
    secret = b"t\x00\x00\x00\x03top"
    row = b"\x00\x03" + b"t\x00\x00\x00\x011" + secret + b"u"
    bare = b"\x00\x03" + b"t\x00\x00\x00\x011" + b"n" + b"u"
    for head, kinds in (
        (b"I", (b"N",)),
        (b"U", (b"N",)),
        (b"U", (b"K", b"N")),
        (b"U", (b"O", b"N")),
        (b"D", (b"O",)),
    ):
        whole = head + RELATION_ID + b"".join(kind + row for kind in kinds)
        assert without(whole, {1}) == head + RELATION_ID + b"".join(kind + bare for kind in kinds)
        assert without(whole, ()) == whole
        # Values that can't be distinguished are not kept.
        assert without(whole[:-1], {1}) == b""


def test_an_unknown_replica_identity_is_an_error() -> None:
    with pytest.raises(DecodeError, match=r"relation s\.t has the unknown replica identity 'x'"):
        decode(b"R" + RELATION_ID + b"s\x00t\x00x\x00\x00")


def test_a_value_is_not_looked_into() -> None:
    raw = bytes(range(256))
    assert decode(b"I" + RELATION_ID + b"N\x00\x01t\x00\x00\x01\x00" + raw) == messages.Insert(
        0xFF004001, (raw,)
    )


def test_a_table_of_1600_columns_is_read() -> None:
    row = struct.pack(">H", 1600) + b"n" * 1599 + b"t\x00\x00\x00\x01z"
    decoded = decode(b"I" + RELATION_ID + b"N" + row)
    assert decoded == messages.Insert(0xFF004001, (*[None] * 1599, b"z"))


def test_messages_are_frozen() -> None:
    with pytest.raises(AttributeError):
        decode(b"I" + RELATION_ID + b"N" + ONE_ROW).relation_id = 1  # type: ignore[union-attr,misc]  # the claim


def test_a_commit_time_has_the_contracts_form() -> None:
    assert messages.pg_timestamp_iso(818856034338547) == "2025-12-12T12:00:34.338547Z"
    assert messages.pg_timestamp_iso(0) == "2000-01-01T00:00:00.000000Z"
    assert messages.pg_timestamp_iso(-1) == "1999-12-31T23:59:59.999999Z"


@pytest.mark.parametrize("us", [2**63 - 1, -(2**63)])
def test_a_commit_time_out_of_range_is_an_error(us: int) -> None:
    with pytest.raises(DecodeError, match="not a commit time"):
        messages.pg_timestamp_iso(us)
