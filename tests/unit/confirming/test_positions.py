"""The position of each change, and whether a source is the one that a store knows."""

from __future__ import annotations

import pytest

from headrace.bus.frame import Opening
from headrace.confirming.source_identity import SourceIdentity, divergence, gap_before
from headrace.confirming.transaction_cursor import ProtocolError, TransactionCursor
from headrace.lsn import ORIGIN, Gap, Position
from headrace.pgoutput.messages import Begin, LogicalMessage

BEGIN = Begin(0x900, 0, 7)
NEXT = Begin(0xA00, 0, 8)


def emitted(lsn: int, *, transactional: bool) -> LogicalMessage:
    return LogicalMessage(transactional, lsn, "app", b"")


def test_changes_of_a_transaction_are_counted_from_zero_whether_they_are_delivered_or_not() -> None:
    cursor = TransactionCursor()
    for begin in (BEGIN, NEXT):
        cursor.begin(begin)
        assert cursor.advance() == Position(begin.final_lsn, 0)
        cursor.pass_over()
        assert cursor.emitted(emitted(1, transactional=True)) == Position(begin.final_lsn, 2)
        assert cursor.unread(1) == cursor.position == Position(begin.final_lsn, 3)
        assert cursor.xid == begin.xid
        cursor.commit()
    assert cursor.position == ORIGIN


def test_before_the_first_transaction_the_next_change_has_no_ordinal_yet() -> None:
    assert TransactionCursor().ordinal == 0
    cursor = TransactionCursor()
    cursor.pass_over()
    assert cursor.ordinal == 0


def test_what_stands_alone_comes_before_a_transaction_that_begins_where_it_ends() -> None:
    cursor = TransactionCursor()
    alone = cursor.emitted(emitted(0x900, transactional=False))
    assert alone == cursor.unread(0x900) == Position(0x8FF, 0)
    cursor.begin(BEGIN)
    assert alone < cursor.advance()


def test_messages_in_an_order_that_the_protocol_excludes_are_refused() -> None:
    cursor = TransactionCursor()
    for act in (
        cursor.commit,
        cursor.advance,
        lambda: cursor.xid,
        lambda: cursor.emitted(emitted(1, transactional=True)),
    ):
        with pytest.raises(ProtocolError):
            act()
    cursor.begin(BEGIN)
    for act in (
        lambda: cursor.begin(NEXT),
        lambda: cursor.emitted(emitted(1, transactional=False)),
    ):
        with pytest.raises(ProtocolError):
            act()


def opening(
    *,
    timeline: int = 1,
    confirmed: int = 0x100,
    ends_at: int = 0x9000,
    forks: tuple[tuple[int, int], ...] = (),
) -> Opening:
    return Opening({}, "slot", "db", "7000", timeline, confirmed, ends_at, forks)


def known(timeline: int = 1, lsn: int = 0x800, system_id: str = "7000") -> SourceIdentity:
    return SourceIdentity("stream", system_id, timeline, lsn)


@pytest.mark.parametrize(
    ("store", "server"),
    [
        (known(), opening()),
        (known(), opening(ends_at=0x800)),
        (known(system_id=""), opening()),
        (known(timeline=0), opening(timeline=2, forks=((1, 0x10),))),
        (known(timeline=1), opening(timeline=2, forks=((1, 0x801),))),
        (known(timeline=2), opening(timeline=3, forks=((1, 0x10), (2, 0x801)))),
        # The first frames of version 1 did not say where the log ends.
        (known(), opening(ends_at=0)),
    ],
)
def test_a_server_that_has_all_that_the_store_contains_may_continue_it(
    store: SourceIdentity, server: Opening
) -> None:
    assert divergence(store, server) is None


@pytest.mark.parametrize(
    ("store", "server", "said"),
    [
        (known(system_id="6000"), opening(), "system identifier is 7000, the stream's is 6000"),
        (known(timeline=2), opening(timeline=1), "on timeline 1, the stream on 2"),
        (known(), opening(timeline=2, forks=((1, 0x800),)), "left timeline 1 at 0/800"),
        (known(), opening(timeline=3, forks=((1, 0x9000), (2, 0x700))), "at 0/700"),
        (known(timeline=2), opening(timeline=3, forks=((1, 0x10), (2, 0x800))), "at 0/800"),
        (known(), opening(ends_at=0x7FF), "log ends at 0/7FF, before 0/800"),
    ],
)
def test_a_server_that_never_had_what_the_store_contains_may_not_continue_it(
    store: SourceIdentity, server: Opening, said: str
) -> None:
    assert said in str(divergence(store, server))


def test_a_slot_that_is_further_on_than_the_store_leaves_a_gap_unless_the_store_is_new() -> None:
    assert gap_before(0x50, opening()) == Gap(0x50, 0x100, "slot_moved")
    assert gap_before(1, opening()) == Gap(1, 0x100, "slot_moved")
    for complete in (0, 0x100, 0x200):
        assert gap_before(complete, opening()) is None
