"""`--delivery batch` and `transaction` on real servers: what becomes one message, in which order,
and once.

The duplicate window is at its minimum unless a test is about it, so that it hides no double.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.js.api import StreamConfig

from headrace.consumer import Event, FileWatermarks, MemoryWatermarks, Subscription, follow
from headrace.contract import events
from headrace.embedded.nats import GROUP_MESSAGES_MAX, EmbeddedNats
from headrace.settings import DeliverySettings
from headrace.testing.database import Database
from headrace.testing.line import SETTINGS
from headrace.testing.oracle import Change, Oracle, Stored, assert_complete, raw_messages, stored
from headrace.testing.plugin import OwnNats
from headrace.testing.suite import Suite

LIMITS = DeliverySettings()
SPLIT = "Headrace-Transaction"
MESSAGES = "cdc._message.note"
DELIVERED_S = 40.0


@dataclass(frozen=True, slots=True)
class Message:
    """A message of the stream, whole."""

    seq: int
    subject: str
    headers: Mapping[str, str]
    data: bytes

    @property
    def payloads(self) -> list[dict[str, Any]]:
        decoded = events.decode(self.data)
        return decoded if isinstance(decoded, list) else [decoded]


async def messages(url: str, stream: str = "CDC") -> list[Message]:
    """The whole stream, without the events from the catalog, whose time varies."""
    found = [
        Message(m.metadata.sequence.stream, m.subject, m.headers or {}, m.data)
        for m in await raw_messages(url, stream)
    ]
    return [message for message in found if not _told_by_the_catalog(message)]


async def split(line: Line) -> list[bool]:
    """Of each row's message in the stream, whether its transaction was too large for one group. The
    catalog may report a table before its first row does.
    """
    return [
        SPLIT in message.headers
        for message in await messages(line.nats.url)
        if message.subject == "cdc.a.insert"
    ]


def _told_by_the_catalog(message: Message) -> bool:
    payload = message.payloads[0]
    return bool(payload["operation"] == "SCHEMA" and payload["tx"]["xid"] == 0)


class Line:
    """A separate line, whose publisher a test may kill; an oracle says what was committed."""

    def __init__(
        self, database: Database, server: EmbeddedNats, folder: Path, settings: Mapping[str, str]
    ) -> None:
        self.database = database
        self.nats = server
        self.source = f"slot_{database.name}"
        self.oracle = Oracle(database, f"oracle_{database.name}", "headrace")
        environment = {
            **SETTINGS,
            **database.server.environment(),
            "PG_DB": database.name,
            "NATS_URL": server.url,
            "HEADRACE_SLOT": self.source,
            **settings,
        }
        self.suite = Suite(environment, folder)
        self.committed: list[Change] = []
        # The reasons of the gap events in the stream.
        self.gaps: list[str] = []

    async def prepare(self) -> None:
        await self.database.execute(
            "CREATE TABLE a (id bigint PRIMARY KEY, note text); CREATE TABLE b (id bigint PRIMARY "
            "KEY, note text);"
            "CREATE PUBLICATION headrace FOR ALL TABLES"
        )
        await self.oracle.begin()

    async def insert(self, table: str, first: int, count: int, note: str = "note") -> None:
        await self.database.execute(
            (
                f"INSERT INTO {table} SELECT g, $3::text FROM generate_series($1::bigint, "
                "$2::bigint) g"
            ),
            first,
            first + count - 1,
            note,
        )

    async def mixed(self, first: int, count: int) -> None:
        """One transaction whose rows take turns between the two tables."""
        await self.database.execute(
            f"DO $$ BEGIN FOR i IN {first}..{first + count - 1} LOOP "
            "INSERT INTO a VALUES (i, 'a'); INSERT INTO b VALUES (i, 'b'); END LOOP; END $$"
        )

    async def mixed_slowly(self, first: int) -> None:
        """Transactions far enough apart that each is published on its own."""
        for step in range(6):
            await self.mixed(first + 1000 * step, 100)
            await asyncio.sleep(0.3)

    async def rows(self, *, by_table: bool = False) -> list[Stored]:
        """The stream's rows, once everything that was committed is stored: exactly that, in order (for each table)."""
        self.committed += await self.oracle.changes()
        found: list[Stored] = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DELIVERED_S):
                while len(found) < len(self.committed):
                    await asyncio.sleep(0.1)
                    found = await self._rows()
        await asyncio.sleep(0.3)
        found = await self._rows()
        changes, committed = [event.change for event in found], list(self.committed)
        if by_table:
            changes.sort(key=lambda change: change.table)
            committed.sort(key=lambda change: change.table)
        assert changes == committed, self.suite.log("publisher")[-3000:]
        return found

    async def _rows(self) -> list[Stored]:
        found = await stored(self.nats.url)
        gaps = [event.payload["reason"] for event in found if event.payload["operation"] == "GAP"]
        assert gaps == self.gaps
        return [event for event in found if event.payload["operation"] not in {"SCHEMA", "GAP"}]

    async def killed_at(self, failpoint: str, work: Any) -> None:
        """A publisher that is killed at a failpoint while this is written, and one that continues."""
        await self.suite.kill("publisher")
        seen = self.suite.log("publisher").count("epoch_joined")
        await self.suite.start("publisher", HEADRACE_FAILPOINT=failpoint)
        await self.joined(seen + 1)
        await work
        assert await self.suite.exit_code("publisher", DELIVERED_S) == -9
        await self.suite.start("publisher")

    async def joined(self, times: int) -> None:
        async with asyncio.timeout(20):
            while self.suite.log("publisher").count("epoch_joined") < times:  # noqa: ASYNC110  # a file gives no event
                await asyncio.sleep(0.05)

    async def last_subject(self) -> str:
        return (await messages(self.nats.url))[-1].subject

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[Client]:
        client = await nats.connect(self.nats.url)
        try:
            yield client
        finally:
            await client.close()


