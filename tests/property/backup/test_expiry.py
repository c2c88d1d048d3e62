"""Expiry removes nothing that a backup which stays needs, for any chains, tags and timelines."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.backup import layout
from headrace.backup.backups import Backups
from headrace.backup.expiry import expired, remove
from headrace.backup.layout import LogPiece
from headrace.backup.record import BackupRecord
from headrace.backup.store import BackupStore

SIZE = 1 << 20
PIECE = SIZE // 2


@dataclass(frozen=True)
class Made:
    """One backup of a generated store: `parent` counts back, 0 is a full one."""

    parent: int
    tagged: bool
    # Segments of log before it begins.
    after: int
    # Whether the server was promoted before it.
    promoted: bool
    # Whether its record was never written.
    interrupted: bool


MADE = st.builds(
    Made,
    parent=st.integers(0, 3),
    tagged=st.sampled_from([False, False, False, True]),
    after=st.integers(1, 3),
    promoted=st.sampled_from([False, False, True]),
    interrupted=st.sampled_from([False, False, False, True]),
)


def filled(folder: Path, made: list[Made]) -> tuple[BackupStore, list[LogPiece]]:
    """A store with these backups, and all of its log in order."""
    store = BackupStore(folder.as_uri())
    folder.mkdir()
    store.create("7", SIZE, 18, "postgres")
    backups = Backups(store)
    records: list[BackupRecord] = []
    pieces: list[LogPiece] = []
    timeline, segment = 1, 1
    for number, one in enumerate(made):
        timeline += one.promoted
        for _ in range(one.after):
            begin = segment * SIZE
            halves = [LogPiece(timeline, begin + at, begin + at + PIECE, True) for at in (0, PIECE)]
            pieces += halves if segment % 2 else [LogPiece(timeline, begin, begin + SIZE)]
            segment += 1
        # Within the last segment.
        start = segment * SIZE - PIECE + 8
        parent = records[-one.parent].label if 0 < one.parent <= len(records) else None
        # In the far future, so that none of them counts as abandoned.
        label = f"29990101T{number:06d}Z-a"
        record = BackupRecord(
            label, parent, timeline, start, start + 8, number, 18, (), 1, ("t",) * one.tagged
        )
        if one.interrupted:
            backups.put_part(label, "base", 0, b"x")
        else:
            backups.put_record(record)
            records.append(record)
    for piece in pieces:
        # Only the names count.
        store.put_new(layout.WAL, store.segments.object_name(piece), b"")
    return store, pieces


@settings(max_examples=40)
@given(
    made=st.lists(MADE, min_size=1, max_size=6),
    keep=st.integers(1, 4),
    keep_us=st.none() | st.integers(0, 8),
)
def test_nothing_that_a_kept_backup_needs_is_removed(
    made: list[Made], keep: int, keep_us: int | None
) -> None:
    with tempfile.TemporaryDirectory() as room:
        store, pieces = filled(Path(room) / "s", made)
        before = Backups(store).all()
        keep_s = keep_us / 1e6 if keep_us is not None else None
        remove(store, expired(store, keep=keep, keep_s=keep_s, now_us=len(made)))
        kept = {record.label: record for record in Backups(store).all()}
        left = set(store.pieces())
        unfinished = Backups(store).unfinished()
    for record in kept.values():
        assert record.parent is None or record.parent in kept
        # All log from its beginning on, to the end of what was stored.
        needed = {piece for piece in pieces if piece.end > record.start_lsn}
        assert needed <= left
    assert {record.label for record in before if record.tags} <= set(kept)
    assert len(kept) >= min(keep, len(before))
    if keep_us is not None:
        # The oldest moment that is wanted can be reached if it could be before.
        moment = len(made) - keep_us
        could = any(record.end_us <= moment for record in before)
        assert not could or any(record.end_us <= moment for record in kept.values())
    for label in unfinished:
        earlier = [record.label for record in before if record.label < label]
        assert not earlier or max(earlier) in kept
