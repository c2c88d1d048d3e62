"""Reads the stored log while wal-archiver merges parts of it into larger objects. Blocking.

wal-archiver removes a part after an object that contains it is stored. So a listing may have
passed the place of the larger object before it was stored, and the part's after it was removed.
Promises that a merge is never taken for a hole, and that a lost object is an error.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.backup.errors import ObjectMissingError
from headrace.backup.layout import LogPiece
from headrace.backup.segments import covers, ranges
from headrace.backup.store import BackupStore

# Listings before the last one counts: each repetition needs a merge at the same time.
_LISTINGS_MAX = 8
# Listings of one segment whose parts are merged while they are read.
_MERGES_MAX = 8


def steady_pieces(store: BackupStore) -> list[LogPiece]:
    """The stored pieces of the log, of a listing that lacks nothing which the one before had."""
    pieces = store.pieces()
    for _ in range(_LISTINGS_MAX):
        before = ranges(pieces)
        pieces = store.pieces()
        # Not so if a merge happened during the listing, or while backups expire.
        if covers(ranges(pieces), before):
            break
    return pieces


def segment(store: BackupStore, pieces: Sequence[LogPiece]) -> bytes:
    """A segment from its pieces, padded with zeros; parts may be merged while they are read."""
    end = max(piece.end for piece in pieces)
    for _ in range(_MERGES_MAX):
        try:
            return _joined(store, pieces)
        except ObjectMissingError:
            begin = store.segments.begin(pieces[0].start)
            larger = _listed(store, pieces[0].timeline, begin)
            # Merged parts reach as far as before, without a hole; otherwise one is lost.
            whole = [one for one in ranges(larger) if one.start == begin and one.end >= end]
            if not whole:
                raise
            pieces = larger
    return _joined(store, pieces)


def merged_into(store: BackupStore, part: LogPiece) -> list[LogPiece]:
    """The pieces that a listed part was merged into; none if it is lost."""
    return [piece for piece in steady_pieces(store) if piece.contains(part)]


def _listed(store: BackupStore, timeline: int, begin: int) -> list[LogPiece]:
    """The current pieces of a segment."""
    found = sorted(
        piece
        for piece in steady_pieces(store)
        if piece.timeline == timeline and store.segments.begin(piece.start) == begin
    )
    return [piece for piece in found if not piece.partial] or found


def _joined(store: BackupStore, pieces: Sequence[LogPiece]) -> bytes:
    size = store.segments.size
    begin = store.segments.begin(pieces[0].start)
    content = bytearray()
    for piece in pieces:
        at = piece.start - begin
        # A gap between parts: what follows doesn't count.
        # A listing may be older than a merge of parts.
        if at > len(content):
            break
        read = store.read_piece(piece)
        content[at : at + len(read)] = read
    return bytes(content) + bytes(size - len(content))