@pytest.fixture
async def line(
    request: pytest.FixtureRequest, database: Database, own_nats: OwnNats, tmp_path: Path
) -> AsyncIterator[Line]:
    """A running line with the settings that the parameter names."""
    made = Line(database, await own_nats(), tmp_path, request.param)
    await made.prepare()
    async with made.suite:
        await made.joined(1)
        yield made


BATCH = {"HEADRACE_DELIVERY": "batch"}
JSON_BATCH = {**BATCH, "HEADRACE_ENCODING": "json"}
# Each message is stored before the next is sent, so that a failpoint says what is in the stream.
STEPWISE = {"HEADRACE_INGEST": "chain", "HEADRACE_WINDOW_MESSAGES_MAX": "1"}
TRANSACTION = {"HEADRACE_DELIVERY": "transaction"}


@pytest.mark.parametrize("line", [BATCH, JSON_BATCH], indirect=True, ids=["msgpack", "json"])
class TestBatches:
    async def test_a_tables_events_come_in_arrays_that_are_cut_at_500_events(
        self, line: Line
    ) -> None:
        await line.insert("a", 1, 1700)
        await line.rows()
        batches = [
            message for message in await messages(line.nats.url) if message.subject == "cdc.a.batch"
        ]
        sizes = [len(batch.payloads) for batch in batches]
        assert sum(sizes) == 1700
        assert max(sizes) == LIMITS.batch_events_max
        # A batch that isn't full was cut by its age, a few times at most.
        assert sizes.count(500) >= 2
        for batch in batches:
            last = batch.payloads[-1]
            assert batch.headers["Nats-Msg-Id"] == f"{last['msg_id']}-batch-{len(batch.payloads)}"
            source, position = events.parse_position_header(batch.headers["Headrace-Position"])
            assert (source, position) == (line.source, events.position_of(last))

    async def test_a_batch_is_cut_at_256_kib(self, line: Line) -> None:
        await line.insert("a", 1, 400, "x" * 4000)
        await line.rows()
        batches = [
            message for message in await messages(line.nats.url) if message.subject == "cdc.a.batch"
        ]
        assert max(len(batch.data) for batch in batches) <= LIMITS.batch_bytes_max
        assert max(len(batch.data) for batch in batches) > LIMITS.batch_bytes_max * 0.9
        assert max(len(batch.payloads) for batch in batches) < 100

    async def test_a_single_event_waits_for_no_other(self, line: Line) -> None:
        await line.insert("a", 1, 1)
        await line.rows()
        (batch,) = [
            message for message in await messages(line.nats.url) if message.subject == "cdc.a.batch"
        ]
        assert len(batch.payloads) == 1

    async def test_each_table_is_in_order_told_of_before_its_rows_and_complete_where_it_says_so(
        self, line: Line
    ) -> None:
        for first in range(0, 3000, 300):
            await line.mixed(first, 150)
            await line.insert("b", 100_000 + first, 7)
        found = await line.rows(by_table=True)
        for table in ("a", "b"):
            positions = [
                event.change.position for event in found if event.payload["table"] == table
            ]
            assert positions == sorted(set(positions))
            subjects = [
                m.subject
                for m in await messages(line.nats.url)
                if m.subject.startswith(f"cdc.{table}.")
            ]
            assert subjects[0] == f"cdc.{table}.schema"
            assert set(subjects[1:]) == {f"cdc.{table}.batch"}
        await assert_complete(line.nats.url)

    async def test_schema_events_and_truncates_keep_their_place_among_a_tables_rows(
        self, line: Line
    ) -> None:
        await line.database.execute(
            "INSERT INTO a SELECT g, 'before' FROM generate_series(1, 700) g; INSERT INTO b VALUES "
            "(1, 'b');"
            "ALTER TABLE a ADD extra int; INSERT INTO a SELECT g, 'after', g FROM "
            "generate_series(701, 1400) g;"
            "TRUNCATE a, b; INSERT INTO a VALUES (1, 'last', 1)"
        )
        await line.rows(by_table=True)
        of_a = [
            event.payload for event in await stored(line.nats.url) if event.payload["table"] == "a"
        ]
        runs = [(kind, len(list(run))) for kind, run in groupby(p["operation"] for p in of_a)]
        assert runs == [
            ("SCHEMA", 1),
            ("INSERT", 700),
            ("SCHEMA", 1),
            ("INSERT", 700),
            ("TRUNCATE", 1),
            ("INSERT", 1),
        ]
        assert all(
            ("extra" in p["data"]) == (p["data"].get("note") in ("after", "last"))
            for p in of_a
            if p.get("data")
        )

    async def test_a_consumer_that_crashes_inside_a_batch_repeats_nothing(
        self, line: Line, tmp_path: Path
    ) -> None:
        for first in range(0, 2000, 500):
            await line.mixed(first, 250)
        await line.rows(by_table=True)
        seen: list[Event] = []
        # In the middle of a batch, at its end, and behind it.
        for stop_after in (137, 500, 501, 77, 4000):
            async with line.connected() as client:
                store = FileWatermarks(tmp_path / "marks")
                async with follow(client, Subscription(), store) as consumer:
                    for _ in range(stop_after):
                        event = await consumer.next()
                        if event is None:
                            break
                        seen.append(event)
                        await consumer.done(event)
        rows = [event for event in seen if event.advances]
        assert len(rows) == 2000
        for table in ("a", "b"):
            positions = [event.position for event in rows if event.table == table]
            assert len(positions) == 1000
            assert positions == sorted(set(positions))


