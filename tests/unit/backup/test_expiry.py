"""Whole chains expire, and what stays has all of its log."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from headrace.backup.backups import Backups
from headrace.backup.expiry import expired, remove
from headrace.backup.layout import LogPiece
from headrace.backup.record import BackupRecord
from headrace.backup.store import BackupStore
from headrace.cli.backup.now import BackupSchedule

SIZE = 16 << 20


def store_with(folder: Path, *records: BackupRecord) -> BackupStore:
    store = BackupStore(folder.as_uri())
    folder.mkdir()
    store.create("7", SIZE, 18, "postgres")
    for record in records:
        Backups(store).put_record(record)
    for number in range(1, 9):
        piece = LogPiece(1, number * SIZE, number * SIZE + 8, partial=True)
        store.put_piece(piece, b"12345678", {})
    return store


def made(number: int, parent: int | None = None, tags: tuple[str, ...] = ()) -> BackupRecord:
    label = f"2026010{number}T000000Z-a"
    of = f"2026010{parent}T000000Z-a" if parent else None
    start = number * SIZE + 4
    return BackupRecord(label, of, 1, start, start + 4, number * 1_000_000, 18, (), 1, tags)


def labels(records: list[BackupRecord]) -> list[str]:
    return [record.label[6:8] for record in records]


def test_a_chain_goes_as_a_whole_or_stays(tmp_path: Path) -> None:
    store = store_with(tmp_path / "s", made(1), made(2, 1), made(3), made(4, 3))
    assert labels(list(expired(store, keep=3, keep_s=None).backups)) == []
    gone = expired(store, keep=2, keep_s=None)
    assert labels(list(gone.backups)) == ["01", "02"]
    remove(store, gone)
    assert labels(Backups(store).all()) == ["03", "04"]
    assert min(piece.start for piece in store.pieces()) == 3 * SIZE


def test_a_tag_keeps_its_backup(tmp_path: Path) -> None:
    store = store_with(tmp_path / "s", made(1, tags=("year",)), made(2), made(3))
    assert labels(list(expired(store, keep=1, keep_s=None).backups)) == ["02"]
    assert expired(store, keep=1, keep_s=None).pieces == []


def test_moments_that_are_wanted_stay_restorable(tmp_path: Path) -> None:
    store = store_with(tmp_path / "s", made(1), made(3), made(5))
    now_us = 6_000_000
    assert labels(list(expired(store, keep=1, keep_s=5, now_us=now_us).backups)) == []
    assert labels(list(expired(store, keep=1, keep_s=3, now_us=now_us).backups)) == ["01"]


def test_what_a_killed_backup_left_goes_when_it_is_old(tmp_path: Path) -> None:
    store = store_with(tmp_path / "s", made(1))
    backups = Backups(store)
    backups.put_part("20260101T000000Z-b", "base", 0, b"x")
    recent = replace(made(1), label="29990101T000000Z-c").label
    backups.put_part(recent, "base", 0, b"x")
    gone = expired(store, keep=1, keep_s=None)
    assert list(gone.unfinished) == ["20260101T000000Z-b"]
    remove(store, gone)
    assert list(backups.unfinished()) == [recent]


def test_the_backup_that_a_running_one_may_follow_stays(tmp_path: Path) -> None:
    later = [replace(made(n), label=f"2999010{n}T000000Z-a") for n in (1, 3, 4)]
    store = store_with(tmp_path / "s", *later)
    assert [one.label for one in expired(store, keep=1, keep_s=None).backups] == [
        one.label for one in later[:2]
    ]
    Backups(store).put_part("29990102T000000Z-b", "base", 0, b"x")
    gone = expired(store, keep=1, keep_s=None)
    assert [one.label for one in gone.backups] == [later[1].label]


def test_a_schedule_takes_what_is_due_and_full_ones_now_and_then() -> None:
    schedule = BackupSchedule(due_s=86_400, full_every_s=3 * 86_400)
    day = datetime(2026, 1, 5, tzinfo=UTC)
    chain = [made(1), made(2, 1), made(4, 2)]
    assert schedule.due([], day)
    assert not schedule.due(chain, day - timedelta(seconds=1))
    assert schedule.due(chain, day)
    assert not schedule.follows([], day)
    assert schedule.follows(chain, day - timedelta(days=1, seconds=1))
    assert not schedule.follows(chain, day)
    assert BackupSchedule().due(chain, day)
    assert not BackupSchedule().follows(chain, day)
