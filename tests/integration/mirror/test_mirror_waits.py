"""A mirror never waits for something that does not come, such as a blocked follower or a table
without events, and never treats uncommitted work as done.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from nats.aio.client import Client

from headrace.consumer import Watermark
from headrace.consumer.event import of_message
from headrace.contract.events import encode
from headrace.contract.values import Encoding
from headrace.lsn import Position
from headrace.metrics.counters import Counters
from headrace.mirror import CreateTable, InsertRows, Mirror, Step, Streams, Table, mirror
from headrace.mirror.bootstrap import AgainError, Bootstrap
from headrace.mirror.changes import Changes
from headrace.mirror.follower import Follower
from headrace.mirror.mirror_state import SEEN, Book
from headrace.mirror.published import Published
from headrace.mirror.snapshots import SnapshotRefusedError
from headrace.mirror.table import NEW, BootstrapRun, Column, Phase, TableState
from headrace.mirror.target import CommitRefusedError
from headrace.mirror.verify_hold import VerifyHold
from headrace.settings import StreamSettings
from headrace.timing.waits import heed_cancellation

PATIENCE_S = 60.0
# The time for something that never ends.
FAILING_S = 10.0
USERS = Table("public", "users", (Column("id", "integer"),), ("id",), ("id",), staging=True)


class MemoryTarget:
    """Keeps marks, and the steps that were written."""

    def __init__(self) -> None:
        self.marks: dict[str, str] = {}
        self.steps: list[Step] = []

    @property
    def rows(self) -> list[Mapping[str, Any]]:
        return [row for step in self.steps if isinstance(step, InsertRows) for row in step.rows]

    async def load(self) -> dict[str, str]:
        return dict(self.marks)

    async def write(self, steps: Sequence[Step]) -> None:
        self.steps += steps

    async def commit(self, marks: Mapping[str, str | None]) -> None:
        self.marks = {
            key: value for key, value in {**self.marks, **marks}.items() if value is not None
        }


def insert(lsn: int, *, seq: int = 0, last: bool = True) -> bytes:
    tx = {"xid": lsn, "lsn": lsn, "ts": None, "seq": seq, "last": last}
    names = {"table": "users", "schema": "public", "source": "s", "operation": "INSERT"}
    body = {**names, "data": {"id": seq or lsn}, "tx": tx}
    return encode(body, Encoding.MSGPACK)


async def loading(seen: int) -> Book:
    """Of a mirror whose follower has seen the stream up to `seen`, and whose table is copied."""
    book = Book(MemoryTarget())
    await book.open()
    run = BootstrapRun("snap-1", 1, 0, 0, USERS, source="s", marks={SEEN: Watermark()})
    book.put(TableState("public", "users", Phase.LOADING, run=run, why="test"))
    book.keep_lanes({SEEN: Watermark(stream_seq=seen)})
    await book.commit()
    return book


def bootstrapping(book: Book, client: Client) -> asyncio.Task[None]:
    return asyncio.create_task(Bootstrap(book, client, Streams(), "users", lambda *_: None).run())


async def until_bootstrapped_again(book: Book, client: Client) -> None:
    book.subscribed = None
    bootstrap = bootstrapping(book, client)
    async with asyncio.timeout(PATIENCE_S):
        while book.tables["users"].phase is Phase.LOADING:  # noqa: ASYNC110  # a state tells nobody
            await asyncio.sleep(0.1)
    bootstrap.cancel()
    assert book.tables["users"].phase is Phase.WANTED


async def test_a_bootstrap_that_waits_for_the_follower_lets_it_run(client: Client) -> None:
    for lsn in range(1, 6):
        await client.jetstream().publish("cdc.users.insert", insert(lsn))
    book = await loading(2)
    # The follower is not given the table yet, and the next event of the table is beyond.
    book.subscribed = frozenset()
    bootstrap = bootstrapping(book, client)
    await asyncio.sleep(1)
    assert not bootstrap.done()
    book.subscribed = None
    async with asyncio.timeout(PATIENCE_S):
        await bootstrap
    assert book.tables["users"].phase is Phase.LOADED


async def test_what_the_target_refused_to_commit_is_not_passed() -> None:
    """A bootstrap would apply the events that the follower seems to have passed, and so would the
    follower after its rollback.
    """

    class Refusing(MemoryTarget):
        async def commit(self, marks: Mapping[str, str | None]) -> None:
            raise CommitRefusedError(f"no {len(marks)} marks", None)

    book = Book(Refusing())
    await book.open()
    book.keep_lanes({"s": Watermark(Position(7, 0), 3), SEEN: Watermark(stream_seq=3)})
    with pytest.raises(CommitRefusedError):
        await book.commit()
    assert book.lanes == {}


async def test_an_event_that_its_reader_never_gives_out_begins_the_bootstrap_anew(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.mirror.bootstrap.STUCK_S", 0.5)
    # Twice the same position, as no publisher of ours would have it.
    for _ in range(2):
        await client.jetstream().publish("cdc.users.insert", insert(7))
    await until_bootstrapped_again(await loading(2), client)


async def test_a_bootstrap_from_an_empty_streams_end_begins_anew_where_that_was_discarded(
    client: Client,
) -> None:
    js = client.jetstream()
    config = (await js.stream_info("CDC")).config
    config.max_msgs = 3
    await js.update_stream(config)
    for lsn in range(1, 6):
        await js.publish("cdc.users.insert", insert(lsn))
    await until_bootstrapped_again(await loading(5), client)


async def test_a_first_transaction_that_was_acknowledged_and_not_committed_is_applied_after_a_restart(
    client: Client,
) -> None:
    """Its mirror began in an empty stream, so that its book has seen nothing when it is killed."""
    target = MemoryTarget()
    live = replace(USERS, staging=False)

    async def followed_until(done: Callable[[], Awaitable[bool]]) -> None:
        book = Book(target)
        await book.open()
        book.put(TableState("public", "users", Phase.FOLLOWING, live=live, source="s"))
        book.keep_lanes({SEEN: Watermark()})
        await book.commit()
        follower = Follower(book, client, Streams(), VerifyHold(), Counters(), every_table=True)
        following = asyncio.create_task(follower.run(asyncio.Event()))
        async with asyncio.timeout(PATIENCE_S):
            while not await done():  # noqa: ASYNC110  # a consumer's state is only to be asked for
                await asyncio.sleep(0.05)
        following.cancel()
        await asyncio.wait({following})

    async def acknowledged() -> bool:
        floors = [consumer.ack_floor for consumer in await js.consumers_info("CDC")]
        return any(floor is not None and floor.stream_seq == 5 for floor in floors)

    async def applied() -> bool:
        return len(target.rows) == 6

    js = client.jetstream()
    for lsn in range(1, 6):
        await js.publish("cdc.users.insert", insert(9, seq=lsn, last=False))
    await followed_until(acknowledged)
    assert target.rows == []
    await js.publish("cdc.users.insert", insert(9, seq=6))
    await followed_until(applied)
    assert [row["id"] for row in target.rows] == [1, 2, 3, 4, 5, 6]


async def test_a_table_that_is_published_after_the_mirror_began_is_taken_up_without_an_event_of_it(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "DISCOVER_S", 0.1)
    every = Mirror(client, MemoryTarget())
    stopping = asyncio.Event()
    running = asyncio.create_task(every.run(stopping))
    bucket = await client.jetstream().key_value(StreamSettings().schemas)
    async with asyncio.timeout(PATIENCE_S):
        while every.book.subscribed is not None:  # noqa: ASYNC110  # until it follows
            await asyncio.sleep(0.05)
        assert every.book.tables == {}
        await bucket.put("late", b"{}")
        while "late" not in every.book.tables:  # noqa: ASYNC110  # a book tells nobody else
            await asyncio.sleep(0.05)
    stopping.set()
    async with asyncio.timeout(PATIENCE_S):
        await running


async def test_published_tables_are_found_without_a_trace_on_the_server(client: Client) -> None:
    js = client.jetstream()
    published = Published(client, StreamSettings().schemas)
    assert await published.tokens(lambda _: True) == []
    bucket = await js.key_value(StreamSettings().schemas)
    for token in ("users", "app=2Ftags", "dropped"):
        await bucket.put(token, b"{}")
    await bucket.delete("dropped")
    assert await published.tokens(lambda _: True) == ["app=2Ftags", "users"]
    assert await published.tokens(lambda token: token != "users") == ["app=2Ftags"]
    assert (await js.stream_info(f"KV_{StreamSettings().schemas}")).state.consumer_count == 0
    assert await Published(client, "nosuch").tokens(lambda _: True) == []


async def test_a_table_that_came_back_while_it_was_refused_is_not_forgotten(client: Client) -> None:
    target = MemoryTarget()
    book = Book(target)
    await book.open()
    book.want("public", "users", "published")
    bootstrap = Bootstrap(book, client, Streams(), "users", lambda *_: None)
    told = {
        "table": "users",
        "schema": "public",
        "source": "s",
        "operation": "SCHEMA",
        "version": 1,
        "changes": [],
    }
    columns = [{"name": "id", "data_type": "integer"}]
    tx = {"xid": 0, "lsn": 5, "ts": None, "seq": 0, "last": False}
    (event,) = of_message(
        encode({**told, "columns": columns, "tx": tx}, Encoding.MSGPACK), "cdc.users.schema", 1
    )
    assert Changes(book, every_table=True).of([event]) == []
    with pytest.raises(AgainError):
        await bootstrap._refused(SnapshotRefusedError("it was dropped a moment ago"))
    assert [state.phase for state in book.tables.values()] == [Phase.WANTED]
    # Asked again, and nothing was heard since.
    await Bootstrap(book, client, Streams(), "users", lambda *_: None)._refused(
        SnapshotRefusedError("dropped")
    )
    assert [state.phase for state in book.tables.values()] == [Phase.GONE]
    assert not [step for step in target.steps if isinstance(step, CreateTable)]


async def test_a_bootstrap_that_only_a_rolled_back_event_asked_for_ends(client: Client) -> None:
    book = Book(MemoryTarget())
    await book.open()
    book.want("public", "users", "published")
    await book.commit()
    book.want("public", "brief", "new in the stream")
    bootstrap = Bootstrap(book, client, Streams(), "brief", lambda *_: None)
    await book.roll_back()
    await bootstrap._refused(SnapshotRefusedError("it exists only inside its transaction"))
    async with asyncio.timeout(PATIENCE_S):
        await bootstrap.run()
    assert list(book.tables) == ["users"]


async def test_a_table_that_the_user_misspelled_is_not_asked_for_at_the_next_start(
    client: Client,
) -> None:
    target = MemoryTarget()
    book = Book(target)
    await book.open()
    book.want("public", "user", NEW)
    await book.commit()
    with pytest.raises(SnapshotRefusedError):
        await Bootstrap(book, client, Streams(), "user", lambda *_: None)._refused(
            SnapshotRefusedError("there is none")
        )
    assert "table user" not in target.marks


async def test_a_cancellation_that_was_swallowed_is_heeded_at_the_next_step() -> None:
    begun = asyncio.Event()

    async def works() -> None:
        begun.set()
        # As asyncio.wait_for does where what it waits for is done in the same moment.
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(PATIENCE_S)
        heed_cancellation()
        await asyncio.sleep(PATIENCE_S)

    task = asyncio.create_task(works())
    await begun.wait()
    task.cancel()
    await asyncio.wait({task}, timeout=PATIENCE_S)
    assert task.cancelled()


class Swallowing:
    """Answers once, in the moment in which its caller is cancelled."""

    def __init__(self, answer: Any) -> None:
        self.asked = asyncio.Event()
        self._answer = answer

    async def __call__(self, *_: object) -> Any:
        if not self.asked.is_set():
            self.asked.set()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            return self._answer
        return await asyncio.Event().wait()

    async def ends(self, task: asyncio.Task[None]) -> None:
        await self.asked.wait()
        task.cancel()
        await asyncio.wait({task}, timeout=FAILING_S)
        assert task.cancelled()


async def test_a_bootstrap_that_swallows_its_cancellation_does_not_wait_for_a_failed_followers_lock(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk: the follower's write fails while a chunk arrives."""
    chunk = Swallowing([{"id": 1}])
    monkeypatch.setattr("headrace.mirror.snapshots.Snapshots.chunk", chunk)
    book = await loading(2)
    state = book.tables["users"]
    assert state.run is not None
    book.put(replace(state, run=replace(state.run, batch_count=1, row_count=1)))
    # The follower's, which gives it back to nobody: what it wrote must not be committed.
    await book.lock.acquire()
    await chunk.ends(bootstrapping(book, client))


@pytest.mark.parametrize("found", [[], [("public", "users")]])
async def test_a_search_for_tables_that_swallows_its_cancellation_ends(
    found: list[tuple[str, str]], client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "DISCOVER_S", 0.01)
    every = Mirror(client, MemoryTarget())
    await every.book.open()
    await every.book.lock.acquire()
    search = Swallowing(found)
    monkeypatch.setattr(every, "_found", search)
    await search.ends(asyncio.create_task(every._discover()))
