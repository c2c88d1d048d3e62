"""The wal-reader's end of the bus, rule by rule: what an epoch begins with, what is packed into a
frame, and which confirmers the others wait for.
"""

from __future__ import annotations

from headrace.bus import frame
from headrace.bus.control import Confirm, Join, Restart
from headrace.bus.frame import ENTRY_OVERHEAD_BYTES, FrameKind, Header, Opening
from headrace.bus.sender import (
    JOIN_GRACE_S,
    LIFE_BITS,
    OPTIONAL_EPOCH_INTERVAL_S,
    Action,
    FrameSender,
)

FRAME_BYTES = 100
LIFE = 5
PATIENCE_S = 10.0
# Clocks begin anywhere.
BEGAN_AT = 1000.0
START_LSN = 0x16F0
FITS_EXACTLY = b"m" * (FRAME_BYTES - ENTRY_OVERHEAD_BYTES)


def opening(one: FrameSender) -> Opening:
    return Opening(one.sessions(), "slot", "db", "7000", 3, START_LSN)


def begin(one: FrameSender, now: float = BEGAN_AT) -> None:
    one.begin(opening(one), clock_ns=1 << 40, now=now)


def sender(*, credit: int = 1000, archive: str = "") -> FrameSender:
    """With a publisher, and an archiver that is required or optional."""
    return FrameSender(
        frozenset({"publisher", "archiver"} if archive == "required" else {"publisher"}),
        optional=frozenset({"archiver"} if archive == "optional" else ()),
        patience_s=PATIENCE_S,
        frame_bytes_max=FRAME_BYTES,
        in_flight_bytes_max=credit,
        life=LIFE,
    )


def opened(*, credit: int = 1000, archive: str = "") -> FrameSender:
    one = sender(credit=credit, archive=archive)
    one.on_control(Join("publisher", "p1", 0), BEGAN_AT)
    if archive:
        one.on_control(Join("archiver", "a1", 0), BEGAN_AT)
    begin(one)
    one.tick(BEGAN_AT)
    return one


def send(one: FrameSender, *messages: bytes) -> list[bytes]:
    frames = [data for message in messages for data in one.add(START_LSN, message)]
    return [*frames, *one.flush()]


def confirm(
    one: FrameSender, name: str, seq: int, lsn: int, *, settled: bool = False, now: float = BEGAN_AT
) -> None:
    session = {"publisher": "p1", "archiver": "a1"}[name]
    one.on_control(Confirm(name, session, one.epoch, seq, lsn, settled), now)


def left_in(one: FrameSender, first_s: int, last_s: int) -> list[tuple[int, str]]:
    """The confirmers that are dropped in these seconds after the beginning, and when."""
    return [
        (second, name)
        for second in range(first_s, last_s + 1)
        for name in one.tick(BEGAN_AT + second)
    ]


# Epochs.


def test_before_its_first_epoch_a_wal_reader_has_sent_and_confirmed_nothing_and_has_no_credit() -> (
    None
):
    one = sender()
    assert (one.epoch, one.seq, one.in_flight_bytes, one.confirmed_lsn) == (0, 0, 0, 0)
    assert not one.open
    assert not one.has_credit
    assert one.held_by is None
    assert frame.decode_header(one.hello()) == Header(FrameKind.HELLO, 0, 0)


def test_an_epoch_begins_without_anything_of_the_one_before() -> None:
    one = opened(credit=FRAME_BYTES)
    send(one, FITS_EXACTLY)
    list(one.add(START_LSN, b"packed and not sent"))
    confirm(one, "publisher", 0, 500, settled=True)
    begin(one)
    assert (one.seq, one.in_flight_bytes, one.confirmed_lsn) == (0, 0, 0)
    assert one.has_credit
    assert not one.settled, "in this epoch, the publisher has confirmed nothing"
    assert list(one.flush()) == []
    frames = send(one, FITS_EXACTLY)
    assert [frame.decode_entries(data) for data in frames] == [[(START_LSN, FITS_EXACTLY)]]
    confirm(one, "publisher", 1, 500, settled=True)
    assert one.settled


def test_between_two_epochs_nothing_is_kept_credited_or_confirmed() -> None:
    one = opened()
    confirm(one, "publisher", 0, 500, settled=True)
    list(one.add(START_LSN, b"packed and not sent"))
    one.close()
    assert list(one.flush()) == []
    assert list(one.add(START_LSN, FITS_EXACTLY)) == [], "it fills the next frame exactly"
    assert (one.open, one.has_credit, one.confirmed_lsn) == (False, False, 0)


