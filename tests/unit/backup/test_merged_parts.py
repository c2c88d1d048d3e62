"""Parts that are merged while a command reads are found again; lost ones are an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.backup.dropped import drops
from headrace.backup.errors import NoSuchMomentError, ObjectMissingError
from headrace.backup.layout import LogPiece
from headrace.backup.log_reading import segment, steady_pieces
from headrace.backup.plan import Planner
from headrace.backup.store import BackupStore
from headrace.backup.verify import Checked, verify

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


# The two parts, and the objects that may replace them.
LARGER = [LogPiece(1, SIZE, SIZE + 16, partial=True), LogPiece(1, SIZE, 2 * SIZE)]
DROPPED = [[SIZE + 8 * number, 700 + number, 5, 16384, 90 + number] for number in range(2)]


def stored_with_drops(folder: Path) -> BackupStore:
    folder.mkdir()
    store = BackupStore(folder.as_uri())
    store.create("7", SIZE, 18, "postgres")
    for number, part in enumerate(PARTS):
        facts = {"commits": 1, "xids": [700 + number] * 2, "dropped": [DROPPED[number]]}
        store.put_piece(part, bytes(8), facts)
    return store


def merge(store: BackupStore, larger: LogPiece) -> None:
    facts = {"commits": 2, "xids": [700, 701], "dropped": DROPPED}
    store.put_piece(larger, bytes(larger.end - larger.start), facts)
    for piece in PARTS:
        store.remove_piece(piece)


@pytest.mark.parametrize("larger", LARGER)
def test_drops_and_transactions_are_found_after_a_merge(tmp_path: Path, larger: LogPiece) -> None:
    store = stored_with_drops(tmp_path / "s")
    planner, other = Planner(store), Planner(store)
    merge(store, larger)
    assert [(one.xid, one.oid) for one in drops(store, planner)] == [(701, 91), (700, 90)]
    # Zeros have no commit record, so the piece with the transaction is as exact as it gets.
    way = other.way(1)
    assert other.steadily(lambda: other.commit_lsn(700, way)) == SIZE


def test_a_transaction_in_a_lost_part_is_not_found(tmp_path: Path) -> None:
    store = stored_with_drops(tmp_path / "s")
    planner = Planner(store)
    store.remove_piece(PARTS[1])
    assert [one.xid for one in drops(store, planner)] == [700]
    with pytest.raises(NoSuchMomentError):
        planner.commit_lsn(701, planner.way(1))


@pytest.mark.parametrize("larger", LARGER)
def test_verify_reads_what_replaces_merged_parts(tmp_path: Path, larger: LogPiece) -> None:
    store = stored_with_drops(tmp_path / "s")
    checked = Checked()

    def tell(what: str) -> None:
        if what == "log":
            merge(store, larger)

    assert list(verify(store, checked, tell)) == []
    assert checked.log_bytes == larger.end - larger.start


def test_verify_names_a_part_that_is_lost(tmp_path: Path) -> None:
    store = stored_with_drops(tmp_path / "s")

    def tell(what: str) -> None:
        if what == "log":
            store.remove_piece(PARTS[0])

    [found] = verify(store, Checked(), tell)
    assert "00000000-00000008" in found.name


class _Listings(BackupStore):
    """A store with given listings, as requests during a merge see them."""

    def __init__(self, *listings: list[LogPiece]) -> None:
        super().__init__("file:///nowhere")
        self._given = list(listings)

    def pieces(self) -> list[LogPiece]:
        if len(self._given) > 1:
            return self._given.pop(0)
        return self._given[0]


def test_a_listing_that_passed_a_merge_is_not_taken_for_the_ends_of_the_log() -> None:
    before = [LogPiece(1, 0, SIZE), *PARTS]
    merged = [LogPiece(1, 0, SIZE), LARGER[0]]
    # The first listing passed the merged part's place before it was stored, and then saw no parts.
    assert steady_pieces(_Listings([before[0]], merged)) == merged
    assert steady_pieces(_Listings(before, [before[0]], merged)) == merged
