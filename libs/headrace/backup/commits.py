"""Commits in a part of PostgreSQL's log: their transaction, time, and the relations they drop.

Finds the commit records among all others by their headers, with numpy for a whole segment: reading
each record in Python would cost more than storing the log. Says nothing about any other record.
The commits choose which part of the log a restore reads; PostgreSQL makes the restore exact. Pure.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from headrace.pgoutput.messages import PG_EPOCH_US

PAGE = 8192
_PAGE_HEADER = 24
# The first page of each segment has a longer header.
_SEGMENT_HEADER = 40
_RECORD_HEADER = 24
# Numbers of PostgreSQL's rmgrlist.h and xact.h.
_RMGR_XACT = 1
_COMMIT = 0x00
_COMMIT_PREPARED = 0x30
_OPERATION = 0x70
_HAS_INFO = 0x80
# A commit record before this distance from its predecessor would be more than a large row.
_APART_MAX = 1 << 31
_RECORD_MAX = 4 << 20
_BLOCK_SHORT, _BLOCK_LONG, _ORIGIN, _TOPLEVEL = 255, 254, 253, 252
# Flags that say which optional parts a commit record has, in this order.
_DBINFO, _SUBXACTS, _LOCATORS, _INVALS, _TWOPHASE, _DROPPED = 1, 2, 4, 8, 16, 1 << 8
_RELATION = 2
# Kind, database and object. Since version 18 the object's number has 64 bits.
_ITEM_16 = struct.Struct("<iIQ")
_ITEM_12 = struct.Struct("<iII")
_LONG_ITEMS_SINCE = 18


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """A commit record."""

    # Where the record begins.
    lsn: int
    xid: int
    # Microseconds since 1970, by the server's clock.
    time_us: int
    # Database and relation.
    dropped: tuple[tuple[int, int], ...]
    # The catalog has changed: names of relations may be new.
    catalog_changed: bool


class CommitScan:
    """Reads pieces of the log in order; a record that ends in the next piece is kept until then."""

    def __init__(self, segment_size: int, server_version: int) -> None:
        self._segment_size = segment_size
        self._item = _ITEM_16 if server_version >= _LONG_ITEMS_SINCE else _ITEM_12
        # The log without the headers of its pages, from a record's possible beginning on.
        self._rest = b""
        # The LSN of each page's first byte in `_rest`.
        self._places: list[tuple[int, int]] = []
        self._next = -1
        self._last = -1

    def read(self, start: int, data: bytes | bytearray | memoryview) -> list[CommitRecord]:
        """The commits that are complete with this piece; a piece that doesn't continue the last one
        begins a new series.
        """
        if start != self._next:
            # A jump in the log: what was kept is not continued.
            self._rest, self._places, self._last = b"", [], -1
        self._next = start + len(data)
        kept = bytearray(self._rest)
        places = self._places
        position = 0
        view = memoryview(data)
        while position < len(view):
            lsn = start + position
            header = self._header(lsn)
            # A piece may begin or end within a page, and even within a page's header.
            inside = lsn % PAGE
            stop = min(len(view), position + PAGE - inside)
            skipped = max(0, header - inside)
            if position + skipped < stop:
                places.append((len(kept), lsn + skipped))
                kept += view[position + skipped : stop]
            position = stop
        found, used = self._scan(bytes(kept), places)
        self._rest = bytes(kept[used:])
        self._places = _from(places, used)
        return found

    def _header(self, lsn: int) -> int:
        # The first page of a segment has a longer header than the others.
        page = lsn // PAGE * PAGE
        if page % self._segment_size == 0:
            return _SEGMENT_HEADER
        return _PAGE_HEADER

    def _scan(self, stream: bytes, places: list[tuple[int, int]]) -> tuple[list[CommitRecord], int]:
        offsets = [offset for offset, _ in places]
        lsns = [lsn for _, lsn in places]
        # Records begin at multiples of eight bytes, as pages and their headers do.
        shift = -lsns[0] % 8 if lsns else 0
        count = (len(stream) - shift) // 8
        if count < 3:
            return [], 0
        # A record's header as three words: length and transaction, previous record, then
        # information, resource manager, padding and checksum.
        words = np.frombuffer(stream, np.uint64, count, shift)
        third = words[2:]
        # The padding is always zero, so that four bytes of the word are known.
        fits = (third & np.uint64(0xFFFFFF00)) == np.uint64(_RMGR_XACT << 8)
        found: list[CommitRecord] = []
        used = max(0, len(stream) - _RECORD_HEADER)
        for index in np.flatnonzero(fits).tolist():
            offset = shift + index * 8
            lsn = _lsn_at(offset, offsets, lsns)
            size, xid = struct.unpack_from("<II", stream, offset)
            # The decisive test: bytes of a row hardly contain an LSN shortly before their own.
            (previous,) = struct.unpack_from("<Q", stream, offset + 8)
            info = stream[offset + 16]
            if not (_RECORD_HEADER < size < _RECORD_MAX and 0 < lsn - previous < _APART_MAX):
                continue
            if previous % 8 or (info & _OPERATION) not in (_COMMIT, _COMMIT_PREPARED):
                continue
            if offset + size > len(stream):
                used = min(used, offset)
                continue
            body = stream[offset + _RECORD_HEADER : offset + size]
            commit = self._commit(lsn, xid, info, body)
            if commit is not None:
                found.append(commit)
        # A candidate that is kept until it is complete may stand before commits that were read.
        found = [commit for commit in found if commit.lsn > self._last]
        if found:
            self._last = found[-1].lsn
        return found, used

    def _commit(self, lsn: int, xid: int, info: int, body: bytes) -> CommitRecord | None:
        try:
            main = _main_data(body)
            (time_us,) = struct.unpack_from("<q", main, 0)
            dropped: tuple[tuple[int, int], ...] = ()
            flags = 0
            # Most commits have no optional parts: they change rows of tables only.
            if info & _HAS_INFO:
                (flags,) = struct.unpack_from("<I", main, 8)
                xid, dropped = self._details(main, flags, xid)
        except (struct.error, IndexError):
            # Bytes of a row that look like a commit record's header.
            return None
        return CommitRecord(lsn, xid, time_us + PG_EPOCH_US, dropped, bool(flags & _INVALS))

    def _details(
        self, main: bytes, flags: int, xid: int
    ) -> tuple[int, tuple[tuple[int, int], ...]]:
        """The transaction, which a prepared one's record names here, and what it drops."""
        at = 12
        if flags & _DBINFO:
            at += 8
        if flags & _SUBXACTS:
            at += 4 + 4 * _count(main, at)
        if flags & _LOCATORS:
            at += 4 + 12 * _count(main, at)
        dropped = []
        if flags & _DROPPED:
            count = _count(main, at)
            at += 4
            for _ in range(count):
                kind, database, relation = self._item.unpack_from(main, at)
                at += self._item.size
                if kind == _RELATION:
                    dropped.append((database, relation))
        if flags & _INVALS:
            at += 4 + 16 * _count(main, at)
        if flags & _TWOPHASE:
            (xid,) = struct.unpack_from("<I", main, at)
        return xid, tuple(dropped)


