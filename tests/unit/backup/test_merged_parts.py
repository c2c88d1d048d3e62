"""Parts that are merged between a plan and its restore are found again; lost ones are an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.backup.errors import ObjectMissingError
from headrace.backup.layout import LogPiece
from headrace.backup.restore import segment
from headrace.backup.store import BackupStore

SIZE = 1 << 20
PARTS = [LogPiece(1, SIZE, SIZE + 8, partial=True), LogPiece(1, SIZE + 8, SIZE + 16, partial=True)]


def stored(folder: Path) -> BackupStore:
    folder.mkdir()
    store = BackupStore(folder.as_uri())
    store.create("7", SIZE, 18, "postgres")
    store.put_piece(PARTS[0], b"12345678", {})
    store.put_piece(PARTS[1], b"abcdefgh", {})
    return store


def test_merged_parts_are_read_in_their_new_form(tmp_path: Path) -> None:
    store = stored(tmp_path / "s")
    store.put_piece(LogPiece(1, SIZE, SIZE + 16, partial=True), b"12345678abcdefgh", {})
    for piece in PARTS:
        store.remove_piece(piece)
    content = segment(store, PARTS)
    assert content.rstrip(b"\0") == b"12345678abcdefgh"
    assert len(content) == SIZE


@pytest.mark.parametrize("lost", PARTS)
def test_a_lost_part_is_an_error(tmp_path: Path, lost: LogPiece) -> None:
    store = stored(tmp_path / "s")
    store.remove_piece(lost)
    with pytest.raises(ObjectMissingError):
        segment(store, PARTS)