def test_an_epoch_is_above_the_clock_and_all_others_and_says_whose_it_is() -> None:
    one = sender()
    one.on_control(Join("publisher", "p1", 0), 0.0)
    before = 0
    for clock_ns in (1 << 40, 1 << 40, (1 << 40) + LIFE, 1 << 41, 7):
        data = one.begin(opening(one), clock_ns=clock_ns, now=0.0)
        head = frame.decode_header(data)
        assert (head.kind, head.seq) == (FrameKind.OPEN, 0)
        assert head.epoch == one.epoch > max(before, clock_ns)
        assert head.epoch & ((1 << LIFE_BITS) - 1) == LIFE
        before = head.epoch
    assert frame.decode_header(one.hello()) == Header(FrameKind.HELLO, before, 0)


# Frames and credit.


def test_a_message_that_fits_exactly_takes_one_frame_and_a_larger_one_is_sent_in_parts() -> None:
    one = opened()
    for _ in range(2):
        frames = send(one, FITS_EXACTLY)
        assert [frame.decode_header(data).kind for data in frames] == [FrameKind.DATA]
    parts = send(one, FITS_EXACTLY + b"m")
    assert {frame.decode_header(data).kind for data in parts} == {FrameKind.PART}


def test_exactly_used_up_credit_is_used_up() -> None:
    size = len(send(opened(), b"one frame")[0])
    one = opened(credit=size)
    assert one.has_credit
    send(one, b"one frame")
    assert one.in_flight_bytes == size
    assert not one.has_credit


def test_nothing_is_settled_while_a_message_is_packed_or_on_its_way() -> None:
    one = opened()
    settled = []
    for step in (
        lambda: confirm(one, "publisher", 0, START_LSN, settled=True),
        lambda: list(one.add(START_LSN, b"packed")),
        lambda: list(one.flush()),
        lambda: confirm(one, "publisher", 1, START_LSN, settled=True),
    ):
        step()
        settled.append(one.settled)
    assert settled == [True, False, False, True]


# Joins and restarts.


def test_a_confirmer_whose_open_was_lost_gets_a_new_epoch_after_a_while() -> None:
    one = opened()
    again = Join("publisher", "p1", 0)
    assert one.on_control(again, BEGAN_AT + JOIN_GRACE_S - 0.1) is Action.NONE
    assert one.on_control(again, BEGAN_AT + JOIN_GRACE_S) is Action.OPEN


def test_a_restart_from_a_session_that_never_joined_counts_as_its_join() -> None:
    one = sender()
    assert one.on_control(Restart("publisher", "p1", 0, "lost"), BEGAN_AT) is Action.OPEN
    begin(one)
    assert one.on_control(Restart("publisher", "p2", 0, "lost"), BEGAN_AT) is Action.OPEN
    assert one.sessions() == {"publisher": "p2"}


def test_an_optional_confirmer_may_interrupt_the_others_after_an_interval() -> None:
    for request in (Join("archiver", "a2", 0), Restart("archiver", "a1", 1 << 50, "lost")):
        one = opened(archive="optional")
        early = BEGAN_AT + OPTIONAL_EPOCH_INTERVAL_S - 0.1
        assert one.on_control(request, early) is Action.NONE
        assert one.on_control(request, BEGAN_AT + OPTIONAL_EPOCH_INTERVAL_S) is Action.OPEN


# Optional confirmers.


def test_an_optional_confirmer_holds_the_slot_for_its_patience_however_often_the_clock_ticks() -> (
    None
):
    for step_s in (0.125, 1.0):
        one = opened(archive="optional")
        confirm(one, "publisher", 0, 500)
        ticks = [BEGAN_AT + number * step_s for number in range(int(20 / step_s))]
        left = [now for now in ticks if one.tick(now)]
        assert left == [BEGAN_AT + PATIENCE_S + step_s]
        assert one.confirmed_lsn == 500


def test_an_optional_confirmer_that_keeps_up_stays() -> None:
    one = opened(archive="optional")
    confirm(one, "publisher", 0, 500)
    confirm(one, "archiver", 0, 500)
    assert left_in(one, 1, 30) == []


