"""Pieces of the log are handed out in order and without a hole."""

from __future__ import annotations

import random

import pytest

from headrace.backup.commits import CommitScan
from headrace.backup.errors import DivergedError, LogHoleError
from headrace.backup.layout import LogPiece, Segments
from headrace.wal_archiver.assembly import PARTS_MAX, Job, LogAssembly

SIZE = 1 << 20
SEGMENTS = Segments(SIZE)
BEGIN = 7 * SIZE


def assembly(known: bytes = b"") -> LogAssembly:
    return LogAssembly(SEGMENTS, 1, BEGIN, known, CommitScan(SIZE, 18))


def test_random_pieces_are_the_log_that_was_received() -> None:
    rng = random.Random(4)
    log = rng.randbytes(3 * SIZE + 5000)
    made = assembly()
    jobs: list[Job] = []
    position = 0
    while position < len(log):
        size = rng.randrange(1, 200_000)
        made.add(BEGIN + position, log[position : position + size])
        position += len(log[position : position + size])
        if rng.random() < 0.5:
            jobs += [job for job in [made.take_segment() or made.take_part()] if job]
    while job := made.take_segment() or made.take_part():
        jobs.append(job)
    end = BEGIN
    for job in jobs:
        # It continues what was handed out, and may repeat some of it.
        assert job.piece.start <= end
        assert job.content == log[job.piece.start - BEGIN : job.piece.end - BEGIN]
        end = max(end, job.piece.end)
    assert end == BEGIN + len(log)
    assert [job.piece for job in jobs if not job.piece.partial] == [
        LogPiece(1, BEGIN + number * SIZE, BEGIN + (number + 1) * SIZE) for number in range(3)
    ]


def test_log_that_does_not_continue_is_refused() -> None:
    made = assembly()
    made.add(BEGIN, b"x" * 100)
    with pytest.raises(LogHoleError):
        made.add(BEGIN + 108, b"y")


def test_log_that_differs_from_the_stored_part_is_refused_before_anything_is_handed_out() -> None:
    made = assembly(known=b"x" * 100)
    made.add(BEGIN, b"x" * 50)
    assert made.take_part() is None
    with pytest.raises(DivergedError):
        made.add(BEGIN + 50, b"x" * 20 + b"y" * 80)


def test_a_stored_part_is_not_handed_out_again() -> None:
    made = assembly(known=b"x" * 100)
    made.add(BEGIN, b"x" * 120)
    job = made.take_part()
    assert job is not None
    assert job.piece == LogPiece(1, BEGIN + 100, BEGIN + 120, partial=True)


def test_many_parts_become_one() -> None:
    made = assembly()
    pieces = []
    for number in range(PARTS_MAX + 1):
        made.add(BEGIN + number * 8, b"12345678")
        job = made.take_part()
        assert job is not None
        pieces.append(job.piece)
    assert pieces[-1] == LogPiece(1, BEGIN, BEGIN + (PARTS_MAX + 1) * 8, partial=True)
    assert all(pieces[-1].contains(piece) for piece in pieces[:-1])
