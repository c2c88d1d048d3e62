"""A stop while a changed table is read from the catalog: neither sink takes a row of it in its
earlier shape, and nothing after it is stored or confirmed.
"""

from __future__ import annotations

import asyncio
import struct
import time
from types import SimpleNamespace
from typing import Any

import pytest
from nats.errors import TimeoutError as NatsTimeoutError

from headrace.archiver.archived_table import OPTIONS
from headrace.archiver.change_store import ArchiveChangeStore
from headrace.archiver.resume_point import ArchiveEnd
from headrace.bus import control
from headrace.bus.control import Confirm
from headrace.bus.frame import Opening
from headrace.bus.sender import FrameSender
from headrace.confirming.change_store import ChangeStore
from headrace.confirming.epoch_follower import EpochFollower
from headrace.confirming.relations import Relations
from headrace.contract import events
from headrace.jetstream.publishing.stream_tail import Tail
from headrace.postgres.connection import PostgresUnreachableError
from headrace.postgres.facts import TableFacts
from headrace.postgres.relation_facts import RelationFacts
from headrace.process.health import Health
from headrace.process.lifecycle import Scope
from headrace.publisher.assembler import Assembler
from headrace.publisher.change_store import StreamChangeStore
from headrace.publisher.doubt import Doubt
from headrace.publisher.event_delivery import Delivery
from headrace.publisher.lag import AckLag
from headrace.publisher.published_event import PublishedEvent
from headrace.publisher.resume_point import Progress, ResumePoint
from headrace.publisher.schema_book import SchemaBook
from headrace.settings import Settings, load

TABLE, TEXT = 16384, 25
FIRST_COMMIT, FIRST_END, SECOND_COMMIT = 1000, 1050, 3000
OPENING = {"slot": "headrace", "database": "d", "system_id": "1", "timeline": 1}
Entry = tuple[int, bytes]


def begin(commit: int) -> Entry:
    return commit, b"B" + struct.pack(">QqI", commit, 0, 7)


def ended(commit: int) -> Entry:
    return commit, b"C\0" + struct.pack(">QQq", commit, commit + 50, 0)


def table(column: bytes) -> Entry:
    described = b"\0\1\1" + column + b"\0" + struct.pack(">Ii", TEXT, -1)
    return 0, b"R" + struct.pack(">I", TABLE) + b"public\0rows\0d" + described


def row(text: bytes) -> Entry:
    value = struct.pack(">I", len(text)) + text
    return 0, b"I" + struct.pack(">I", TABLE) + b"N\0\1t" + value


ENTRIES = (
    *(begin(FIRST_COMMIT), table(b"was"), row(b"a"), row(b"b"), ended(FIRST_COMMIT)),
    *(begin(SECOND_COMMIT), row(b"c"), table(b"is")),
    *(row(b"d") for _ in range(20)),
    ended(SECOND_COMMIT),
)


class Line:
    """The wal-reader, and the client and subscription by which a confirmer reaches it: an epoch
    with one frame.
    """

    max_payload = 1 << 20
    is_closed = False
    is_connected = True

    def __init__(self, confirmer: str) -> None:
        self._sender = FrameSender(
            frozenset({confirmer}), frame_bytes_max=1 << 16, in_flight_bytes_max=1 << 20, life=1
        )
        self._frames: list[bytes] = []
        self.confirmed: list[int] = []

    async def publish(self, _: str, data: bytes) -> None:
        message = control.decode(data)
        self._sender.on_control(message, time.monotonic())
        if isinstance(message, Confirm):
            self.confirmed.append(message.confirmed_lsn)
            return
        opening = Opening(sessions=self._sender.sessions(), confirmed_lsn=50, **OPENING)  # type: ignore[arg-type]  # words and a number
        begun = self._sender.begin(opening, clock_ns=time.time_ns(), now=time.monotonic())
        for entry in ENTRIES:
            assert self._sender.fit(*entry)
        self._frames = [begun, *self._sender.flush()]

    async def subscribe(self, *_: object, **__: object) -> Line:
        return self

    async def unsubscribe(self) -> None: ...

    async def flush(self) -> None: ...

    @property
    def pending_msgs(self) -> int:
        return len(self._frames)

    async def next_msg(self, timeout: float) -> SimpleNamespace:
        if not self._frames:
            await asyncio.sleep(min(timeout, 0.01))
            raise NatsTimeoutError
        return SimpleNamespace(data=self._frames.pop(0))


