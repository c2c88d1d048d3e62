"""Feeds a standby that sees only the store: the log, in a folder that its server reads.

The unfinished segment is there as well, padded with zeros and replaced as it grows, so the standby
is behind by seconds and not by a segment. Promises that a file in the folder is complete, and
that it is replaced by one name change. Removes nothing: `archive_cleanup_command` does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from headrace.backup import layout
from headrace.backup.layout import LogPiece
from headrace.backup.log_reading import segment, steady_pieces
from headrace.backup.store import BackupStore
from headrace.embedded.account import Account


@dataclass(slots=True)
class Spool:
    """One standby's folder of the log."""

    store: BackupStore
    folder: Path
    account: Account | None
    # The end of each segment that the folder has, by timeline and beginning.
    _ends: dict[tuple[int, int], int] = field(default_factory=dict)
    _histories: set[int] = field(default_factory=set)

    def feed(self, start: int) -> int:
        """Bring the folder up to date with the log from `start` on; returns the log's end."""
        segments = self.store.segments
        begin = segments.begin(start)
        found: dict[tuple[int, int], list[LogPiece]] = {}
        for piece in sorted(steady_pieces(self.store)):
            if piece.end > begin:
                key = (piece.timeline, segments.begin(piece.start))
                found.setdefault(key, []).append(piece)
        for key, pieces in sorted(found.items()):
            whole = [piece for piece in pieces if not piece.partial]
            end = max(piece.end for piece in pieces)
            if self._ends.get(key, 0) < end:
                content = segment(self.store, whole or pieces)
                self._put(segments.name(key[0], key[1]), content)
                self._ends[key] = end
        self._feed_histories()
        return max(self._ends.values(), default=start)

    def _feed_histories(self) -> None:
        """After the log of the timeline: the standby follows it as soon as it sees the history."""
        for timeline, content in self.store.histories().items():
            if timeline not in self._histories:
                self._put(layout.history_name(timeline), content)
                self._histories.add(timeline)

    def _put(self, name: str, content: bytes) -> None:
        draft = self.folder / f".{name}.draft"
        draft.write_bytes(content)
        draft.chmod(0o600)
        if self.account is not None:
            self.account.own(draft)
        draft.replace(self.folder / name)
