"""A publisher skips messages of a shared stream without decoding them, but never one of the
publisher's source.
"""

from __future__ import annotations

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from headrace.contract import events
from headrace.contract.values import Encoding
from headrace.jetstream.range_reader import fields
from headrace.lsn import Position
from headrace.publisher.resume_point import reader_of, suspect_of

NAMES = st.from_regex(r"[a-z0-9_]{1,20}", fullmatch=True)
VALUES = st.dictionaries(
    st.text(max_size=8),
    st.one_of(st.text(max_size=20), st.integers(-(2**63), 2**63 - 1), st.none()),
    max_size=4,
)


def header(**lines: str) -> bytes:
    text = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in lines.items())
    return f"NATS/1.0\r\n{text}\r\n".encode()


@given(NAMES, st.booleans(), VALUES, st.sampled_from(Encoding))
def test_no_message_that_has_a_mark_goes_unread(
    source: str, batch: bool, new: dict[str, object], form: Encoding
) -> None:
    payload = {
        "operation": "INSERT",
        "schema": "public",
        "table": "t",
        "tx": {"lsn": 7, "seq": 0},
        "new": new,
    }
    lines = {"Nats_Msg_Id": "7-0-insert"}
    if batch:
        data = events.encode([payload], form)
        lines[events.POSITION_HEADER.replace("-", "_")] = events.position_header(
            source, Position(7, 0)
        )
    else:
        data = events.encode({**payload, "source": source}, form)
    head = header(**lines)
    assert reader_of(source)(data, fields(head)) is not None
    assert suspect_of(source)(head, data)


def test_what_is_compressed_is_always_read() -> None:
    data = zstandard.ZstdCompressor().compress(
        events.encode({"source": "ours", "pad": "ours" * 100}, Encoding.MSGPACK)
    )
    assert suspect_of("no_such_name")(header(), data)


@pytest.mark.parametrize("form", Encoding)
def test_what_another_wrote_is_not_read(form: Encoding) -> None:
    assert not suspect_of("ours")(
        header(Nats_Msg_Id="7"), events.encode({"source": "theirs"}, form)
    )
