"""A confirmer's end of the bus, rule by rule: when it asks for a new epoch, and what it says."""

from __future__ import annotations

import msgpack

from headrace.bus import control, frame
from headrace.bus.control import Confirm, Join, Restart
from headrace.bus.frame import MESSAGE_BYTES_MAX, FrameKind, Header, Opening, Part
from headrace.bus.receiver import REQUEST_INTERVAL_S, SILENCE_S, FrameReceiver, Received

EPOCH = 70
OPENING = Opening({"publisher": "s1"}, "slot", "db", "7000", 3, 0x16F0)
NOTHING = Received()


def receiver() -> FrameReceiver:
    return FrameReceiver("publisher", "s1")


def following(epoch: int = EPOCH) -> FrameReceiver:
    """Since 0.0, in an epoch that has just started."""
    one = receiver()
    assert one.receive(frame.encode_open(epoch, OPENING), 0.0).opening == OPENING
    return one


def head(kind: FrameKind, seq: int, epoch: int = EPOCH) -> bytes:
    return frame.header(kind, epoch, seq)


def data(seq: int, epoch: int = EPOCH) -> bytes:
    return head(FrameKind.DATA, seq, epoch) + frame.encode_entry(8, b"message")


def test_before_it_follows_an_epoch_a_confirmer_has_taken_and_confirmed_nothing() -> None:
    one = receiver()
    assert not one.following
    assert one.confirm(settled=True) == Confirm("publisher", "s1", 0, 0, 0, True)


def test_frames_without_the_beginning_of_their_epoch_bring_nothing_but_a_request() -> None:
    for epoch in (0, EPOCH):
        reply = Restart("publisher", "s1", epoch, "an epoch whose start was not received")
        assert receiver().receive(data(1, epoch), 0.0) == Received(reply=reply)


def test_a_new_epoch_voids_what_was_durable_in_the_one_before() -> None:
    one = following()
    one.receive(data(1), 0.0)
    one.confirmed_lsn = 500
    assert one.confirm(settled=True) == Confirm("publisher", "s1", EPOCH, 1, 500, True)
    one.receive(frame.encode_open(EPOCH + 1, OPENING), 0.0)
    assert one.confirm(settled=False) == Confirm("publisher", "s1", EPOCH + 1, 0, 0, False)


def test_a_ping_is_answered_with_what_was_taken_and_a_flush_asks_for_all_that_can_be() -> None:
    one = following()
    one.receive(data(1), 0.0)
    assert one.receive(head(FrameKind.PING, 1), 0.0) == Received(confirm=True)
    assert one.receive(head(FrameKind.FLUSH, 1), 0.0) == Received(confirm=True, flush=True)


def test_a_request_names_the_frame_that_is_missing_and_the_epoch_that_lacks_it() -> None:
    missing = following().receive(data(3), 1.0)
    reason = "frame 1 did not arrive, 3 did"
    assert missing == Received(reply=Restart("publisher", "s1", EPOCH, reason))
    silent = following().receive(head(FrameKind.PING, 2), 1.0)
    assert silent.reply == Restart("publisher", "s1", EPOCH, "frame 1 did not arrive")


def test_frames_of_a_superseded_epoch_are_ignored_and_only_its_beginning_is_answered() -> None:
    one = following()
    for late in (data(1, EPOCH - 1), head(FrameKind.PING, 9, EPOCH - 1)):
        assert one.receive(late, 1.0) == NOTHING
    assert one.following
    behind = one.receive(frame.encode_open(EPOCH - 1, OPENING), 1.0)
    assert behind.reply == Restart("publisher", "s1", EPOCH, "an epoch below one already seen")
    assert not one.following


def test_one_loss_causes_a_request_at_intervals_and_not_with_every_frame() -> None:
    one = following()
    assert one.receive(data(3), 1.0).reply is not None
    for seq in range(4, 9):
        assert one.receive(data(seq), 1.0 + REQUEST_INTERVAL_S - 0.01) == NOTHING
    assert one.receive(data(9), 1.0 + REQUEST_INTERVAL_S).reply is not None


def test_silence_is_answered_by_joining_at_intervals() -> None:
    one = following()
    join = Join("publisher", "s1", EPOCH)
    assert one.tick(SILENCE_S - 0.01) is None
    assert one.tick(SILENCE_S) == join
    assert one.tick(SILENCE_S + REQUEST_INTERVAL_S - 0.01) is None
    assert one.tick(SILENCE_S + REQUEST_INTERVAL_S) == join


def test_a_driver_that_gives_up_an_epoch_takes_nothing_more_of_it() -> None:
    one = following()
    assert one.restart("a publish failed") == Restart("publisher", "s1", EPOCH, "a publish failed")
    assert not one.following
    assert one.receive(data(1), 1.0).entries == ()


def test_a_header_without_content_is_a_whole_frame() -> None:
    assert frame.decode_header(head(FrameKind.PING, 3)) == Header(FrameKind.PING, EPOCH, 3)


def test_a_part_may_belong_to_the_largest_message() -> None:
    largest = Part(1, 0, MESSAGE_BYTES_MAX, b"1")
    assert frame.decode_part(frame.encode_part(1, 1, largest)) == largest


def test_what_a_newer_service_adds_to_a_control_message_is_ignored() -> None:
    known = Join("publisher", "s1", 7)
    newer = msgpack.packb({**msgpack.unpackb(control.encode(known)), "zone": "north"})
    assert control.decode(newer) == known