class Pipe:
    """Acknowledges immediately."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.acked_at = self.stored_seq = 0
        self.ids_in_doubt = False

    @property
    def published(self) -> int:
        return len(self.messages)

    acked = published

    async def publish(self, message: Any) -> None:
        self.messages.append(message)

    async def publish_all(self, messages: list[Any]) -> None:
        self.messages += messages

    async def drain(self) -> None: ...

    async def catch_up(self) -> None: ...


class Written:
    """Progress that is written immediately."""

    busy = done = False

    def __init__(self) -> None:
        self.progress = Progress()
        self.confirmed_lsn = 0

    async def join(self, _: Opening) -> None: ...

    def begin(self, lsn: int, *_: object, **__: object) -> None:
        self.confirmed_lsn = max(self.confirmed_lsn, lsn)

    async def finish(self) -> None: ...


class Files:
    """Where the archiver's files go."""

    def __init__(self) -> None:
        self.end = ArchiveEnd("a", None, 0)
        self.rows: list[str] = []

    async def write(self, sealed: Any, *_: object) -> None:
        self.rows += sealed.rest.column("after").to_pylist()
        self.end = ArchiveEnd("a", None, max(self.end.known_lsn, sealed.end_lsn))

    async def pass_idle(self, lsn: int) -> None:
        self.end = ArchiveEnd("a", None, lsn)


@pytest.fixture
def settings() -> Settings:
    # A transaction of more than four rows is cut.
    return load({"HEADRACE_ARCHIVE_URL": "file:///a", "HEADRACE_ARCHIVE_FILE_ROWS_MAX": "2"})


@pytest.fixture
def scope(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Scope:
    """Stops while the second relation is read from the catalog, which then is out of reach."""
    made = Scope("confirmer", settings.process, asyncio.TaskGroup(), Health("confirmer"))
    readings = iter([TableFacts()])

    async def read(*_: object) -> TableFacts:
        facts = next(readings, None)
        if facts is None:
            made.stopping.set()
            raise PostgresUnreachableError("the catalog can't be read")
        return facts

    monkeypatch.setattr(RelationFacts, "_read", read)
    return made


async def followed(
    scope: Scope, settings: Settings, sink: ChangeStore, confirmer: str
) -> list[int]:
    """The LSNs that a confirmer with this sink confirmed up to its stop."""
    line = Line(confirmer)
    async with asyncio.timeout(30):
        await EpochFollower(scope, settings, line, sink, confirmer, "session").run()  # type: ignore[arg-type]  # as much of a client as it needs
    assert scope.stopping.is_set()
    return line.confirmed


async def test_the_archiver_stores_no_row_in_the_shape_before_one_that_a_stop_left_unread(
    scope: Scope, settings: Settings
) -> None:
    relations, files = Relations(settings, "test", OPTIONS), Files()
    sink = ArchiveChangeStore(scope, settings, relations, SimpleNamespace(), files)  # type: ignore[arg-type]  # nothing is parked
    confirmed = await followed(scope, settings, sink, "archiver")
    assert [text and str(text) for text in files.rows] == ['{"was":"a"}', '{"was":"b"}']
    assert max(confirmed) == FIRST_END


async def test_the_publisher_publishes_no_row_in_the_shape_before_one_that_a_stop_left_unread(
    scope: Scope, settings: Settings
) -> None:
    relations, pipe, book = Relations(settings, "test", OPTIONS), Pipe(), SchemaBook()
    start = ResumePoint(Progress(), frozenset(), Tail(1, 0, ""))
    stats = scope.health.stats

    async def as_it_is(items: list[Any]) -> list[Any]:
        return items

    line = SimpleNamespace(
        settings=settings,
        start=start,
        pipe=pipe,
        progress=Written(),
        book=book,
        shelf=SimpleNamespace(keep=lambda *_: asyncio.sleep(0)),
        compression=SimpleNamespace(of=as_it_is),
        damage=SimpleNamespace(check=lambda: None),
        delivery=Delivery(pipe, None, start, stats, "headrace"),  # type: ignore[arg-type]  # nothing is large
        assembler=lambda: Assembler("headrace", settings.format.encoding, book),
    )
    watch = SimpleNamespace(due=lambda *_: None)
    lag, doubt = AckLag(stats, scope.health.traces), Doubt(lambda: None)
    sink = StreamChangeStore(scope, line, relations, watch, lag, doubt)  # type: ignore[arg-type]  # as much as it takes
    confirmed = await followed(scope, settings, sink, "publisher")
    rows = [
        events.decode(message.payload)["data"]
        for message in pipe.messages
        if isinstance(message, PublishedEvent) and message.advances
    ]
    assert rows[:2] == [{"was": "a"}, {"was": "b"}]
    # The last row before the new shape may wait for its transaction's end.
    assert rows[2:] in ([], [{"was": "c"}])
    assert max(confirmed) == FIRST_END