def test_neither_time_between_epochs_nor_used_up_credit_counts_against_one_that_is_not_behind() -> (
    None
):
    one = sender(archive="optional")
    one.on_control(Join("publisher", "p1", 0), BEGAN_AT)
    one.on_control(Join("archiver", "a1", 0), BEGAN_AT)
    assert left_in(one, 0, 30) == [], "no epoch is open"
    full = opened(archive="optional", credit=FRAME_BYTES)
    send(full, FITS_EXACTLY)
    assert left_in(full, 1, 30) == [], "the publisher has not consumed it either"


def test_one_that_is_behind_in_frames_is_dropped_only_when_the_credit_is_used_up() -> None:
    for credit, left in ((1000, []), (FRAME_BYTES, [(11, "archiver")])):
        one = opened(archive="optional", credit=credit)
        send(one, FITS_EXACTLY)
        confirm(one, "publisher", 1, 0)
        assert left_in(one, 1, 20) == left
        assert one.has_credit


def test_one_that_holds_up_the_credit_half_of_the_time_is_not_dropped() -> None:
    one = opened(archive="optional", credit=FRAME_BYTES)
    for second in range(1, 60, 2):
        send(one, FITS_EXACTLY)
        confirm(one, "publisher", one.seq, 0)
        assert left_in(one, second, second) == []
        confirm(one, "archiver", one.seq, 0)
        assert left_in(one, second + 1, second + 1) == []


def test_time_before_it_joined_does_not_count_as_held_credit() -> None:
    one = sender(archive="optional", credit=FRAME_BYTES)
    one.on_control(Join("publisher", "p1", 0), BEGAN_AT)
    assert left_in(one, 0, 9) == []
    one.on_control(Join("archiver", "a1", 0), BEGAN_AT + 9)
    begin(one, BEGAN_AT + 9)
    send(one, FITS_EXACTLY)
    confirm(one, "publisher", 1, 0)
    assert left_in(one, 10, 18) == []


def test_a_repeated_confirmation_is_no_progress_and_a_higher_one_is() -> None:
    one = opened(archive="optional")
    confirm(one, "publisher", 0, 500)
    for second in range(1, 11):
        confirm(one, "archiver", 0, 100)
        assert left_in(one, second, second) == []
    confirm(one, "archiver", 0, 101)
    assert left_in(one, 11, 20) == []
    confirm(one, "archiver", 0, 101)
    assert left_in(one, 21, 22) == [(21, "archiver")]


def test_a_dropped_confirmer_is_awaited_again_with_frames_and_lsn_of_which_neither_is_enough() -> (
    None
):
    one = opened(archive="optional")
    confirm(one, "archiver", 0, 400)
    send(one, b"first")
    confirm(one, "publisher", 1, 500)
    assert left_in(one, 1, 12) == [(11, "archiver")]

    def is_awaited_after(seq: int, lsn: int) -> bool:
        confirm(one, "archiver", seq, lsn)
        before = one.confirmed_lsn
        confirm(one, "publisher", one.seq, before + 1)
        return one.confirmed_lsn == before

    assert not is_awaited_after(1, 400)
    send(one, b"second")
    confirm(one, "publisher", 2, 0)
    assert not is_awaited_after(1, 450)
    assert is_awaited_after(2, 450)


def test_in_a_new_epoch_a_dropped_confirmer_is_awaited_once_it_confirms_anything() -> None:
    one = opened(archive="optional")
    confirm(one, "archiver", 0, 400)
    confirm(one, "publisher", 0, 500)
    assert left_in(one, 1, 12) == [(11, "archiver")]
    begin(one, BEGAN_AT + 12)
    confirm(one, "archiver", 0, 1)
    confirm(one, "publisher", 0, 700)
    assert one.confirmed_lsn == 1


def test_a_dropped_confirmer_that_joins_again_is_awaited_from_the_next_epoch_on() -> None:
    one = opened(archive="optional")
    confirm(one, "publisher", 0, 500)
    assert left_in(one, 1, 12) == [(11, "archiver")]
    assert one.on_control(Join("archiver", "a2", 0), BEGAN_AT + 13) is Action.OPEN
    begin(one, BEGAN_AT + 13)
    confirm(one, "publisher", 0, 600)
    assert one.confirmed_lsn == 0


def test_the_only_one_that_is_behind_is_named_and_never_the_only_one_there_is() -> None:
    alone = opened()
    confirm(alone, "publisher", 0, START_LSN)
    assert alone.held_by is None
    one = opened(archive="required")
    named = [one.held_by]
    for name in ("publisher", "archiver"):
        confirm(one, name, 0, START_LSN + 8)
        named.append(one.held_by)
    assert named == [None, "archiver", None]
