"""The stored log, from names: contiguous ranges, holes, and the way over timelines."""

from __future__ import annotations

import random

import pytest

from headrace.backup.layout import LogPiece, Segments
from headrace.backup.segments import Range, holes, needed, ranges, reach
from headrace.backup.timelines import TimelineStretch, parents, way

MIB = 1 << 20
SEGMENTS = Segments(16 * MIB)
SIZE = SEGMENTS.size


def whole(number: int, timeline: int = 1) -> LogPiece:
    return LogPiece(timeline, number * SIZE, (number + 1) * SIZE)


def part(start: int, end: int, timeline: int = 1) -> LogPiece:
    return LogPiece(timeline, start, end, partial=True)


@pytest.mark.parametrize("size", [MIB, 16 * MIB, 1024 * MIB])
def test_a_pieces_name_is_postgresqls_and_reads_back(size: int) -> None:
    segments = Segments(size)
    rng = random.Random(1)
    for _ in range(200):
        start = rng.randrange(1 << 40) // size * size
        piece = LogPiece(rng.randrange(1, 99), start, start + size)
        assert segments.piece(segments.object_name(piece)) == piece
        first, last = sorted(rng.sample(range(0, size + 1, 8), 2))
        some = LogPiece(piece.timeline, start + first, start + last, partial=True)
        assert segments.piece(segments.object_name(some)) == some
    assert Segments(16 * MIB).name(1, 0x1_0300_0000) == "000000010000000100000003"


@pytest.mark.parametrize(
    "name",
    [
        "000000010000000000000003.zst.draft",
        ".000000010000000000000003.zst.ab12",
        "000000010000000000000003",
        "000000010000000000000003.partial",
        "000000010000000000000003.00000000-00000000.zst",
        "000000010000000000000003.00000000-01000001.zst",
        "000000010000000000000100.zst",
        "00000002.history",
    ],
)
def test_only_exact_names_count(name: str) -> None:
    assert SEGMENTS.piece(name) is None


def test_parts_and_segments_join_and_a_missing_one_is_a_hole() -> None:
    found = ranges([whole(4), whole(1), part(2 * SIZE, 2 * SIZE + 8), whole(2), whole(9, 2)])
    assert found == [
        Range(1, SIZE, 3 * SIZE),
        Range(1, 4 * SIZE, 5 * SIZE),
        Range(2, 9 * SIZE, 10 * SIZE),
    ]
    assert holes(found) == [Range(1, 3 * SIZE, 4 * SIZE)]


def test_overlapping_parts_of_two_lives_join() -> None:
    found = ranges([part(0, 100), part(0, 150), part(100, 300), part(304, 400)])
    assert found == [Range(1, 0, 300), Range(1, 304, 400)]


def test_the_log_is_followed_from_one_timeline_to_the_next() -> None:
    fork = 2 * SIZE + 800
    stretches = way(2, [(1, fork)])
    assert stretches[0] == TimelineStretch(1, 0, fork)
    pieces = [whole(0), whole(1), part(2 * SIZE, fork), whole(2, 2), whole(3, 2)]
    assert reach(pieces, stretches, 0) == 4 * SIZE
    # Log of the old timeline beyond the fork is nobody's way.
    assert reach([*pieces[:2], whole(2), whole(3)], stretches, 0) == fork
    assert reach([whole(0), *pieces[3:]], stretches, 0) == SIZE


def test_a_restore_reads_both_timelines_of_a_shared_segment_and_no_part_of_a_whole_one() -> None:
    fork = 2 * SIZE + 800
    stretches = way(2, [(1, fork)])
    pieces = [
        whole(1),
        part(SIZE, SIZE + 8),
        part(2 * SIZE, fork),
        part(2 * SIZE, 2 * SIZE + 16),
        whole(2, 2),
        whole(0),
        whole(9, 2),
    ]
    found = needed(pieces, stretches, SEGMENTS, SIZE + 40, 3 * SIZE)
    assert found == [
        [whole(1)],
        [part(2 * SIZE, 2 * SIZE + 16), part(2 * SIZE, fork)],
        [whole(2, 2)],
    ]


def test_a_history_file_gives_the_parents() -> None:
    text = b"1\t0/3000000\tno recovery target specified\n\n2\t0/5000028\tbefore 2026\n"
    assert parents(text) == [(1, 0x3000000), (2, 0x5000028)]
