"""`headrace replay`: replays a range of the archive with the original positions.

Into JetStream: the events as JSON under a separate subject, chained, each once: an interrupted run
is started again and continues after what is stored. Into a database: the tables as the range leaves
them, with a mirror's state, stored in the same transaction; such a run can be resumed too. Readers
see whole transactions, unless the range ends within one. Never writes to the archive or the source.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import StreamConfig
from nats.js.errors import NotFoundError

from headrace.archive import RowEntry, WalFileInfo
from headrace.archive.entry import RowKind
from headrace.archive.metadata import TableInfo
from headrace.archive.payloads import exact_texts, table_of
from headrace.cli.archive.read import TableName
from headrace.cli.archive.replay_bases import BaseLoading, ReplayStart
from headrace.cli.archive.replay_range import ReplayError, ReplayRun
from headrace.cli.archive.replay_tables import altered, shape, unknown
from headrace.consumer import Watermark
from headrace.consumer.event import Event, of_message
from headrace.contract.subjects_and_ids import table_token
from headrace.errors import describe
from headrace.jetstream.connection import connect_once
from headrace.lsn import ORIGIN, Position
from headrace.mirror import CreateTable, Table, Target, opened
from headrace.mirror.event_steps import Resync, row_steps
from headrace.mirror.mirror_state import Book
from headrace.mirror.table import Phase, TableState
from headrace.mirror.target import RowMissingError, Step, TargetAwayError
from headrace.settings import Settings

# Messages in flight: the acknowledgements of one window are awaited together.
WINDOW = 500
# A larger transaction is written in parts, to bound the memory; it is committed as one.
ROWS_A_COMMIT = 5000


async def into_jetstream(settings: Settings, run: ReplayRun, stream: str, prefix: str) -> None:
    """Publish the range, except for what is stored already."""
    client = await connect_once(settings.nats, "headrace replay")
    try:
        await _publish(client.jetstream(), run, stream, prefix)
    except (NatsError, TimeoutError) as error:
        raise ReplayError(
            f"the stream {stream} accepted no more messages: {describe(error)}",
            remedy="Run it again with the same options: it resumes where it was.",
        ) from error
    finally:
        await client.close()


async def _publish(js: JetStreamContext, run: ReplayRun, stream: str, prefix: str) -> None:
    try:
        await js.stream_info(stream)
    except NotFoundError:
        await js.add_stream(StreamConfig(name=stream, subjects=[f"{prefix}.>"]))
    last_id, done = await _tail(js, stream)
    # Events up to `done` are read only because ids count the rows of a WAL record.
    due = (event for event in run.events(done, ids=True) if event.position > done)
    # Acknowledgements are awaited together, or each message would cost a round trip.
    while window := list(islice(due, WINDOW)):
        answers = []
        for event in window:
            # Each names its predecessor, so that nothing is stored after a hole.
            headers = {"Nats-Msg-Id": event.msg_id}
            if last_id:
                headers["Nats-Expected-Last-Msg-Id"] = last_id
            subject = f"{prefix}.{event.subject}"
            answers.append(
                await js.publish_async(subject, event.payload, stream=stream, headers=headers)
            )
            last_id = event.msg_id
        # A purged stream remembers ids within its duplicate window: it acknowledges such a message
        # without storing it.
        if any(answer.duplicate for answer in await asyncio.gather(*answers)):
            raise ReplayError(
                f"the stream {stream} had these events a moment ago, and treats them as duplicates",
                remedy=(
                    "Wait for its duplicate window, purge it and replay again; or replay into "
                    "another stream."
                ),
            )
        run.stored(len(window), window[-1].position)
    run.finish()


async def _tail(js: JetStreamContext, stream: str) -> tuple[str, Position]:
    """The id and position of a stream's last event."""
    state = (await js.stream_info(stream)).state
    # An empty stream has no predecessor to name, so the first message is stored unconditionally.
    if not state.messages:
        return "", ORIGIN
    message = await js.get_msg(stream, state.last_seq)
    last = next(iter(of_message(message.data or b"", message.subject or "", state.last_seq)))
    return str(last.payload["msg_id"]), last.position


