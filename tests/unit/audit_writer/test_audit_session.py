"""One session of the trail: what is read ahead, what is committed when, and what a failure leaves.

The destination and the stream are lists.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.audit.rows import RowMaker
from headrace.audit.settings import load_audit
from headrace.audit.stitching import Batch, Stitcher
from headrace.audit.table_book import Names, Noted, TableBook
from headrace.audit_writer import session as sessions
from headrace.audit_writer import source
from headrace.audit_writer.session import IDLE_S, OWN_S, Marks, Session, opened
from headrace.consumer import Event, RetentionGapError, Watermark
from headrace.contract.selection import Selection
from headrace.errors import HeadraceError
from headrace.lsn import ORIGIN, Position
from headrace.postgres.facts import RelationFiles
from headrace.process.health import Health
from headrace.process.lifecycle import Scope
from headrace.settings import load

USERS = ("public", "users")
TS = "2026-01-01T00:00:00Z"


def event(
    lsn: int,
    seq: int = 0,
    operation: str = "INSERT",
    *,
    last: bool = True,
    table: str = "users",
    origin: str = "s",
    **payload: Any,
) -> Event:
    body = {
        "tx": {"xid": 1, "ts": TS, "last": last},
        "relation_id": 1,
        "key": ["id"],
        "data": {"id": lsn},
        **payload,
    }
    place = Position(lsn, seq)
    return Event(origin, "public", table, operation, place, body, "cdc", lsn, origin, closes=last)


class Destination:
    """Commits each batch as the test allows."""

    def __init__(self) -> None:
        self.state = SimpleNamespace(position=ORIGIN, stream_seq=0, open=None)
        self.own: set[tuple[int, str, str]] = set()
        self.is_lost = False
        self.batches: list[Batch] = []
        self.learned: list[dict[Names, Noted]] = []
        self.may_write = asyncio.Event()
        self.may_write.set()
        self.error: Exception | None = None

    async def write(self, batch: Batch, learned: dict[Names, Noted]) -> None:
        await self.may_write.wait()
        if self.error is not None:
            raise self.error
        self.batches.append(batch)
        self.learned.append(learned)
        self.state.position, self.state.stream_seq = batch.position, batch.stream_seq

    async def noted(self) -> dict[Names, Noted]:
        return {USERS: Noted(("id",))}


class Consumer:
    """Gives lists of events, then an error or nothing."""

    def __init__(self, scope: Scope, *batches: list[Event], error: Exception | None = None) -> None:
        self._scope = scope
        self._batches = list(batches)
        self._error = error
        self.seen_seq = 0
        self.taken = 0

    async def take(self, _: float) -> list[Event]:
        await asyncio.sleep(0)
        if self._batches:
            self.taken += 1
            found = self._batches.pop(0)
            self.seen_seq = max([self.seen_seq, *(one.stream_seq for one in found)])
            return found
        if self._error is not None:
            raise self._error
        self._scope.stopping.set()
        return []


class Clock:
    """In the place of the module `time`."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Files:
    """The catalog's files of relations, and how often they were read."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []
        self.found = True

    async def __call__(self, _: object, relation_ids: Iterable[int]) -> dict[int, RelationFiles]:
        self.asked.append(sorted(relation_ids))
        if not self.found:
            return {}
        return {one: RelationFiles("1:1", 5, first=True) for one in self.asked[-1]}


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Files:
    """The catalog, which also has every other table."""
    made = Files()

    async def noted(_: object, tables: set[Names]) -> dict[Names, Noted]:
        return dict.fromkeys(tables, Noted(files="1:1"))

    monkeypatch.setattr(source, "files", made)
    monkeypatch.setattr(source, "noted", noted)
    return made


@pytest.fixture
def scope() -> Scope:
    return Scope("audit-writer", load({}).process, asyncio.TaskGroup(), Health("audit-writer"))


def session(scope: Scope, destination: Destination, **variables: str) -> Session:
    audit = load_audit({f"HEADRACE_AUDIT_{name}": value for name, value in variables.items()})
    book = TableBook({USERS: Noted(("id",), relation_id=1, files="1:1")})
    stitcher = Stitcher(audit.whole_rows_max, audit.whole_bytes_max)
    selection = Selection(include=audit.tables)
    given: Any = destination
    maker = RowMaker("db", "s", book)
    return Session(scope, audit, load({}).postgres, given, "s", maker, selection, book, stitcher)


async def run(made: Session, consumer: Consumer) -> None:
    given: Any = consumer
    async with asyncio.timeout(30):
        await made.run(given)


def figure(scope: Scope, key: str) -> Any:
    return scope.health.stats.values().get(key)


async def test_a_stop_commits_what_is_complete_and_leaves_the_rest(
    scope: Scope, files: Files
) -> None:
    destination = Destination()
    made = session(scope, destination)
    events = [event(1, 0, last=False), event(1, 1), event(2), event(3, last=False)]
    await run(made, Consumer(scope, events))
    assert [len(batch.lines) for batch in destination.batches] == [3]
    assert destination.state.position == Position(2, 0)
    assert made.worked
    assert figure(scope, "audit_commits") == 1
    assert figure(scope, "audit_transactions") == 2
    assert figure(scope, "audit_lsn") == 2
    assert figure(scope, "audit_lag_seconds") > 0
    assert figure(scope, "audit_rows") == {"insert": 4}
    assert files.asked == []


async def test_a_failed_commit_ends_the_session_with_its_error(scope: Scope, files: Files) -> None:
    destination = Destination()
    destination.error = ConnectionResetError("gone")
    made = session(scope, destination)
    with pytest.raises(ConnectionResetError, match="gone"):
        await run(made, Consumer(scope, [event(1)]))
    assert not made.worked


async def test_a_failed_reading_commits_what_came_before_it(scope: Scope, files: Files) -> None:
    destination = Destination()
    with pytest.raises(HeadraceError, match="no stream"):
        await run(
            session(scope, destination),
            Consumer(scope, [event(1), event(2, last=False)], error=HeadraceError("no stream")),
        )
    assert [len(batch.lines) for batch in destination.batches] == [1]


async def test_a_loss_in_the_stream_keeps_the_part_of_a_transaction_that_came(
    scope: Scope, files: Files
) -> None:
    destination = Destination()
    lost = RetentionGapError.__new__(RetentionGapError)
    Exception.__init__(lost, "lost")
    with pytest.raises(RetentionGapError):
        await run(
            session(scope, destination),
            Consumer(scope, [event(1), event(2, last=False)], error=lost),
        )
    assert sum(len(batch.lines) for batch in destination.batches) == 2
    assert destination.batches[-1].open is not None


async def test_a_connection_that_the_destination_ended_ends_the_session(
    scope: Scope, files: Files
) -> None:
    destination = Destination()
    destination.is_lost = True
    with pytest.raises(ConnectionResetError, match="the destination ended the connection"):
        await run(session(scope, destination), Consumer(scope, [event(1)]))


async def test_reading_ahead_of_a_commit_stops_at_the_limit(scope: Scope, files: Files) -> None:
    destination = Destination()
    destination.may_write.clear()
    made = session(scope, destination, BATCH_ROWS_MAX="2")
    consumer = Consumer(scope, *([event(lsn)] for lsn in range(1, 9)))
    given: Any = consumer
    running = asyncio.create_task(made.run(given))
    for _ in range(200):
        await asyncio.sleep(0)
    # One row is being written, and two are read ahead.
    assert consumer.taken == 3
    destination.may_write.set()
    async with asyncio.timeout(30):
        await running
    assert sum(len(batch.lines) for batch in destination.batches) == 8


async def test_rows_that_are_incomplete_do_not_count_against_reading_ahead(
    scope: Scope, files: Files
) -> None:
    destination = Destination()
    made = session(scope, destination, BATCH_ROWS_MAX="1")
    events = [[event(1, seq, last=seq == 4)] for seq in range(5)]
    await run(made, Consumer(scope, *events))
    assert [len(batch.lines) for batch in destination.batches] == [5]


@pytest.mark.parametrize(("bytes_max", "full"), [(0, True), (1, False)])
async def test_the_limit_of_bytes_counts_lines(
    scope: Scope, files: Files, bytes_max: int, full: bool
) -> None:
    made = session(scope, Destination())
    await made._add([event(1)])
    size = made.stitcher.size
    assert size > 0
    made.settings = load_audit({"HEADRACE_AUDIT_BATCH_BYTES_MAX": str(1 << 20)})
    assert not made._full
    made.settings = SimpleNamespace(batch_rows_max=100, batch_bytes_max=size + bytes_max)  # type: ignore[assignment]  # smaller than a setting may be
    assert made._full is full


async def test_what_is_settled_is_what_was_read_only_while_no_row_waits(
    scope: Scope, files: Files
) -> None:
    destination = Destination()
    made = session(scope, destination)
    made._read_seq = 7
    assert made.settled_seq == 7
    destination.state.stream_seq = 9
    assert made.settled_seq == 9
    made._read_seq = 20
    await made._add([event(1)])
    assert made.settled_seq == 9
    made.stitcher.cut()
    assert made.settled_seq == 20
    made._writing = True
    assert made.settled_seq == 9


async def test_a_place_without_rows_is_kept_when_it_is_due(
    scope: Scope, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(sessions, "time", clock)
    destination = Destination()
    destination.own = {(1, "public", "changes")}
    made = session(scope, destination, TABLES="public.users")
    made._kept_at = clock.now

    async def come(lsn: int, table: str) -> int:
        """Take a change of that table, and count the commits."""
        await made._add([event(lsn, table=table)])
        batch = made.stitcher.cut()
        assert batch is not None
        await made._write(batch)
        return len(destination.batches)

    assert await come(1, "changes") == 0
    clock.now += OWN_S
    assert await come(2, "changes") == 0
    clock.now += 1
    assert await come(3, "changes") == 1, "the audit's own changes, for so long"
    assert destination.batches[0].transactions == 3
    assert await come(4, "other") == 1
    clock.now += IDLE_S
    assert await come(5, "other") == 1
    clock.now += 1
    assert await come(6, "other") == 2
    clock.now += IDLE_S + 1
    assert await come(7, "changes") == 2, "it is quiet again"
    assert await come(8, "users") == 3, "a row never waits"


async def test_only_audited_changes_are_rows_and_others_end_what_is_certain(
    scope: Scope, files: Files
) -> None:
    destination = Destination()
    made = session(scope, destination, TABLES="public.users")
    made.book.tables["public", "other"] = Noted(since=Position(1, 0), files="1:1")
    message = event(2, 1, "MESSAGE", last=False, prefix="else", content=b"")
    await made._add([event(1, table="other"), message, event(2, 2, "DELETE"), event(3)])
    assert made.stitcher.rows == 2
    assert made.book.tables["public", "other"].since is None
    assert figure(scope, "audit_rows") == {"delete": 1, "insert": 1}


async def test_changes_of_another_source_are_not_this_trails(scope: Scope, files: Files) -> None:
    made = session(scope, Destination())
    await made._add([event(1, origin="t")])
    assert made.stitcher.rows == 0
    assert made.stitcher.cut() is None


async def test_rows_are_counted_once_however_many_readings_there_are(
    scope: Scope, files: Files
) -> None:
    made = session(scope, Destination())
    for lsn in (1, 2, 3):
        await made._add([event(lsn)])
    assert figure(scope, "audit_rows") == {"insert": 3}


async def test_a_context_of_a_transaction_is_that_of_its_rows(scope: Scope, files: Files) -> None:
    made = session(scope, Destination())
    said = event(1, 0, "MESSAGE", last=False, prefix="_bemi", content=b'{"user":1}')
    await made._add([said, event(1, 1)])
    batch = made.stitcher.cut()
    assert batch is not None
    assert batch.contexts == [b'{"user":1}']


async def test_what_a_change_says_of_its_table_is_kept_with_its_batch(
    scope: Scope, files: Files
) -> None:
    made = session(scope, Destination())
    await made._add([event(1), event(2, key=["other"])])
    batch = made.stitcher.cut()
    assert batch is not None
    assert made._learned_by(batch)[USERS].key == ("other",)


async def test_an_own_table_is_looked_up_each_time_and_others_once(
    scope: Scope, files: Files
) -> None:
    destination = Destination()
    made = session(scope, destination)
    destination.own = {(1, "public", "users")}
    await made._add([event(1)])
    assert made.stitcher.rows == 0
    destination.own = set()
    await made._add([event(2)])
    assert made.stitcher.rows == 1
    destination.own = {(1, "public", "users")}
    await made._add([event(3)])
    assert made.stitcher.rows == 2


async def test_files_of_a_relation_are_read_once_a_second_and_kept_with_a_batch(
    scope: Scope, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(sessions, "time", clock)
    made = session(scope, Destination())
    truncates = (event(lsn, operation="TRUNCATE", data={}) for lsn in range(1, 9))
    await made._add([next(truncates)])
    assert files.asked == [[1]]
    assert made.book.tables[USERS].files == "1:1"
    await made._add([next(truncates)])
    assert files.asked == [[1]], "not twice in a second"
    clock.now += 0.999
    await made._add([next(truncates)])
    assert len(files.asked) == 1
    clock.now += 0.001
    files.found = False
    await made._add([next(truncates)])
    assert files.asked == [[1], [1]]
    assert made.book.tables[USERS].files == "", "it is gone"
    batch = made.stitcher.cut()
    assert batch is not None
    assert made._learned_by(batch)[USERS] == made.book.tables[USERS]


async def test_unknown_tables_are_read_from_the_catalog_before_their_first_change(
    scope: Scope, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[set[Names]] = []

    async def noted(_: object, tables: set[Names]) -> dict[Names, Noted]:
        asked.append(tables)
        return dict.fromkeys(tables, Noted(("id",), ("b",)))

    monkeypatch.setattr(source, "noted", noted)
    made = session(scope, Destination())
    await made._add([event(1, table="new", data={"id": 1, "b": "aGVsbG8="})])
    await made._add([event(2, table="new")])
    assert asked == [{("public", "new")}]
    batch = made.stitcher.cut()
    assert batch is not None
    assert b"\\\\x68656c6c6f" in batch.lines[0]


async def test_a_gap_is_counted_and_committed_with_its_reason(scope: Scope, files: Files) -> None:
    destination = Destination()
    gap: dict[str, Any] = {"after": "0/1", "up_to": "0/2"}
    events = [
        event(1, operation="GAP", reason="slot_moved", **gap),
        event(2, operation="GAP", reason="stream_damaged", **gap),
        event(3),
    ]
    await run(session(scope, destination), Consumer(scope, events))
    (batch,) = destination.batches
    assert [seq for seq, _ in batch.gaps] == [1, 2]
    moved, damaged = (reason for _, reason in batch.gaps)
    assert moved == "slot_moved: changes from 0/1 to 0/2 are lost"
    assert damaged.startswith("stream_damaged: changes from 0/1 to 0/2 are lost to the stream")
    assert figure(scope, "audit_gaps") == 2


async def test_a_session_continues_with_the_state_of_the_destination(
    scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def name(_: object) -> str:
        return "app"

    monkeypatch.setattr(source, "database_name", name)
    destination: Any = Destination()
    audit = load_audit(
        {"HEADRACE_AUDIT_INSERT_AS": "INSERT", "HEADRACE_AUDIT_REDACT": "users.secret"}
    )
    made = await opened(scope, audit, load({}).postgres, destination, "s")
    assert made.book.tables == {USERS: Noted(("id",))}
    line = made.maker.line(event(1, data={"id": 1, "secret": 2}), b"q")
    assert b"\tapp\tpublic\tusers\tINSERT\t" in line
    assert b"[redacted]" in line
    bad = load_audit({"HEADRACE_AUDIT_REDACT": "secret"})
    with pytest.raises(HeadraceError):
        await opened(scope, bad, load({}).postgres, destination, "s")


async def test_the_stream_is_read_from_where_the_destination_is() -> None:
    destination: Any = Destination()
    destination.state.position, destination.state.stream_seq = Position(5, 6), 7
    marks = Marks(destination, "s")
    assert await marks.load() == {"s": Watermark(Position(5, 6), 7)}
    await marks.save("s", Watermark(ORIGIN, 0))
    assert destination.state.stream_seq == 7
