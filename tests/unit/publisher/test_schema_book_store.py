"""The stored schema book: which of its shapes count after a restart, or a successor's start."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from nats.js.errors import KeyWrongLastSequenceError

from headrace.contract.schemas import ColumnShape, TableShape
from headrace.jetstream.state import LostRaceError
from headrace.lsn import Position
from headrace.publisher.schema_book import Entry
from headrace.publisher.schema_book_store import HISTORY_MAX, BookShelf, in_stream

COLUMN = ColumnShape("a", 23, -1, "integer", number=1)
SHAPE = TableShape("public", "t", 1, "d", (), 1, (COLUMN,))
FIRST = Entry(SHAPE, 1, Position(10, 0), msg_id="a-t-schema", storage="before")
# Caused by a catalog reading at 20.
REWRITTEN = Entry(SHAPE, 2, Position(20, 0), msg_id="14-t-schema", storage="after", pending=True)


class Bucket:
    """A KV bucket with compare-and-set."""

    def __init__(self) -> None:
        self.kept: dict[str, tuple[bytes, int]] = {}

    async def update(self, key: str, value: bytes, last: int) -> int:
        _, revision = self.kept.get(key, (b"", 0))
        if revision != last:
            raise KeyWrongLastSequenceError
        self.kept[key] = (value, revision + 1)
        return revision + 1

    async def watch(self, keys: str, **_: Any) -> Watcher:
        assert keys == "shape.src.>"
        return Watcher(self.kept)


class Watcher:
    def __init__(self, kept: dict[str, tuple[bytes, int]]) -> None:
        self._kept = dict(kept)

    async def __aiter__(self) -> AsyncIterator[Any]:
        for key, (value, revision) in self._kept.items():
            yield SimpleNamespace(key=key, value=value, revision=revision)
        yield None
        raise AssertionError("from here on it would wait for changes")

    async def stop(self) -> None:
        """Nothing follows."""


def shelf(bucket: Any) -> BookShelf:
    return BookShelf(bucket, "src")


async def storage_after(bucket: Bucket, position: int, ids: set[str] | None = None) -> str:
    """The table's files, as a publisher knows them that starts with the stream at this LSN."""
    book = await shelf(bucket).load(Position(position, 0), ids or set(), {})
    entry = book.entry("t")
    assert entry is not None
    return entry.storage


@pytest.fixture
async def bucket() -> Bucket:
    """One whose writer died, or lost its lease, between a shape and its event."""
    made = Bucket()
    writer = shelf(made)
    await writer.keep("t", FIRST)
    await writer.keep("t", REWRITTEN)
    return made


async def test_a_shape_whose_event_was_rejected_does_not_count_however_far_the_stream_is(
    bucket: Bucket,
) -> None:
    assert await storage_after(bucket, 15) == "before"
    assert await storage_after(bucket, 25) == "before"


async def test_a_shape_whose_event_is_in_the_stream_counts_for_all_later_publishers(
    bucket: Bucket,
) -> None:
    assert await storage_after(bucket, 15, {REWRITTEN.msg_id}) == "after"
    # Rows have followed, and nobody looks for the event any more.
    assert await storage_after(bucket, 25) == "after"


async def test_an_acknowledged_shape_counts(bucket: Bucket) -> None:
    writer = shelf(bucket)
    await writer.load(Position(15, 0), set(), {})
    await writer.keep("t", REWRITTEN)
    acknowledged = Entry(SHAPE, 2, Position(20, 0), msg_id="14-t-schema", storage="after")
    await writer.keep("t", acknowledged)
    assert await storage_after(bucket, 25) == "after"
    # The stream was restored from an older store.
    assert await storage_after(bucket, 15) == "before"


async def test_a_late_acknowledgement_changes_nothing_that_a_successor_wrote(
    bucket: Bucket,
) -> None:
    late = shelf(bucket)
    await late.load(Position(15, 0), set(), {})
    await storage_after(bucket, 15, {REWRITTEN.msg_id})
    with pytest.raises(LostRaceError):
        await late.keep("t", REWRITTEN)


async def test_a_version_that_is_described_again_pushes_no_earlier_one_out(bucket: Bucket) -> None:
    writer = shelf(bucket)
    await writer.load(Position(15, 0), set(), {})
    for number in range(HISTORY_MAX):
        await writer.keep("t", replace(REWRITTEN, storage=f"after {number}", pending=False))
    assert await storage_after(bucket, 25) == f"after {HISTORY_MAX - 1}"
    assert await storage_after(bucket, 15) == "before"


@pytest.mark.parametrize(
    ("history", "position", "ids", "found"),
    [
        ([FIRST, REWRITTEN], 15, set(), [FIRST]),
        ([FIRST, REWRITTEN], 15, {REWRITTEN.msg_id}, [FIRST, replace(REWRITTEN, pending=False)]),
        # The stream lost all of them: a table that was never reported is reported as new.
        ([FIRST, REWRITTEN], 5, set(), []),
        ([], 5, set(), []),
        # Of later shapes the oldest is what is known, and the stream does not have it.
        ([REWRITTEN], 5, set(), [replace(REWRITTEN, told=False)]),
    ],
)
def test_shapes_are_known_as_far_as_the_stream_has_them(
    history: list[Entry], position: int, ids: set[str], found: list[Entry]
) -> None:
    assert in_stream(history, Position(position, 0), ids) == found
