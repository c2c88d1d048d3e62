"""The arithmetic of a pull: never more than its bounds, never standing still; and the server's
words about it.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import DecodeError
from headrace.jetstream.pull_budget import Room, Status, place, status

MESSAGES_MAX, BYTES_MAX = 20, 1000

# Steps of a room: so many of the requested messages come, are read, or are reported not to come.
steps = st.lists(
    st.tuples(
        st.sampled_from(["come", "read", "end", "ask"]), st.integers(0, 30), st.integers(0, 400)
    )
)


@given(steps)
def test_what_is_asked_for_and_held_never_exceeds_the_bounds_and_never_stands_still(
    done: list[tuple[str, int, int]],
) -> None:
    room, held = Room(MESSAGES_MAX, BYTES_MAX), []
    for what, number, size in done:
        if what == "come":
            for _ in range(min(number, room.asked)):
                one = min(size, room.asked_bytes)
                room.arrived(1, one)
                room.hold(1, one)
                held.append(one)
        elif what == "read":
            for one in held[:number]:
                room.read(1, one)
            del held[:number]
        elif what == "end":
            room.ended(min(number, room.asked), min(size, room.asked_bytes))
        else:
            room.ask()
        assert room.asked + room.held <= MESSAGES_MAX
        assert room.asked_bytes + room.held_bytes <= BYTES_MAX
        assert room.held == len(held)
    for one in held:
        room.read(1, one)
    assert room.asked or room.ask()


@pytest.mark.parametrize(
    ("free", "asked"),
    [((9, 600), None), ((10, 600), (10, 600)), ((12, 499), None), ((12, 500), (12, 500))],
)
def test_more_is_asked_for_as_soon_as_half_of_both_bounds_is_free(
    free: tuple[int, int], asked: tuple[int, int] | None
) -> None:
    room = Room(MESSAGES_MAX, BYTES_MAX)
    room.ask()
    room.arrived(MESSAGES_MAX, BYTES_MAX)
    room.hold(MESSAGES_MAX, BYTES_MAX)
    room.read(*free)
    assert room.ask() == asked


def test_a_message_larger_than_the_window_is_asked_for_alone_and_of_any_size() -> None:
    room = Room(MESSAGES_MAX, BYTES_MAX)
    assert room.ask() == (20, 1000)
    room.ended(20, 1000, too_small=True)
    assert room.ask() == (1, 0)
    assert room.ask() is None
    room.arrived(1, 5000)
    room.hold(1, 5000)
    assert room.ask() is None
    room.read(1, 5000)
    assert room.ask() == (20, 1000)


def test_a_request_that_ends_for_its_bytes_after_some_messages_is_followed_by_another_like_it() -> (
    None
):
    room = Room(MESSAGES_MAX, BYTES_MAX)
    room.ask()
    room.arrived(3, 900)
    room.ended(17, 100, too_small=True)
    assert room.ask() == (20, 1000)


def test_a_reply_subject_names_the_place_with_and_without_a_domain() -> None:
    assert place(b"$JS.ACK.CDC.name.1.41.7.1763480000000000000.5") == (
        41,
        7,
        b"1763480000000000000",
    )
    assert place(b"$JS.ACK.hub.HASH.CDC.name.1.41.7.1763480000000000000.5.token") == (
        41,
        7,
        b"1763480000000000000",
    )
    for malformed in (b"", b"$JS.ACK.CDC.name.1.x.7.8.9", b"$JS.ACK"):
        with pytest.raises(DecodeError):
            place(malformed)


def test_a_status_is_told_from_a_messages_headers() -> None:
    assert status(b"NATS/1.0\r\nNats-Msg-Id: 1\r\n\r\n") is None
    assert status(b"") is None
    timeout = status(
        b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 4\r\nNats-Pending-Bytes: "
        b"90\r\n\r\n"
    )
    assert timeout == Status(408, "Request Timeout", (4, 90))
    assert timeout.ends_request
    beat = status(b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 5\r\n\r\n")
    assert beat is not None
    assert beat.is_heartbeat
    for doubtful in (
        b"NATS/1.0 409 Consumer Deleted\r\n\r\n",
        b"NATS/1.0 503\r\n\r\n",
        b"NATS/1.0 x\r\n\r\n",
    ):
        said = status(doubtful)
        assert said is not None
        assert not said.ends_request
        assert not said.is_heartbeat