@pytest.mark.slow
@pytest.mark.parametrize(
    "line", [{**BATCH, **STEPWISE}, {**JSON_BATCH, **STEPWISE}, BATCH], indirect=True
)
async def test_a_publisher_killed_inside_a_flush_doubles_and_loses_nothing(line: Line) -> None:
    await line.mixed(1, 10)
    await line.rows(by_table=True)
    # With two tables in each flush: after the first table's batch, and after both.
    for number, hits in enumerate((2, 3, 4, 1), start=1):
        await line.killed_at(
            f"publisher.before_publish:{hits}", line.mixed_slowly(number * 100_000)
        )
    await line.mixed(900_000, 10)
    await line.rows(by_table=True)
    await assert_complete(line.nats.url)


@pytest.mark.slow
@pytest.mark.parametrize("line", [{**BATCH, **STEPWISE}], indirect=True)
@pytest.mark.parametrize(
    "second", ["batch publish:3 batch", "event publish:40 insert", "transaction atomic:3 insert"]
)
async def test_what_a_crash_inside_a_flush_left_is_known_after_a_second_crash(
    line: Line, second: str
) -> None:
    """The first life stores table a's batch and not b's; the second sends some of b's, in its own
    way, and dies.
    """
    await line.mixed(-1, 1)
    await line.rows(by_table=True)
    await line.suite.kill("publisher")
    await line.mixed(1, 400)
    await line.suite.start("publisher", HEADRACE_FAILPOINT="publisher.before_publish:2")
    assert await line.suite.exit_code("publisher", DELIVERED_S) == -9
    assert await line.last_subject() == "cdc.a.batch"
    delivery, at, last = second.split()
    other = {"HEADRACE_DELIVERY": delivery, "HEADRACE_BATCH_EVENTS_MAX": "50"}
    await line.suite.start("publisher", **other, HEADRACE_FAILPOINT=f"publisher.before_{at}")
    assert await line.suite.exit_code("publisher", DELIVERED_S) == -9
    assert await line.last_subject() == f"cdc.b.{last}"
    await line.suite.start("publisher", **other)
    await line.rows(by_table=True)