def _main_data(body: bytes) -> bytes:
    at = 0
    while True:
        # Commit records refer to no page, so the first byte announces the data, or an origin before
        # it.
        kind = body[at]
        if kind == _BLOCK_SHORT:
            return body[at + 2 : at + 2 + body[at + 1]]
        if kind == _BLOCK_LONG:
            (size,) = struct.unpack_from("<I", body, at + 1)
            return body[at + 5 : at + 5 + size]
        if kind == _ORIGIN:
            at += 3
        elif kind == _TOPLEVEL:
            at += 5
        else:
            raise IndexError(kind)


def _count(main: bytes, at: int) -> int:
    (count,) = struct.unpack_from("<i", main, at)
    if not 0 <= count <= len(main):
        raise IndexError(count)
    return int(count)


def _lsn_at(offset: int, offsets: list[int], lsns: list[int]) -> int:
    # Not with numpy, which would copy the list for each candidate: a segment has thousands of both.
    page = bisect_right(offsets, offset) - 1
    return lsns[page] + offset - offsets[page]


def _from(places: list[tuple[int, int]], used: int) -> list[tuple[int, int]]:
    """The same places, counted from `used` on."""
    kept: list[tuple[int, int]] = []
    for offset, lsn in places:
        if offset <= used:
            kept = [(0, lsn + used - offset)]
        else:
            kept.append((offset - used, lsn))
    return kept


def summary(commits: list[CommitRecord]) -> dict[str, object]:
    """The facts about a piece's commits that its object carries."""
    if not commits:
        return {"commits": 0}
    return {
        "commits": len(commits),
        "first_us": min(commit.time_us for commit in commits),
        "last_us": max(commit.time_us for commit in commits),
        "xids": [min(commit.xid for commit in commits), max(commit.xid for commit in commits)],
        "dropped": list(_dropped(commits)),
    }


def _dropped(commits: list[CommitRecord]) -> Iterator[list[int]]:
    for commit in commits:
        for database, relation in commit.dropped:
            yield [commit.lsn, commit.xid, commit.time_us, database, relation]
