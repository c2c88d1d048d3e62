"""The place where the log continues, and the servers that are refused."""

from __future__ import annotations

import pytest

from headrace.backup.errors import DivergedError, ForeignStoreError
from headrace.backup.layout import LogPiece, Segments
from headrace.wal_archiver.resume import LogStart, Server, resume

SIZE = 16 << 20
SEGMENTS = Segments(SIZE)
FORK = 2 * SIZE + 0x28
HISTORY = b"1\t0/2000028\treason\n"
STORED = [LogPiece(1, SIZE, 2 * SIZE), LogPiece(1, 2 * SIZE, 2 * SIZE + 8, partial=True)]


def server(timeline: int = 1, lsn: int = 9 * SIZE, history: bytes = b"") -> Server:
    return Server(timeline, lsn, history, slot_lsn=SIZE + 100)


def test_an_empty_store_begins_with_the_slots_segment() -> None:
    assert resume([], server(), SEGMENTS) == LogStart(1, SIZE)


def test_the_log_continues_where_the_store_ends() -> None:
    assert resume(STORED, server(), SEGMENTS) == LogStart(1, 2 * SIZE + 8)


def test_after_a_promotion_the_old_timeline_comes_first_up_to_the_fork() -> None:
    promoted = server(2, history=HISTORY)
    assert resume(STORED, promoted, SEGMENTS) == LogStart(1, 2 * SIZE + 8)
    upto_fork = [*STORED, LogPiece(1, 2 * SIZE, FORK, partial=True)]
    assert resume(upto_fork, promoted, SEGMENTS) == LogStart(2, FORK)
    beyond = [*STORED, LogPiece(1, 2 * SIZE, 3 * SIZE)]
    assert resume(beyond, promoted, SEGMENTS) == LogStart(2, FORK)


def test_a_server_on_an_older_timeline_is_refused() -> None:
    with pytest.raises(ForeignStoreError, match="another server has taken over"):
        resume([*STORED, LogPiece(2, 2 * SIZE, 3 * SIZE)], server(), SEGMENTS)


def test_a_server_that_was_never_on_the_stores_timeline_is_refused() -> None:
    with pytest.raises(ForeignStoreError, match="has never been on"):
        resume([LogPiece(2, SIZE, 2 * SIZE)], server(3, history=HISTORY), SEGMENTS)


def test_a_server_whose_log_ends_before_the_stores_is_refused() -> None:
    with pytest.raises(DivergedError, match="nothing was overwritten"):
        resume(STORED, server(lsn=2 * SIZE), SEGMENTS)