@pytest.mark.parametrize(
    "line",
    [{**BATCH, "HEADRACE_BATCH_AGE_MAX_S": "0.5", "HEADRACE_MESSAGE_PREFIXES": "note"}],
    indirect=True,
)
async def test_an_emitted_message_stands_alone_behind_everything_before_it(line: Line) -> None:
    await line.database.execute(
        "BEGIN; INSERT INTO a VALUES (1, 'x'); SELECT pg_logical_emit_message(true, 'note', 'one');"
        "INSERT INTO a VALUES (2, 'y'); COMMIT"
    )
    # Only a switch writes it to disk soon: a message outside transactions waits for other WAL.
    await line.database.execute(
        "SELECT pg_logical_emit_message(false, 'note', 'two'); SELECT pg_switch_wal()"
    )
    async with asyncio.timeout(10):
        while len(found := await messages(line.nats.url)) < 5:  # noqa: ASYNC110  # a stream gives no event
            await asyncio.sleep(0.1)
    assert [message.subject for message in found] == [
        "cdc.a.schema",
        "cdc.a.batch",
        MESSAGES,
        "cdc.a.batch",
        MESSAGES,
    ]


async def subjects(line: Line) -> list[str]:
    return [message.subject for message in await messages(line.nats.url)]


def transactions(found: list[Message]) -> list[tuple[int, list[dict[str, Any]]]]:
    """Row events by their transaction, in stream order."""
    payloads = [
        payload
        for message in found
        for payload in message.payloads
        if payload["operation"] != "SCHEMA"
    ]
    return [
        (lsn, list(group))
        for lsn, group in groupby(payloads, key=lambda payload: int(payload["tx"]["lsn"]))
    ]


