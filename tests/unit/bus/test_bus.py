"""The bus's bytes and state machines, by hand: malformed input is refused, credit is respected, the
slowest confirmer counts.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import msgpack
import pytest

from headrace.bus import control, frame
from headrace.bus.control import Confirm, Control, Join, Restart
from headrace.bus.frame import FrameKind, Opening, Part
from headrace.bus.receiver import SILENCE_S, FrameReceiver
from headrace.bus.sender import JOIN_GRACE_S, LIFE_BITS, Action, FrameSender
from headrace.errors import DecodeError

OPENING = Opening({"publisher": "s1"}, "slot", "db", "7000", 3, 0x16F0)
CONTROLS = [
    Join("publisher", "s1", 7),
    Confirm("publisher", "s1", 7, 3, 0x16F0, True),
    Restart("a", "b", 0, "why"),
]


def sender(
    *required: str, credit: int = 1000, frame_bytes: int = 100, life: int = 5
) -> FrameSender:
    names = frozenset(required or ("publisher",))
    return FrameSender(names, frame_bytes_max=frame_bytes, in_flight_bytes_max=credit, life=life)


def joined(*, credit: int = 1000, frame_bytes: int = 100) -> FrameSender:
    one = sender(credit=credit, frame_bytes=frame_bytes)
    assert one.on_control(Join("publisher", "s1", 0), 0.0) is Action.OPEN
    one.begin(OPENING, clock_ns=1 << 40, now=0.0)
    return one


def following() -> tuple[FrameSender, FrameReceiver]:
    one = sender()
    receiver = FrameReceiver("publisher", "s1")
    one.on_control(receiver.join(), 0.0)
    received = receiver.receive(one.begin(OPENING, clock_ns=1 << 40, now=0.0), 0.0)
    assert received.opening == OPENING
    return one, receiver


def pack(one: FrameSender, messages: Iterable[tuple[int, bytes]]) -> list[bytes]:
    frames = [data for lsn, message in messages for data in one.add(lsn, message)]
    return [*frames, *one.flush()]


@pytest.mark.parametrize("message", CONTROLS)
def test_a_control_message_comes_back_as_it_was(message: Control) -> None:
    assert control.decode(control.encode(message)) == message


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        7,
        None,
        {"kind": "join"},
        {"kind": "leave", "confirmer": "a", "session": "b", "epoch": 1},
        {"kind": ["join"], "confirmer": "a", "session": "b", "epoch": 1},
        {"kind": "join", "confirmer": b"a", "session": "b", "epoch": 1},
        {"kind": "join", "confirmer": "a", "session": "b", "epoch": "1"},
        {"kind": "join", "confirmer": "a", "session": "b", "epoch": True},
        # The next epoch follows the highest that others name: this one would not fit into a frame.
        {"kind": "join", "confirmer": "a", "session": "b", "epoch": (1 << 64) - 1},
        {"kind": "join", "confirmer": "a", "session": "b", "epoch": -1},
    ],
)
def test_a_malformed_control_message_is_refused(body: object) -> None:
    with pytest.raises(DecodeError):
        control.decode(msgpack.packb(body))


def test_every_cut_of_an_open_frame_is_refused() -> None:
    whole = frame.encode_open(9, OPENING)
    assert frame.decode_open(whole) == OPENING
    for length in range(len(whole)):
        with pytest.raises(DecodeError):
            spoilt(whole[:length])


def spoilt(data: bytes) -> object:
    frame.decode_header(data)
    return frame.decode_open(data)


def test_an_open_frame_of_the_first_wal_readers_is_understood() -> None:
    later = {"current_lsn", "forks", "slot_used"}
    body = {name: getattr(OPENING, name) for name in Opening.__slots__ if name not in later}
    assert frame.decode_open(frame.header(FrameKind.OPEN, 1, 0) + msgpack.packb(body)) == OPENING


@pytest.mark.parametrize(
    "field",
    [
        {"sessions": []},
        {"slot": 1},
        {"database": None},
        {"system_id": 7},
        {"timeline": "1"},
        {"confirmed_lsn": ""},
        {"slot_used": 1},
    ],
)
def test_an_open_frame_with_a_field_of_the_wrong_type_is_refused(field: dict[str, object]) -> None:
    body = {name: getattr(OPENING, name) for name in Opening.__slots__} | field
    with pytest.raises(DecodeError):
        frame.decode_open(frame.header(FrameKind.OPEN, 1, 0) + msgpack.packb(body))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"HR",
        b"XX" + frame.header(FrameKind.PING, 1, 1)[2:],
        b"HR\x02" + frame.header(FrameKind.PING, 1, 1)[3:],
        b"HR\x00" + frame.header(FrameKind.PING, 1, 1)[3:],
        b"HR\x01\x63" + frame.header(FrameKind.PING, 1, 1)[4:],
        frame.header(FrameKind.PING, 1, 1)[:-1],
    ],
)
def test_a_header_that_is_cut_foreign_or_newer_is_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        frame.decode_header(data)


def test_entries_come_back_and_every_cut_but_at_their_bounds_is_refused() -> None:
    head = frame.header(FrameKind.DATA, 1, 1)
    entries = [(1, b"abc"), (2, b""), (1 << 63, b"x" * 20)]
    encoded = [frame.encode_entry(*entry) for entry in entries]
    whole = head + b"".join(encoded)
    assert list(frame.decode_entries(whole)) == entries
    bounds = {len(head) + len(b"".join(encoded[:count])) for count in range(4)}
    for length in range(len(head), len(whole)):
        if length not in bounds:
            with pytest.raises(DecodeError):
                list(frame.decode_entries(whole[:length]))


@pytest.mark.parametrize(
    ("offset", "total", "data"),
    [(0, 5, b""), (0, 5, b"123456"), (5, 5, b"1"), (0, frame.MESSAGE_BYTES_MAX + 1, b"1")],
)
def test_a_part_that_does_not_fit_its_message_is_refused(
    offset: int, total: int, data: bytes
) -> None:
    with pytest.raises(DecodeError):
        frame.decode_part(frame.encode_part(1, 1, Part(1, offset, total, data)))
    with pytest.raises(DecodeError):
        frame.decode_part(frame.header(FrameKind.PART, 1, 1) + struct.pack(">QQ", 0, 5))


def test_what_is_packed_comes_out_whole_and_in_order_whatever_its_size() -> None:
    one, receiver = following()
    messages = [(n, b"m" * size) for n, size in enumerate([1, 0, 88, 89, 500, 3, 100, 87, 1, 1])]
    frames = pack(one, messages)
    assert all(len(data) <= 100 + frame.FRAME_OVERHEAD_BYTES for data in frames)
    found = [entry for data in frames for entry in receiver.receive(data, 1.0).entries]
    assert found == messages
    assert receiver.seq == one.seq


def test_no_credit_is_left_until_what_is_on_its_way_was_consumed() -> None:
    one = joined(credit=200)
    frames = pack(one, [(1, b"x" * 300)])
    assert one.in_flight_bytes == sum(map(len, frames))
    assert not one.has_credit
    one.on_control(Confirm("publisher", "s1", one.epoch, one.seq, 0, False), 1.0)
    assert one.in_flight_bytes == 0
    assert one.has_credit


def test_credit_beyond_what_was_sent_gives_nothing() -> None:
    one = joined()
    pack(one, [(1, b"x")])
    one.on_control(Confirm("publisher", "s1", one.epoch, 1 << 40, 0, False), 1.0)
    pack(one, [(2, b"y")])
    assert one.in_flight_bytes > 0


@pytest.mark.parametrize(
    ("session", "epoch_off", "confirmer"),
    [("s0", 0, "publisher"), ("s1", -1, "publisher"), ("s1", 1, "publisher"), ("s1", 0, "x")],
)
def test_a_confirmation_of_another_life_or_epoch_counts_for_nothing(
    session: str, epoch_off: int, confirmer: str
) -> None:
    one = joined()
    pack(one, [(1, b"x")])
    one.on_control(Confirm(confirmer, session, one.epoch + epoch_off, 1, 0x999, True), 1.0)
    assert one.confirmed_lsn == 0
    assert one.in_flight_bytes > 0
    assert not one.settled


def test_the_least_of_all_required_confirmers_is_confirmed_and_never_goes_back() -> None:
    one = sender("publisher", "archiver")
    assert one.on_control(Join("publisher", "s1", 0), 0.0) is Action.NONE
    assert one.missing == ["archiver"]
    assert one.on_control(Join("archiver", "a1", 0), 0.0) is Action.OPEN
    one.begin(OPENING, clock_ns=1, now=0.0)
    one.on_control(Confirm("publisher", "s1", one.epoch, 0, 50, True), 1.0)
    assert one.confirmed_lsn == 0
    one.on_control(Confirm("archiver", "a1", one.epoch, 0, 40, True), 1.0)
    one.on_control(Confirm("archiver", "a1", one.epoch, 0, 30, True), 1.0)
    assert one.confirmed_lsn == 40
    assert one.settled


def test_a_confirmer_that_confirms_what_the_epoch_began_with_is_not_ahead_of_others() -> None:
    """An archive reports what its files contain; that does not make the publisher late."""
    one = sender("publisher", "archiver")
    one.on_control(Join("publisher", "s1", 0), 0.0)
    one.on_control(Join("archiver", "a1", 0), 0.0)
    one.begin(OPENING, clock_ns=1, now=0.0)
    began = OPENING.confirmed_lsn
    one.on_control(Confirm("archiver", "a1", one.epoch, 0, began, False), 1.0)
    assert one.held_by is None
    one.on_control(Confirm("publisher", "s1", one.epoch, 0, began + 8, True), 1.0)
    assert one.held_by == "archiver"


def test_an_older_confirmation_that_comes_late_does_not_settle() -> None:
    one = joined()
    pack(one, [(1, b"x")])
    pack(one, [(2, b"y")])
    one.on_control(Confirm("publisher", "s1", one.epoch, 2, 0, False), 1.0)
    one.on_control(Confirm("publisher", "s1", one.epoch, 1, 0, True), 1.0)
    assert not one.settled


def test_a_new_life_of_a_confirmer_ends_the_epoch_and_voids_what_was_confirmed() -> None:
    one = joined()
    one.on_control(Confirm("publisher", "s1", one.epoch, 0, 50, True), 1.0)
    assert one.on_control(Join("publisher", "s2", 0), 5.0) is Action.OPEN
    assert not one.open
    assert one.confirmed_lsn == 0
    assert not one.has_credit


def test_a_join_that_crossed_its_open_asks_for_nothing_and_a_late_one_does() -> None:
    one = joined()
    assert one.on_control(Join("publisher", "s1", 0), JOIN_GRACE_S / 2) is Action.NONE
    assert one.on_control(Join("publisher", "s1", 0), JOIN_GRACE_S * 2) is Action.OPEN
    assert one.on_control(Join("publisher", "s1", one.epoch), JOIN_GRACE_S * 2) is Action.NONE


def test_a_restart_of_an_epoch_that_is_over_asks_for_nothing() -> None:
    one = joined()
    old = one.epoch
    assert one.on_control(Restart("publisher", "s1", old, "lost"), 1.0) is Action.OPEN
    one.begin(OPENING, clock_ns=1, now=1.0)
    assert one.on_control(Restart("publisher", "s1", old, "lost"), 1.0) is Action.NONE


def test_epochs_rise_above_all_that_were_named_even_when_the_clock_is_behind() -> None:
    one = joined()
    one.on_control(Restart("publisher", "s1", 1 << 60, "your clock is behind"), 1.0)
    one.begin(OPENING, clock_ns=1, now=1.0)
    assert one.epoch > 1 << 60


def test_two_lives_that_know_of_the_same_epochs_do_not_begin_the_same() -> None:
    mask = (1 << LIFE_BITS) - 1
    epochs = set()
    for life in (3, 4):
        one = sender(life=life)
        one.on_control(Join("publisher", "s1", 1000), 0.0)
        for _ in range(5):
            one.begin(OPENING, clock_ns=0, now=0.0)
            assert one.epoch & mask == life
            epochs.add(one.epoch)
    assert len(epochs) == 10


def test_a_lost_frame_is_noticed_by_the_next_and_by_a_ping() -> None:
    one, receiver = following()
    first, second = pack(one, [(1, b"a")]), pack(one, [(2, b"b")])
    assert receiver.receive(first[0], 1.0).entries
    assert isinstance(receiver.receive(one.ping(), 1.0).reply, Restart)
    assert not receiver.following
    late = receiver.receive(second[0], 1.0)
    assert (late.entries, late.confirm) == ((), False)


def test_a_repeated_or_older_frame_brings_nothing() -> None:
    one, receiver = following()
    frames = [*pack(one, [(1, b"a")]), *pack(one, [(2, b"b")])]
    for data in frames:
        receiver.receive(data, 1.0)
    for data in frames:
        again = receiver.receive(data, 1.0)
        assert (again.entries, again.reply) == ((), None)
    assert receiver.following


@pytest.mark.parametrize("spoil", [lambda d: d[:-1], lambda d: d + b"x", lambda _: b"garbage"])
def test_a_spoilt_frame_breaks_the_epoch_and_yields_nothing(spoil: object) -> None:
    one, receiver = following()
    received = receiver.receive(spoil(pack(one, [(1, b"abc")])[0]), 1.0)  # type: ignore[operator]  # a function
    assert received.entries == ()
    assert isinstance(received.reply, Restart)
    assert not receiver.following


def test_a_data_frame_between_the_parts_of_a_message_breaks_the_epoch() -> None:
    one, receiver = following()
    parts = list(one.add(1, b"x" * 250))
    assert receiver.receive(parts[0], 1.0).confirm
    intruder = frame.header(FrameKind.DATA, one.epoch, 2) + frame.encode_entry(2, b"y")
    assert isinstance(receiver.receive(intruder, 1.0).reply, Restart)


def test_an_epoch_for_another_life_is_not_joined() -> None:
    one = joined()
    receiver = FrameReceiver("publisher", "s2")
    received = receiver.receive(one.begin(OPENING, clock_ns=1, now=0.0), 0.0)
    assert received.opening is None
    assert received.reply == Join("publisher", "s2", 0)
    assert isinstance(receiver.receive(one.ping(), 0.0).reply, Restart)


def test_silence_makes_a_receiver_join_again_and_again() -> None:
    receiver = FrameReceiver("publisher", "s1")
    assert receiver.tick(0.0) == Join("publisher", "s1", 0)
    assert receiver.tick(0.1) is None
    assert receiver.tick(SILENCE_S) is not None


def with_optional(confirmer: str) -> FrameSender:
    """The publisher has joined, and an optional confirmer has not."""
    one = FrameSender(
        frozenset({"publisher"}),
        optional=frozenset({confirmer}),
        patience_s=10.0,
        frame_bytes_max=100,
        in_flight_bytes_max=50,
        life=5,
    )
    one.on_control(Join("publisher", "s1", 0), 0.0)
    return one


def with_archive() -> FrameSender:
    one = with_optional("archiver")
    assert one.missing == ["archiver"]
    assert one.on_control(Join("archiver", "a1", 0), 0.0) is Action.OPEN
    one.begin(OPENING, clock_ns=1 << 40, now=0.0)
    return one


def test_an_optional_confirmer_holds_the_slot_and_the_credit_for_its_patience_and_no_longer() -> (
    None
):
    one = with_archive()
    pack(one, [(1, b"x" * 60)])
    one.on_control(Confirm("publisher", "s1", one.epoch, 1, 500, True), 0.0)
    assert (one.has_credit, one.confirmed_lsn) == (False, 0)
    left = [name for second in range(12) for name in one.tick(float(second))]
    assert left == ["archiver"]
    assert (one.has_credit, one.confirmed_lsn) == (True, 500)


def test_an_optional_confirmer_that_never_came_does_not_keep_the_line_from_opening() -> None:
    one = with_optional("a")
    for second in range(12):
        one.tick(float(second))
    assert one.missing == []


def test_what_was_confirmed_without_an_optional_confirmer_stays_confirmed_when_it_has_caught_up() -> (
    None
):
    one = with_archive()
    pack(one, [(1, b"x" * 60)])
    one.on_control(Confirm("publisher", "s1", one.epoch, 1, 500, True), 0.0)
    for second in range(12):
        one.tick(float(second))
    one.on_control(Confirm("archiver", "a1", one.epoch, 1, 300, False), 13.0)
    assert one.confirmed_lsn == 500
    pack(one, [(2, b"y" * 10)])
    one.on_control(Confirm("publisher", "s1", one.epoch, 2, 600, True), 14.0)
    assert one.confirmed_lsn == 500
    one.on_control(Confirm("archiver", "a1", one.epoch, 2, 600, True), 15.0)
    assert one.confirmed_lsn == 600


def test_an_optional_confirmer_interrupts_the_others_only_now_and_then() -> None:
    one = with_archive()
    assert one.on_control(Join("archiver", "a2", 0), 1.0) is Action.NONE
    assert one.open
    assert one.on_control(Join("archiver", "a2", 0), 6.0) is Action.OPEN