async def into_database(run: ReplayRun, target_url: str) -> None:
    """Apply the range to the target's tables, except for what is applied already."""
    try:
        async with opened(target_url) as target:
            await _apply(run, target)
    except TargetAwayError as error:
        raise ReplayError(
            str(error.args[0]),
            remedy="Check the server that --into names, and run it again: it resumes where it was.",
        ) from error
    except RowMissingError as error:
        raise ReplayError(
            str(error.args[0]),
            remedy=(
                "The target lacks changes before this range: start at the table's "
                "beginning, with an empty target."
            ),
        ) from error


async def _apply(run: ReplayRun, target: Target) -> None:
    book = Book(target)
    await book.open()
    player = _Player(book, run)
    await _play(book, run, player)
    await player.commit()
    run.finish()


async def restore_one(run: ReplayRun, target: Target) -> Table:
    """Apply the range of one table in a single transaction, which leaves the table and nothing of a
    replay; its shape.
    """
    book = Book(target)
    await book.open()
    # Its position would be taken for the restored table's.
    if book.lanes or any(state.phase is not Phase.LOADING for state in book.tables.values()):
        raise ReplayError(
            "the target contains a mirror or a replay",
            remedy="Name another target with --into.",
        )
    player = _Player(book, run, at_once=True)
    await _play(book, run, player)
    # Before the commit: less than was asked for must not look like a restored table.
    run.finish()
    found = [state.live for state in book.tables.values() if state.live is not None]
    if not found:
        raise ReplayError(
            "the archive knows no row of the table from before that moment",
            remedy="Check the name of the table, or name a later moment.",
        )
    await player.commit()
    return found[0]


async def _play(book: Book, run: ReplayRun, player: _Player) -> None:
    """Load bases if the target is empty, then take the changes after them."""
    source = await asyncio.to_thread(run.source)
    done = player.done_of(source)
    if done == ORIGIN and not _is_begun(book, source):
        loading = BaseLoading(book, run)
        start = await loading.load()
        player.begin(source or start.source, start, loading.shown())
        done = start.position
    run.know((state.schema, state.name) for state in book.tables.values())
    for info, entry in run.changes(done):
        # Each source has its own position in the target.
        if entry.position > player.done_of(info.source) and not player.is_loaded(entry):
            if player.is_full and not player.continues(info, entry):
                await player.commit()
            player.take(info, entry)
        if len(player.steps) >= ROWS_A_COMMIT:
            await player.write()


def _is_begun(book: Book, source: str) -> bool:
    """Whether readers see tables of an earlier run."""
    return any(
        state.phase is Phase.FOLLOWING and state.source == source for state in book.tables.values()
    )