@pytest.mark.parametrize("line", [TRANSACTION], indirect=True)
class TestTransactions:
    async def test_transactions_are_whole_and_in_commit_order_with_one_message_for_each_event(
        self, line: Line
    ) -> None:
        for first in range(0, 2000, 100):
            await line.mixed(first, 1 + first // 40)
        found = await messages(line.nats.url) if await line.rows() else []
        groups = transactions(found)
        assert [len(group) for _, group in groups] == [
            2 * (1 + first // 40) for first in range(0, 2000, 100)
        ]
        assert all(
            [p["tx"]["last"] for p in group] == [False] * (len(group) - 1) + [True]
            for _, group in groups
        )
        assert not any(SPLIT in message.headers for message in found)

    async def test_a_transaction_at_the_servers_limit_is_whole_and_one_beyond_it_says_that_it_is_split(
        self, line: Line
    ) -> None:
        # Its schema event counts too.
        await line.insert("a", 1, 999)
        await line.insert("a", 2000, 1000)
        await line.insert("a", 5000, 2345)
        await line.insert("a", 9000, 3)
        await line.rows()
        found = await messages(line.nats.url)
        marked = [SPLIT in message.headers for message in found]
        assert marked == [False] * 2000 + [True] * 2345 + [False] * 3
        assert {message.headers[SPLIT] for message in found if SPLIT in message.headers} == {
            "split"
        }

    async def test_what_is_outside_any_transaction_waits_for_none(self, line: Line) -> None:
        await line.suite.kill("publisher")
        await line.suite.start(
            "publisher", HEADRACE_MESSAGE_PREFIXES="note", HEADRACE_CATALOG_INTERVAL_S="0.2"
        )
        await line.joined(2)
        await line.database.execute(
            "SELECT pg_logical_emit_message(false, 'note', 'single'); SELECT pg_switch_wal()"
        )
        await self.subject_comes(line, MESSAGES)
        await line.insert("a", 1, 2)
        await self.subject_comes(line, "cdc.a.insert", times=2)
        await line.database.execute("DROP TABLE a")
        await self.dropped_is_told(line)

    async def test_the_rest_of_a_split_transaction_says_after_a_crash_that_it_is_a_part(
        self, line: Line
    ) -> None:
        await line.insert("a", 1, 1)
        await line.rows()
        # Of its 1,800 rows 1,000 are stored when the publisher dies: the rest would fit one atomic
        # batch.
        await line.killed_at("publisher.before_atomic:2", line.insert("a", 100, 1800))
        await line.rows()
        assert await split(line) == [False] + [True] * 1800

    async def test_a_wal_reader_killed_inside_a_transaction_costs_no_schema_event(
        self, line: Line
    ) -> None:
        await line.suite.kill("wal-reader")
        await line.database.execute(
            "INSERT INTO a VALUES (0); ALTER TABLE a ADD extra int;"
            "INSERT INTO a SELECT g, repeat('x', 200) FROM generate_series(1, 600) g"
        )
        await line.suite.start(
            "wal-reader",
            HEADRACE_FAILPOINT="wal_reader.after_frame:5",
            HEADRACE_FRAME_BYTES_MAX="16384",
        )
        assert await line.suite.exit_code("wal-reader", DELIVERED_S) == -9
        await line.suite.start("wal-reader")
        await line.rows()
        assert (await subjects(line))[:4] == ["cdc.a.schema", "cdc.a.insert"] * 2

    async def subject_comes(self, line: Line, subject: str, times: int = 1) -> None:
        async with asyncio.timeout(10):
            while (await subjects(line)).count(subject) < times:  # noqa: ASYNC110  # a stream gives no event
                await asyncio.sleep(0.1)

    async def dropped_is_told(self, line: Line) -> None:
        async with asyncio.timeout(10):
            while not any(  # noqa: ASYNC110  # a stream gives no event
                event.payload.get("changes") == [{"change": "table_dropped"}]
                for event in await stored(line.nats.url)
            ):
                await asyncio.sleep(0.1)


# Two of the transactions fit into a group: there are at least five, however fast they come.
@pytest.mark.parametrize(
    "line", [{**TRANSACTION, "HEADRACE_ATOMIC_MESSAGES_MAX": "200"}], indirect=True
)
@pytest.mark.slow
async def test_a_publisher_killed_between_groups_doubles_and_loses_nothing(line: Line) -> None:
    for number, hits in enumerate((1, 2, 3), start=1):

        async def several(first: int = number * 10_000) -> None:
            for step in range(10):
                await line.mixed(first + step * 100, 45)

        await line.killed_at(f"publisher.before_atomic:{hits}", several())
    await line.rows()
    assert all(len(group) == 90 for _, group in transactions(await messages(line.nats.url)))


@pytest.mark.parametrize(
    "line", [{**TRANSACTION, "HEADRACE_ATOMIC_MESSAGES_MAX": "50"}], indirect=True
)
async def test_the_limit_may_be_set_lower(line: Line) -> None:
    await line.insert("a", 1, 49)
    await line.insert("a", 100, 51)
    await line.insert("a", 200, 50)
    await line.rows()
    assert await split(line) == [False] * 49 + [True] * 51 + [False] * 50


@pytest.mark.parametrize(
    "line", [{**TRANSACTION, "HEADRACE_ATOMIC_MESSAGES_MAX": "20000"}], indirect=True
)
async def test_a_limit_above_the_servers_ends_with_the_setting_named_and_loses_nothing(
    line: Line,
) -> None:
    await line.insert("a", 1, GROUP_MESSAGES_MAX + 1)
    await line.suite.logged("publisher", "Lower HEADRACE_ATOMIC_MESSAGES_MAX", timeout_s=60)
    await line.suite.kill("publisher")
    assert await messages(line.nats.url) == []
    await line.suite.start("publisher", HEADRACE_ATOMIC_MESSAGES_MAX=str(GROUP_MESSAGES_MAX))
    await line.insert("b", 1, 1)
    await line.rows()
    found = [
        message for message in await messages(line.nats.url) if message.subject.endswith(".insert")
    ]
    assert [SPLIT in message.headers for message in found] == [True] * (GROUP_MESSAGES_MAX + 1) + [
        False
    ]


@pytest.mark.parametrize(
    "line", [{**TRANSACTION, "HEADRACE_DEDUPE_WINDOW_S": "120"}], indirect=True
)
async def test_ids_in_the_servers_duplicate_window_hold_nothing_up(line: Line) -> None:
    """Stored, then purged, then replayed from a slot that was never confirmed: the server still
    knows the ids.
    """
    # Progress is held up, so that the slot keeps everything.
    await line.suite.kill("publisher")
    await line.suite.start("publisher", HEADRACE_PROGRESS_INTERVAL_S="600")
    await line.joined(2)
    await line.mixed(1, 40)
    await line.insert("a", 500, 1)
    await line.insert("b", 500, 1)
    await line.mixed(600, 40)
    before = await line.rows()
    await line.suite.kill("publisher")
    async with line.connected() as client:
        js = client.jetstream()
        await js.purge_stream("CDC")
        await (await js.key_value("headrace_state")).delete(f"progress.{line.source}")
    await line.suite.start("publisher")
    await line.joined(3)
    # A slot that was used, and a publisher that knows of nothing.
    line.gaps = ["store_lost"]
    again = await line.rows()
    assert [event.payload for event in again] == [event.payload for event in before]
    found = await messages(line.nats.url)
    assert all(
        events.ID_HEADER in message.headers
        for message in found
        if not message.subject.endswith((".schema", "._gap"))
    )
    # And it continues from there, over another restart, as before.
    await line.mixed(1000, 3)
    await line.rows()
    await line.suite.kill("publisher")
    await line.suite.start("publisher")
    await line.mixed(2000, 3)
    await line.rows()
    assert "stream_tail_lost" not in line.suite.log("publisher")


async def test_a_stream_that_takes_no_atomic_batches_is_one_error_with_its_remedy(
    database: Database, own_nats: OwnNats, tmp_path: Path
) -> None:
    line = Line(database, await own_nats(), tmp_path, TRANSACTION)
    async with line.connected() as client:
        await client.jetstream().add_stream(StreamConfig(name="CDC", subjects=["cdc.>"]))
    await line.prepare()
    async with line.suite:
        assert await line.suite.exit_code("publisher", 20) == 1
        log = line.suite.log("publisher")
        assert log.count("AtomicUnsupportedError") == 1
        assert "allow_atomic" in log
        assert "Traceback" not in log
        # The remedy is one.
        async with line.connected() as client:
            js = client.jetstream()
            config = (await js.stream_info("CDC")).config
            config.allow_atomic = True
            await js.update_stream(config)
        await line.suite.start("publisher")
        await line.joined(1)
        await line.insert("a", 1, 20)
        await line.rows()


async def test_a_reader_of_batches_has_one_lane_for_each_table(
    database: Database, own_nats: OwnNats, tmp_path: Path
) -> None:
    line = Line(database, await own_nats(), tmp_path, BATCH)
    await line.prepare()
    async with line.suite:
        await line.joined(1)
        await line.mixed(1, 20)
        await line.rows(by_table=True)
        marks = MemoryWatermarks()
        async with line.connected() as client, follow(client, Subscription(), marks) as consumer:
            while (event := await consumer.next(0.5)) is not None:
                await consumer.done(event)
        assert set(await marks.load()) == {f"{line.source}/public.a", f"{line.source}/public.b"}
