"""Compares an OpenSearch sink with its source, table by table, while both move.

The procedure: a snapshot of the source gives the LSN; the sink's stored position shows when it has
written everything before it; then all documents are read. A row that the stream has changed since
the snapshot is not compared, because its document may be newer. Nothing is held up.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
import psycopg
from nats.aio.client import Client
from nats.js.errors import NotFoundError

from headrace.consumer import Event, MemoryWatermarks, Subscription, follow
from headrace.contract.subjects_and_ids import CDC, split_table_token, table_token
from headrace.contract.table_patterns import names_table
from headrace.errors import HeadraceError
from headrace.mirror.source_values import SourceValues
from headrace.postgres.quoting import quote_table
from headrace.settings import Settings
from headrace.sinks.bootstrap import copies
from headrace.sinks.configuration import SinkConfiguration
from headrace.sinks.opensearch_names import field_name, id_of_key
from headrace.sinks.port import SEEN, SinkAwayError
from headrace.sinks.routing import encoded_key
from headrace.spark.request import Condition, SnapshotRequest
from headrace.spark.source import HeldSnapshot, TableRefusedError, held_snapshot
from headrace.verify import source
from headrace.verify.check import (
    HOLD_S,
    LOOK_S,
    REPAIRS_MAX,
    NotThereError,
    Patience,
    Verdict,
)
from headrace.verify.comparison import HashedHere, compared
from headrace.verify.digest import Difference, Row
from headrace.verify.document_repair import DocumentRepair
from headrace.verify.documents import Aliases, Documents, NoIndexError
from headrace.verify.forms import Form, in_sqlite
from headrace.verify.sql_rows import SqlRows
from headrace.verify.types import types_of

_ROW_OPERATIONS = frozenset({"INSERT", "UPDATE", "DELETE", "TRUNCATE"})
_ID = "_id"
# How long to wait for the next change that the stream has.
TAKE_S = 10.0
# Keys that are not compared, in memory.
_MOVING_MAX = 1_000_000


class PartialSinkError(HeadraceError):
    """The sink does not deliver every row as it is."""

    remedy = "Verify a sink without `operations` and `function`."


class RestlessIndexError(HeadraceError):
    """The table changes in a way that looks like a difference."""

    retry = True
    remedy = "Verify it when it changes less."


@dataclass(slots=True)
class SearchVerifier:
    """Compares one sink's indices with the settings' source."""

    settings: Settings
    nats: Client
    documents: Documents
    patience: Patience = field(default_factory=Patience)
    # Shows the documents that differ before they are written; None while nothing is to be repaired.
    _before_repair: Callable[[Verdict], None] | None = None
    _repaired: int = 0

    @property
    def sink(self) -> SinkConfiguration:
        return self.documents.sink

    def check(self) -> None:
        """Raise if the sink's documents are not the source's rows."""
        operations = {one.upper() for one in self.sink.operations}
        if self.sink.function or (operations and not operations >= _ROW_OPERATIONS):
            raise PartialSinkError(f"{self.sink.name} leaves out rows, or changes them")

    def check_repairs(self) -> None:
        """Every sink whose documents are compared can be repaired."""

    async def repair(self, token: str, show: Callable[[Verdict], None]) -> Verdict:
        """Compare; write the documents that differ, after showing them, and compare again."""
        verdict = await self._settled(*split_table_token(token))
        if verdict.equal:
            return verdict
        # DDL that no row follows reaches the sink late.
        await asyncio.sleep(self.patience.again_s)
        self._before_repair = show
        self._repaired = 0
        found: tuple[Difference, ...] = ()
        try:
            # Only a part of very many differences is found at a time.
            for _ in range(REPAIRS_MAX):
                verdict = await self._settled(*split_table_token(token))
                # The same ones again: another program writes, or two rows have one ID.
                if verdict.equal or verdict.why or verdict.found == found:
                    break
                found = verdict.found
        finally:
            self._before_repair = None
        if not verdict.equal:
            verdict = await self.table(token)
        return replace(verdict, repaired=self._repaired)

    async def tokens(self) -> list[str]:
        """The tables that have an index."""
        found = sorted(await self.documents.tables())
        if not found:
            raise NoIndexError(f"{self.sink.name} has no index")
        return [table_token(*one) for one in found]

    async def table(self, token: str) -> Verdict:
        """One table's verdict; a difference is checked again before it is reported."""
        verdict = await self._settled(*split_table_token(token))
        if not verdict.equal:
            # DDL that no row follows reaches the sink late.
            await asyncio.sleep(self.patience.again_s)
            verdict = await self._settled(*split_table_token(token))
        return verdict

    async def _settled(self, schema: str, name: str) -> Verdict:
        deadline = time.monotonic() + self.patience.wait_s
        while True:
            try:
                return await self._once(schema, name, deadline)
            except RestlessIndexError:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(LOOK_S)

    async def _once(self, schema: str, name: str, deadline: float) -> Verdict:
        aliases = (await self.documents.tables()).get((schema, name))
        token = table_token(schema, name)
        if aliases is None:
            return Verdict(token, 0, why=f"{self.sink.name} has no index of it")
        tests = self.sink.where_of(schema, name)
        request = SnapshotRequest(
            token, schema, name, conditions=tuple(Condition(*test) for test in tests)
        )
        # Changes that commit after the snapshot are published behind it.
        start = await self._last_seq()
        settings = source.patient(self.settings, HOLD_S)
        try:
            async with held_snapshot(settings, request) as held:
                await self._reached(held.lsn, token, deadline)
                await self.documents.refresh(aliases.read)
                verdict, repair = await self._compared(held, aliases, token, start)
        except TableRefusedError as error:
            return Verdict(token, 0, why=f"the source does not have it: {error}")
        if self._before_repair is not None and repair is not None:
            self._before_repair(verdict)
            self._repaired += await _written(repair)
        return verdict

    async def _last_seq(self) -> int:
        info = await self.nats.jetstream().stream_info(self.settings.streams.cdc)
        return int(info.state.last_seq)

    async def _reached(self, lsn: int, token: str, deadline: float) -> None:
        """Wait until the sink has written every change of the table before an LSN."""
        while await source.confirmed_lsn(self.settings) < lsn:
            self._check_time(deadline, "the stream")
            await asyncio.sleep(LOOK_S)
        last = await self._last_seq_of(token)
        while True:
            marks = await self.documents.marks()
            lanes = [marks[one] for one in (SEEN, self.settings.source.slot) if one in marks]
            # A first copy lacks rows; a later one is loaded into another index.
            copying = any(copy.token == token and not copy.is_done for copy in copies(marks))
            if not copying and any(mark.stream_seq >= last for mark in lanes):
                return
            self._check_time(deadline, f"the sink {self.sink.name}")
            await asyncio.sleep(LOOK_S)

    @staticmethod
    def _check_time(deadline: float, what: str) -> None:
        if time.monotonic() > deadline:
            raise NotThereError(f"{what} did not reach the source's LSN")

    async def _compared(
        self, held: HeldSnapshot, aliases: Aliases, token: str, start: int
    ) -> tuple[Verdict, DocumentRepair | None]:
        """The verdict, and how to repair the differences, if that is asked for."""
        schema, name = split_table_token(token)
        kept = self._columns_of(schema, name)
        key = self.sink.key or held.key
        if not key:
            return Verdict(token, held.lsn, why="it has no key"), None
        names = [c.name for c in held.columns if kept is None or c.name in {*kept, *key}]
        async with source.in_snapshot(self.settings, held) as connection:
            types = await types_of(connection, quote_table(schema, name))
            relations = [f"ONLY {storage.relation}" for storage in held.storages]
            where = " AND ".join(f"({condition})" for condition in held.conditions) or "true"
            rows = SqlRows(connection, relations, names, self._source_error, key, where)
            values = SourceValues(held, key, self.settings.format.arrays)
            places = [names.index(one) for one in key]

            async def of_source() -> AsyncIterator[list[Row]]:
                async for some in rows.rows():
                    yield [
                        (_id_of(values.of(row[place] for place in places), key), *row)
                        for row in some
                    ]

            lists = self.settings.format.arrays == "list"
            pairs = [in_sqlite(types[one], lists=lists) for one in names]
            # Filled before it is asked: by then all documents are read.
            moving: set[Row] = set()

            async def of_index() -> AsyncIterator[list[Row]]:
                async for some in self.documents.rows(aliases.read, types, names):
                    yield some
                await self._add_moving(moving, token, held.lsn, start, key)

            fields = [_ID, *map(field_name, names)]
            outcome = await compared(
                HashedHere(of_source, [None, *(pair[0] for pair in pairs)]),
                HashedHere(of_index, [None, *(_careful(pair[1]) for pair in pairs)]),
                fields,
                [_ID],
                moving,
            )
            repair = None
            if self._before_repair is not None and outcome.found:
                arrays = self.settings.format.arrays
                documents = self.documents
                repair = DocumentRepair(
                    documents.client, documents.options, aliases.write, held.lsn
                )
                wanted = frozenset(str(one.key[0]) for one in outcome.found)
                await repair.prepare(wanted, of_source(), SourceValues(held, names, arrays))
        found = outcome.found
        return Verdict(token, held.lsn, outcome.rows, outcome.ranges, found, key=(_ID,)), repair

    def _columns_of(self, schema: str, name: str) -> frozenset[str] | None:
        """The columns that the sink delivers in addition to the key's; None: all."""
        for pattern, names in self.sink.columns.items():
            if names_table(pattern, schema, name):
                return frozenset(names)
        return None

    async def _add_moving(
        self, moving: set[Row], token: str, lsn: int, start: int, key: tuple[str, ...]
    ) -> None:
        """The documents of rows that the stream has changed since the snapshot."""
        end = await self._last_seq_of(token)
        if end <= start:
            return
        names = self.settings.streams
        subscription = Subscription(
            names.cdc, (f"{CDC}.{token}.>",), start_seq=start + 1, state_bucket=names.state
        )
        async with follow(self.nats, subscription, MemoryWatermarks()) as consumer:
            # No further: the documents were read before, and the stream may move all the time.
            while consumer.seen_seq < end:
                events = await consumer.take(TAKE_S)
                if not events:
                    raise RestlessIndexError(f"the stream does not deliver the changes of {token}")
                for event in events:
                    if event.position.lsn >= lsn:
                        moving.update(_documents_of(event, key))
                if len(moving) > _MOVING_MAX:
                    raise RestlessIndexError(
                        f"more than {_MOVING_MAX:,} rows of {token} have changed"
                    )

    async def _last_seq_of(self, token: str) -> int:
        """Of the table's last event; 0 if the stream has none."""
        js = self.nats.jetstream()
        try:
            last = await js.get_last_msg(self.settings.streams.cdc, f"{CDC}.{token}.>")
        except NotFoundError:
            return 0
        return int(last.seq or 0)

    def _source_error(self, error: psycopg.Error) -> HeadraceError:
        return source.explained(error, self.settings)


async def _written(repair: DocumentRepair) -> int:
    try:
        return await repair.write()
    except SinkAwayError as error:
        # Its index was replaced meanwhile, perhaps: then it is compared again.
        raise RestlessIndexError(str(error)) from error


def _documents_of(event: Event, key: tuple[str, ...]) -> list[Row]:
    if event.operation not in {"INSERT", "UPDATE", "DELETE"}:
        raise RestlessIndexError(f"{event.schema}.{event.table} is changed as a whole")
    rows = [row for row in (event.data, event.old) if row]
    found: list[Row] = [(_id_of(row, key),) for row in rows if row.keys() >= set(key)]
    if not found:
        raise RestlessIndexError(f"a change of {event.schema}.{event.table} names no key")
    return found


def _id_of(row: Mapping[str, Any], key: tuple[str, ...]) -> str:
    return id_of_key(orjson.loads(encoded_key(row, key)))


def _careful(form: Form) -> Form:
    """Values that no column has are in tuples, and stay as they are."""
    return lambda value: value if isinstance(value, tuple) else form(value)