@dataclass(eq=False)
class _Player:
    """Steps that are not written yet, and the tables after them."""

    _book: Book
    _run: ReplayRun
    # Everything in one transaction, after which the target has no state of a replay.
    at_once: bool = False
    steps: list[Step] = field(default_factory=list)
    _count: int = 0
    _source: str = ""
    _last: Position = ORIGIN
    # The shapes in the file that is being read.
    _file_info: WalFileInfo | None = None
    _infos: dict[tuple[str | None, str | None, int | None], TableInfo] = field(default_factory=dict)
    # Loaded tables are shown with the next commit, at this LSN or at the range's end.
    _level_lsn: int = 0
    _shows: bool = False
    # By table: its base contains the changes before this LSN.
    _since: dict[TableName, int] | None = None

    def begin(self, source: str, start: ReplayStart, steps: Sequence[Step]) -> None:
        """Continue from what was loaded."""
        self.steps += steps
        self._source = source
        self._last = start.position
        self._level_lsn = start.level_lsn
        self._shows = bool(steps)

    def is_loaded(self, entry: RowEntry) -> bool:
        """Whether a change is in the table's base."""
        if self._since is None:
            states = self._book.tables.values()
            self._since = {(state.schema, state.name): state.since for state in states}
        # A table that comes later has no base.
        return entry.commit_lsn < self._since.get((entry.schema, entry.table), 0)

    def done_of(self, source: str) -> Position:
        mark = self._book.lanes.get(source)
        if mark is not None:
            return mark.position
        return ORIGIN

    def take(self, file_info: WalFileInfo, entry: RowEntry) -> None:
        info = self._info(file_info, entry)
        event = _event(file_info, info, entry)
        table = self._table(info, file_info.source)
        steps = row_steps(event, table)
        if isinstance(steps, Resync):
            raise ReplayError(f"{table.schema}.{table.name} at {event.position}: {steps.why}")
        self.steps += steps
        self._count += 1
        self._source = file_info.source
        self._last = event.position

    def _info(self, file_info: WalFileInfo, entry: RowEntry) -> TableInfo:
        if file_info is not self._file_info:
            self._file_info = file_info
            self._infos = {}
        name = (entry.schema, entry.table, entry.schema_version)
        if (known := self._infos.get(name)) is None:
            known = self._infos[name] = table_of(file_info, entry)
        return known

    def _table(self, info: TableInfo, source: str) -> Table:
        """Create or alter the table so that it has this row's shape."""
        state = self._book.tables.get(table_token(info.schema, info.table))
        if (
            state is not None
            and state.live is not None
            and 0 != state.relation_id == info.relation_id
            and state.version == info.version
        ):
            return state.live
        wanted = shape(info, self._run.called)
        if state is None:
            self._check_name(info)
        # It must not replace a table that somebody else made.
        if state is None or state.live is None:
            self.steps.append(CreateTable(wanted, replaces=False))
        elif state.relation_id not in {0, info.relation_id}:
            # It may have had rows before it got this name, or while it was not published.
            raise unknown(info, "it was replaced by another table of this name")
        elif state.live != wanted:
            self.steps.append(altered(state.live, wanted, info))
        self._book.put(
            TableState(
                info.schema,
                info.table,
                phase=Phase.FOLLOWING,
                live=wanted,
                version=info.version,
                source=source,
                relation_id=info.relation_id,
            )
        )
        return wanted

    def _check_name(self, info: TableInfo) -> None:
        """A renamed table comes with its next change, and its rows are under the old name."""
        for state in self._book.tables.values():
            if 0 != state.relation_id == info.relation_id:
                raise unknown(info, f"it was {state.schema}.{state.name} before")

    @property
    def is_full(self) -> bool:
        """Whether there is enough for a commit, and no table is ahead of the others."""
        level = self._last.lsn >= self._level_lsn
        return self._count >= ROWS_A_COMMIT and level and not self.at_once

    def continues(self, file_info: WalFileInfo, entry: RowEntry) -> bool:
        """Whether this change belongs to the transaction of the last one."""
        return file_info.source == self._source and entry.commit_lsn == self._last.lsn

    async def write(self) -> None:
        """Write the steps; readers don't see them before the commit."""
        async with self._book.lock:
            await self._book.write(self.steps)
        self.steps = []

    async def commit(self) -> None:
        """Commit what was taken together with the position."""
        if not (self._count or self._shows):
            return
        await self.write()
        async with self._book.lock:
            if self.at_once:
                for state in list(self._book.tables.values()):
                    self._book.remove(state)
            elif self._last > ORIGIN:
                self._book.keep_lanes({**self._book.lanes, self._source: Watermark(self._last)})
            await self._book.commit()
        self._shows = False
        self._run.stored(self._count, self._last)
        self._count = 0


def _event(file_info: WalFileInfo, info: TableInfo, entry: RowEntry) -> Event:
    """A row's event with what its effect on the table depends on, without ids, and without
    writing JSON that would be read again.
    """
    payload: dict[str, Any] = {}
    if entry.after_json is not None:
        payload["data"] = entry.after
    old = entry.before
    if old is not None:
        payload["old"] = old
    if entry.kind is RowKind.DELETE:
        known = old or {}
        payload["data"] = {
            column.name: known.get(column.name) if column.is_key else None
            for column in info.columns
        }
    if entry.exact_json is not None:
        payload |= exact_texts(entry)
    return Event(
        file_info.source,
        info.schema,
        info.table,
        entry.operation.upper(),
        entry.position,
        payload,
        "",
        0,
        file_info.source,
        closes=True,
    )
