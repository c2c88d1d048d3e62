"""Damage of every kind, for every reader: an error that names the file, and before it nothing but
the right rows.

The oracle is pyarrow on the files as they were before the damage.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import random
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from headrace.archive import (
    ArchiveError,
    AsyncWalReader,
    WalFileCollectedError,
    WalFileCorruptError,
    WalFileMissingError,
    WalReader,
    WalReaderOptions,
    file_format,
)
from headrace.archive.layout import file_name
from headrace.archive.registry import register
from headrace.archive.store import Names, ObjectMetadata, Request, Store
from headrace.cli.archive import replay
from headrace.cli.main import app
from headrace.spark.archive_source import ArchiveReader, SourceOptions
from tests.support.archive_maker import Maker

FILES = 5
ROWS = 20
OPTIONS = WalReaderOptions(poll_interval_s=0.02)
Row = tuple[int, int, str]


def place(made: Maker, file_id: int) -> Path:
    return Path(made.url.removeprefix("file://"), file_name(file_id))


def archive(folder: Path, rows: int = ROWS) -> Maker:
    made = Maker(f"file://{folder}")
    for _ in range(FILES):
        made.write(rows)
    return made


@pytest.fixture
def made(tmp_path: Path) -> Maker:
    return archive(tmp_path / "archive")


def by_pyarrow(made: Maker) -> list[Row]:
    """Every row as Parquet has it."""
    found: list[Row] = []
    for file_id in range(1, FILES + 1):
        table = pq.read_table(place(made, file_id))
        found += zip(
            *(table.column(name).to_pylist() for name in ("commit_lsn", "ordinal", "after")),
            strict=True,
        )
    return found


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


def missing(made: Maker) -> None:
    place(made, 3).unlink()


def empty(made: Maker) -> None:
    place(made, 3).write_bytes(b"")


def cut_at_its_end(made: Maker) -> None:
    place(made, 3).write_bytes(place(made, 3).read_bytes()[:-30])


def cut_at_its_beginning(made: Maker) -> None:
    place(made, 3).write_bytes(place(made, 3).read_bytes()[30:])


def flipped_in_its_rows(made: Maker) -> None:
    place(made, 3).write_bytes(flipped(place(made, 3).read_bytes(), 40))


def flipped_in_its_footer(made: Maker) -> None:
    place(made, 3).write_bytes(flipped(place(made, 3).read_bytes(), -100))


def in_the_place_of_another(made: Maker) -> None:
    place(made, 3).write_bytes(place(made, 4).read_bytes())


def exchanged(made: Maker) -> None:
    third = place(made, 3).read_bytes()
    place(made, 3).write_bytes(place(made, 4).read_bytes())
    place(made, 4).write_bytes(third)


def of_another_archive(made: Maker) -> None:
    other = archive(place(made, 1).parent.with_name("other"), rows=30)
    place(made, 3).write_bytes(place(other, 3).read_bytes())


DAMAGE = (
    missing,
    empty,
    cut_at_its_end,
    cut_at_its_beginning,
    flipped_in_its_rows,
    flipped_in_its_footer,
    in_the_place_of_another,
    exchanged,
    of_another_archive,
)


def as_row(entry: Any) -> Row:
    return entry.commit_lsn, entry.ordinal, entry.after_json


def by_following(made: Maker, *, wait: bool) -> Iterator[Row]:
    for entry in WalReader(made.url, OPTIONS).follow(wait=wait):
        yield as_row(entry)


def by_following_asynchronously(made: Maker, *, wait: bool) -> Iterator[Row]:
    found: list[Row] = []

    async def read() -> None:
        async for entry in AsyncWalReader(made.url, OPTIONS).follow(wait=wait):
            found.append(as_row(entry))  # noqa: PERF401  # what came before an error counts

    try:
        asyncio.run(read())
    finally:
        yield from found


def by_polling(made: Maker) -> Iterator[Row]:
    reader = WalReader(made.url)
    file = reader.get(1)
    while file is not None:
        for entry in file:
            yield as_row(entry)
        file = reader.get(file.next_id)


def by_cat(made: Maker) -> Iterator[Row]:
    outcome = CliRunner().invoke(app, ["archive", "cat", "--url", made.url])
    for line in outcome.stdout.splitlines():
        body = orjson.loads(line)
        yield body["commit_lsn"], body["ordinal"], orjson.dumps(body["after"]).decode()
    if outcome.exit_code:
        raise ArchiveError(outcome.stderr)


def by_spark(made: Maker) -> Iterator[Row]:
    """As Spark's tasks do, in one process."""
    reader = ArchiveReader(
        SourceOptions.parse({"path": made.url, "filesPerTask": "1", "tasks": "9"})
    )
    for partition in reader.partitions():
        for batch in reader.read(partition):
            yield from zip(
                *(batch.column(name).to_pylist() for name in ("commit_lsn", "ordinal", "after")),
                strict=True,
            )


