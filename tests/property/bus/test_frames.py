"""Frames and control messages under noise: a DecodeError, never anything else, and never a wrong
entry.
"""

from __future__ import annotations

import contextlib

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.bus import control, frame
from headrace.bus.control import Confirm, Control, Join, Restart
from headrace.bus.frame import FrameKind, Opening, Part
from headrace.bus.receiver import FrameReceiver
from headrace.bus.sender import FrameSender
from headrace.errors import DecodeError

u64 = st.integers(0, 2**64 - 1)
u63 = st.integers(0, 2**63 - 1)
words = st.text(max_size=20)
entries = st.lists(st.tuples(u64, st.binary(max_size=300)), max_size=20)
forks = st.lists(st.tuples(u63, u63), max_size=3).map(tuple)
openings = st.builds(
    Opening, st.dictionaries(words, words, max_size=3), words, words, words, u63, u63, u63, forks
)
controls = st.one_of(
    st.builds(Join, words, words, u63),
    st.builds(Confirm, words, words, u63, u63, u63, st.booleans()),
    st.builds(Restart, words, words, u63, words),
)
anything = st.recursive(
    st.none() | st.booleans() | u64 | st.floats() | words | st.binary(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(words | st.just("kind"), inner, max_size=6)
    ),
)


def take(data: bytes) -> None:
    """Decode a frame as far as its kind allows."""
    head = frame.decode_header(data)
    if head.kind is FrameKind.OPEN:
        frame.decode_open(data)
    elif head.kind is FrameKind.PART:
        frame.decode_part(data)
    else:
        list(frame.decode_entries(data))


@given(controls)
def test_any_control_message_comes_back_as_it_was(message: Control) -> None:
    assert control.decode(control.encode(message)) == message


@given(st.binary(max_size=200) | anything.map(msgpack.packb))
def test_noise_in_place_of_a_control_message_is_a_decode_error(data: bytes) -> None:
    with contextlib.suppress(DecodeError):
        assert isinstance(control.decode(data), Join | Confirm | Restart)


@given(openings, u63)
def test_any_opening_comes_back_as_it_was(opening: Opening, epoch: int) -> None:
    data = frame.encode_open(epoch, opening)
    assert (frame.decode_header(data).epoch, frame.decode_open(data)) == (epoch, opening)


@given(st.sampled_from(list(FrameKind)), st.binary(max_size=200) | anything.map(msgpack.packb))
def test_noise_behind_a_header_is_a_decode_error(kind: FrameKind, body: bytes) -> None:
    with contextlib.suppress(DecodeError):
        take(frame.header(kind, 1, 1) + body)


@given(entries, st.integers(0, 400))
def test_a_cut_frame_gives_only_whole_entries_of_the_uncut_one(
    given_entries: list[tuple[int, bytes]], cut: int
) -> None:
    whole = frame.header(FrameKind.DATA, 1, 1) + b"".join(
        frame.encode_entry(*entry) for entry in given_entries
    )
    assert list(frame.decode_entries(whole)) == given_entries
    found = []
    with contextlib.suppress(DecodeError):
        for entry in frame.decode_entries(whole[: frame.FRAME_OVERHEAD_BYTES + cut]):
            found.append(entry)  # noqa: PERF402  # what came before the error counts
    assert found == given_entries[: len(found)]


@given(u64, st.integers(0, 1000), st.binary(min_size=1, max_size=50), st.integers(0, 1000))
def test_a_part_comes_back_as_it_was(lsn: int, offset: int, data: bytes, beyond: int) -> None:
    part = Part(lsn, offset, offset + len(data) + beyond, data)
    assert frame.decode_part(frame.encode_part(1, 1, part)) == part


@given(u64, st.integers(0, 1000), st.binary(max_size=50), st.data())
def test_a_part_that_does_not_lie_inside_its_message_is_refused(
    lsn: int, offset: int, content: bytes, data: st.DataObject
) -> None:
    # An empty part has no place in any message; another one ends after the message does.
    total = data.draw(
        st.integers(0, offset + len(content) - 1) if content else st.integers(0, 2000)
    )
    with pytest.raises(DecodeError):
        frame.decode_part(frame.encode_part(1, 1, Part(lsn, offset, total, content)))


def test_a_part_of_a_message_over_the_largest_is_refused() -> None:
    largest = frame.MESSAGE_BYTES_MAX
    at_the_end = Part(1, largest - 1, largest, b"x")
    assert frame.decode_part(frame.encode_part(1, 1, at_the_end)) == at_the_end
    with pytest.raises(DecodeError):
        frame.decode_part(frame.encode_part(1, 1, Part(1, largest - 1, largest + 1, b"x")))


@given(entries, st.integers(20, 200))
def test_whatever_is_packed_is_what_is_received(
    messages: list[tuple[int, bytes]], frame_bytes: int
) -> None:
    sender = FrameSender(
        frozenset({"p"}), frame_bytes_max=frame_bytes, in_flight_bytes_max=1, life=0
    )
    receiver = FrameReceiver("p", "s")
    sender.on_control(receiver.join(), 0.0)
    frames = [sender.begin(Opening({"p": "s"}, "", "", "", 1, 0), clock_ns=0, now=0.0)]
    frames += [data for message in messages for data in sender.add(*message)]
    frames += sender.flush()
    assert [entry for data in frames for entry in receiver.receive(data, 0.0).entries] == messages
    assert all(len(data) <= frame_bytes + frame.FRAME_OVERHEAD_BYTES for data in frames[1:])