READERS: dict[str, Callable[[Maker], Iterator[Row]]] = {
    "follow": lambda made: by_following(made, wait=False),
    "follow and wait": lambda made: by_following(made, wait=True),
    "follow asynchronously": lambda made: by_following_asynchronously(made, wait=False),
    "follow asynchronously and wait": lambda made: by_following_asynchronously(made, wait=True),
    "get": by_polling,
    "cat": by_cat,
    "spark": by_spark,
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_a_damaged_file_is_named_and_only_right_rows_come_before_it(
    made: Maker, damage: Callable[[Maker], None], reader: str
) -> None:
    due = by_pyarrow(made)
    damage(made)
    found: list[Row] = []
    with pytest.raises(ArchiveError, match=file_name(3)):
        found.extend(READERS[reader](made))
    assert found == due[: len(found)], "nothing of it is wrong, doubled or out of order"
    assert len(found) <= 2 * ROWS


@pytest.mark.parametrize("reader", [name for name in READERS if "wait" not in name])
def test_without_damage_every_reader_reads_everything(made: Maker, reader: str) -> None:
    assert list(READERS[reader](made)) == by_pyarrow(made)


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_verify_names_what_is_damaged(made: Maker, damage: Callable[[Maker], None]) -> None:
    damage(made)
    outcome = CliRunner().invoke(app, ["archive", "verify", "--url", made.url])
    assert outcome.exit_code == 1
    assert any(line.startswith("file 3 ") for line in outcome.stdout.splitlines()), outcome.stdout


def replayed(made: Maker, *more: str) -> tuple[int, str, list[int]]:
    """The exit code of a replay, what it said, and which rows are in its target."""
    target = place(made, 1).with_name("copy.db")
    target.unlink(missing_ok=True)
    outcome = CliRunner().invoke(
        app, ["replay", "--url", made.url, "--into", f"sqlite:///{target}", *more]
    )
    with contextlib.closing(sqlite3.connect(target)) as copy:
        tables = [
            name
            for (name,) in copy.execute(
                "SELECT name FROM sqlite_master WHERE name IN ('orders', 'items')"
            )
        ]
        found = [row for table in tables for (row,) in copy.execute(f"SELECT id FROM {table}")]
    return outcome.exit_code, outcome.output, sorted(found)


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_a_replay_of_a_damaged_archive_fails_and_says_how_far_it_came(
    made: Maker, damage: Callable[[Maker], None]
) -> None:
    damage(made)
    code, said, found = replayed(made)
    assert code == 1
    assert file_name(3) in said
    assert "not to the end" in said
    assert found == list(range(len(found)))
    assert len(found) <= 2 * ROWS


@pytest.mark.parametrize("rows_a_commit", [1, 7, 10, 13, 35])
def test_a_replay_that_fails_leaves_whole_transactions_behind(
    made: Maker, monkeypatch: pytest.MonkeyPatch, rows_a_commit: int
) -> None:
    """A transaction has ten rows."""
    monkeypatch.setattr(replay, "ROWS_A_COMMIT", rows_a_commit)
    place(made, 3).unlink()
    code, said, found = replayed(made)
    assert code == 1
    assert found == list(range(len(found)))
    assert len(found) % 10 == 0
    assert f"{len(found)} changes replayed" in said
    assert found or rows_a_commit > 30


def test_a_replay_says_up_to_which_position_it_came(made: Maker) -> None:
    code, said, found = replayed(made)
    assert (code, found) == (0, list(range(FILES * ROWS)))
    assert "100 changes replayed, up to 0/3E8+9, the end of the archive" in said
    for option in ("--to", "--until"):
        code, said, found = replayed(made, option, "0/12C")
        assert (code, found) == (0, list(range(20)))
        assert "20 changes replayed, up to 0/C8+9, where --to ends" in said


@pytest.mark.parametrize(
    ("begin", "end"),
    [("3", "2"), ("0/12C", "0/C8"), ("2026-11-20T12:00Z", "2026-11-20T11:59Z")],
)
def test_a_replay_from_behind_its_end_is_refused(made: Maker, begin: str, end: str) -> None:
    code, said, found = replayed(made, "--from", begin, "--to", end)
    assert (code, found) == (1, [])
    assert f"--to {end} comes before --from {begin}" in said


def test_a_replay_from_behind_the_archive_does_not_claim_its_end(made: Maker) -> None:
    code, said, found = replayed(made, "--from", "99")
    assert (code != 0, found) == (True, [])
    assert "the end of the archive" not in said


def test_garbage_collection_beside_a_replay_fails_it(
    made: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = WalReader.files

    def collected_meanwhile(reader: WalReader, **place: Any) -> Iterator[Any]:
        for file in reading(reader, **place):
            yield file
            for file_id in range(1, 4):
                made.store.delete(file_name(file_id))

    monkeypatch.setattr(WalReader, "files", collected_meanwhile)
    code, said, _ = replayed(made)
    assert code == 1
    assert "file 2 was removed by garbage collection" in said


def test_verify_names_a_copy_behind_the_end_and_an_end_that_was_lost(made: Maker) -> None:
    place(made, 6).write_bytes(place(made, 5).read_bytes())
    outcome = CliRunner().invoke(app, ["archive", "verify", "--url", made.url])
    assert "file 6 its content is that of file 5" in outcome.stdout
    place(made, 6).unlink()
    place(made, 5).unlink()
    register(made.store, "lake", 6)
    outcome = CliRunner().invoke(app, ["archive", "verify", "--url", made.url])
    assert outcome.exit_code == 1
    assert "file 5 is missing" in outcome.stdout


def test_a_flipped_bit_is_found_wherever_it_is(made: Maker) -> None:
    data = place(made, 3).read_bytes()
    chance = random.Random(22)
    for bit in chance.sample(range(8 * len(data)), 400):
        spoiled = bytearray(data)
        spoiled[bit // 8] ^= 1 << bit % 8
        place(made, 3).write_bytes(spoiled)
        with pytest.raises(WalFileCorruptError, match=file_name(3)):
            list(WalReader(made.url).follow(from_id=3, wait=False))


def test_an_archive_from_before_footers_had_checksums_is_read(made: Maker) -> None:
    due = by_pyarrow(made)
    for file_id in range(1, FILES + 1):
        data = place(made, file_id).read_bytes()
        need = file_format.footer_bytes(data)
        footer = data[-need:].replace(b'"footer_checksum":true ', b"")
        # The footer says that there is a checksum: as long as it does, a missing one is
        # damage.
        place(made, file_id).write_bytes(data[: -need - file_format.SEAL_BYTES] + footer)
        with pytest.raises(WalFileCorruptError, match="lost its checksum"):
            WalReader(made.url).get(file_id)
        place(made, file_id).write_bytes(
            data[: -need - file_format.SEAL_BYTES]
            + footer.replace(b'"footer_checksum":true', b'"footer_checksum":null')
        )
    assert list(by_following(made, wait=False)) == due


def test_other_readers_of_parquet_see_nothing_of_the_checksum(made: Maker) -> None:
    data = place(made, 1).read_bytes()
    assert pq.read_table(io.BytesIO(data)).num_rows == ROWS
    assert pq.ParquetFile(io.BytesIO(data)).metadata.num_rows == ROWS


@pytest.mark.parametrize("wait", [False, True])
def test_garbage_collection_beside_a_reading_ends_it_with_an_error(
    made: Maker, *, wait: bool
) -> None:
    entries = WalReader(made.url, OPTIONS).follow(wait=wait)
    assert len(list(itertools.islice(entries, ROWS))) == ROWS
    for file_id in range(1, 4):
        made.store.delete(file_name(file_id))
    with pytest.raises(WalFileCollectedError, match="file 2 was removed by garbage collection"):
        next(entries)


def test_what_was_collected_what_is_missing_and_what_never_was_are_told_apart(made: Maker) -> None:
    made.store.delete(file_name(1))
    made.store.delete(file_name(3))
    reader = WalReader(made.url)
    with pytest.raises(WalFileCollectedError, match="file 1 was removed"):
        reader.get(1)
    with pytest.raises(WalFileMissingError, match=r"file 3 .* is missing"):
        reader.get(3)
    for never in (0, -1):
        with pytest.raises(WalFileMissingError, match=f"there is no file {never}"):
            reader.get(never)
    assert reader.get(6) is None


@pytest.mark.timeout(60)
def test_a_file_that_is_lost_while_its_reader_polls_for_it_is_reported(made: Maker) -> None:
    reader = WalReader(made.url, WalReaderOptions(poll_interval_s=0.02, recheck_s=0.2))
    assert reader.get(6) is None, "it has looked, and need not look again immediately"
    made.write()
    place(made, 6).unlink()
    made.write()
    with pytest.raises(WalFileMissingError, match=file_name(6)):
        next(reader.follow(from_id=6))


@pytest.mark.parametrize("lost", [(5,), (1, 2, 3, 4, 5)])
@pytest.mark.parametrize("wait", [False, True])
def test_an_end_that_is_lost_under_its_reader_is_reported(
    made: Maker, lost: tuple[int, ...], *, wait: bool
) -> None:
    entries = WalReader(made.url, OPTIONS).follow(wait=wait)
    assert len(list(itertools.islice(entries, FILES * ROWS))) == FILES * ROWS
    for file_id in lost:
        made.store.delete(file_name(file_id))
    with pytest.raises(WalFileMissingError, match=file_name(5)):
        next(entries)


def test_a_reading_that_begins_behind_the_end_is_refused(made: Maker) -> None:
    assert list(WalReader(made.url).follow(from_id=6, wait=False)) == []
    for wait in (False, True):
        with pytest.raises(WalFileMissingError, match=f"ends before file 6 .{file_name(6)}"):
            list(WalReader(made.url).follow(from_id=7, wait=wait))


class StaleStore(Store):
    """Its listings are older than what it holds."""

    listed: tuple[int, ...] = ()

    def ask(self, request: Request) -> Any:
        answer = super().ask(request)
        if isinstance(request, Names):
            shown: list[ObjectMetadata] = [
                item
                for item in answer
                if any(item.location == file_name(known) for known in self.listed)
            ]
            return shown
        return answer


def stale(made: Maker, *listed: int) -> WalReader:
    reader = WalReader(made.url)
    reader.store = StaleStore(made.url)
    reader.store.listed = listed
    return reader


def test_a_listing_that_is_behind_neither_ends_a_reading_nor_hides_a_missing_file(
    made: Maker,
) -> None:
    due = by_pyarrow(made)
    assert [as_row(entry) for entry in stale(made, 1).follow(wait=False)] == due
    missing(made)
    with pytest.raises(ArchiveError, match="file 3"):
        list(stale(made, 1).follow(wait=False))
