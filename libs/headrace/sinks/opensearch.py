"""OpenSearch as a sink: each row is a document of its table's index.

Every write has an external version that follows from the change's position in the source, so the
server refuses a write that is older than its document: changes may come again, in any order. The
position is a document of a separate index, written only if nobody else has written it since.

It promises that a commit's changes are stored before its position, and that what it can't apply
is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from headrace.consumer.watermark import Watermark
from headrace.contract.subjects_and_ids import split_table_token
from headrace.lsn import Position
from headrace.process.failpoint import failpoint
from headrace.sinks.bootstrap import copies
from headrace.sinks.opensearch_bulk import Bulk
from headrace.sinks.opensearch_client import Client, Login
from headrace.sinks.opensearch_indices import Index, Indices
from headrace.sinks.opensearch_mapping import Properties, properties_of
from headrace.sinks.opensearch_marks import StoredMarks
from headrace.sinks.opensearch_names import index_name, part_of, version_of
from headrace.sinks.opensearch_pending import Pending
from headrace.sinks.opensearch_schema import planned
from headrace.sinks.port import (
    COPIES_FOLLOW,
    Pace,
    Promise,
    RefusedError,
    SinkError,
    SinkOptions,
)
from headrace.sinks.routing import Record, RoutedTransaction
from headrace.sinks.target_options import check, read_options

# Of rows that wait for a commit.
PENDING_MAX = 20_000
# A change of a table's columns copies its documents to another index.
REBUILD_TIMEOUT_S = 6 * 3600.0
# The marks of dead letters that are delivered again begin with it.
REPLAYED = "replayed/"


@dataclass(frozen=True, slots=True)
class OpenSearchOptions(Login):
    """The options of a sink in OpenSearch, `[sink.options]` in headrace.toml."""

    shards: int = 1
    replicas: int = 1
    refresh_interval: str = "1s"
    # How long the server remembers the version of a deleted document.
    gc_deletes: str = "1h"
    # Of one request.
    bulk_bytes_max: int = 5_000_000
    # A larger document is refused; the server's own limit is 100 MB.
    document_bytes_max: int = 50_000_000


class OpenSearchSink:
    """One session of a sink in OpenSearch."""

    promise: ClassVar[Promise] = Promise.RIGHT_STATE
    keeps_marks: ClassVar[bool] = True
    pace: ClassVar[Pace] = Pace(timeout_s=REBUILD_TIMEOUT_S)

    def __init__(self, options: SinkOptions) -> None:
        chosen = read_options(OpenSearchOptions, options)
        for name in ("shards", "bulk_bytes_max", "document_bytes_max"):
            check(getattr(chosen, name) > 0, options.name, name, "Use 1 or more.")
        check(chosen.replicas >= 0, options.name, "replicas", "Use 0 or more.")
        check(
            re.fullmatch(r"[1-9][0-9]*[smhd]", chosen.gc_deletes) is not None,
            options.name,
            "gc_deletes",
            "It is a duration such as 1h or 30m.",
        )
        self._describe = options.describe
        self._client = Client(options, chosen)
        self._marks = StoredMarks(self._client, options.name, options.stream)
        self._indices = Indices(
            self._client,
            options.name,
            {
                "index.number_of_shards": str(chosen.shards),
                "index.number_of_replicas": str(chosen.replicas),
                "index.refresh_interval": chosen.refresh_interval,
                "index.gc_deletes": chosen.gc_deletes,
            },
            self._confirm,
        )
        self._bulk = Bulk(self._client, chosen.bulk_bytes_max, chosen.document_bytes_max)
        # By index; a copy's rows may be for one that readers do not see yet.
        self._pending: dict[str, Pending] = {}
        # The part of a transaction to which the last record belongs.
        self._part: tuple[int, int] = (0, 0)
        # A record that is older than its index, since the last commit.
        self._skipped: Record | None = None
        self._remedy = f"Run `headrace sinks reset {options.name} --to snapshot`."

    async def open(self) -> Mapping[str, Watermark]:
        """Take over the marks, which ends an older process, and find the sink's indices."""
        await self._client.connect()
        marks = await self._marks.open()
        self._indices.session = self._marks.session
        await self._indices.load()
        return marks

    async def check(self) -> str:
        """Log in, and ask for the server's version."""
        await self._client.connect()
        try:
            found = (await self._client.ask("GET", "/")).body
        finally:
            await self._client.close()
        version = found.get("version") or {}
        kind = version.get("distribution") or "Elasticsearch"
        return f"{kind} {version.get('number', 'of unknown version')} accepts the login"

    async def write(self, transactions: Sequence[RoutedTransaction]) -> None:
        """Keep the rows' last states until the commit; a large transaction is written in parts."""
        for transaction in transactions:
            for record in transaction.records:
                position = record.event.position
                part = (position.lsn, part_of(position))
                if part != self._part and self._waiting >= PENDING_MAX:
                    await self._flush()
                self._part = part
                await self._apply(record)

    async def commit(self, marks: Mapping[str, Watermark]) -> None:
        """Write the rows, then the marks."""
        self._refuse_what_is_over(marks)
        await self._flush()
        # Before the marks: a change that follows must not go to the former index. If the process
        # ends in between, the last chunk comes again, and its rows have versions already.
        await self._begin_copies(marks)
        await self._end_copies(marks)
        failpoint("sink.half_committed")
        await self._marks.store(marks)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _confirm(self) -> None:
        await self._marks.confirm()

    @property
    def _waiting(self) -> int:
        return sum(len(one.actions) for one in self._pending.values())

    async def _flush(self) -> None:
        await self._write(list(self._pending))

    async def _write(self, writers: Sequence[str]) -> None:
        """Write what waits for these indices."""
        actions = {name: self._pending.pop(name).clear() for name in writers}
        if any(actions.values()):
            # Just before the documents: an older process must not add any.
            await self._confirm()
            await self._bulk.write(actions)

    async def _apply(self, record: Record) -> None:
        event = record.event
        match event.operation:
            case "GAP":
                if event.payload.get("reason") != COPIES_FOLLOW:
                    raise SinkError(
                        "Changes were lost before they reached the sink", remedy=self._remedy
                    )
            case "SCHEMA":
                await self._change(record)
            case "TRUNCATE":
                index = await self._index_of(record)
                if not self._is_done(index, record):
                    # Rows that the same transaction inserts afterwards have a later position.
                    lsn, seq = event.position
                    await self._empty(index, Position(lsn, seq + 1))
            case "INSERT" | "UPDATE" | "DELETE":
                index = await self._index_of(record)
                if not self._is_done(index, record):
                    self._pending.setdefault(index.writer, Pending()).take(record)

    def _is_done(self, index: Index, record: Record) -> bool:
        """Whether the index has the change already, or what came after it."""
        if record.event.position >= index.floor:
            return False
        self._skipped = record
        return True

    async def _index_of(self, record: Record) -> Index:
        """The index for a record, which is created for the first one."""
        event = record.event
        alias = index_name(record.destination)
        # Only rows of the copy itself: changes follow after it.
        staged = self._indices.staged.get(alias)
        if staged is not None and event.payload.get("snapshot"):
            return staged
        index = self._current(alias, event.schema, event.table)
        if index is None:
            index = Index(alias, event.schema, event.table)
            index = replace(index, properties=await self._properties(index))
            await self._indices.begin(index)
        return index

    def _current(self, alias: str, schema: str, table: str) -> Index | None:
        """The index that readers use; raises if the sink's `index` mixes tables."""
        remedy = "The sink's `index` must consist of text, {source}, {schema} and {table}."
        index = self._indices.current.get(alias)
        if index is None:
            other = self._indices.of_table(schema, table)
            if other is not None:
                both = f"{other.alias} and {alias}"
                raise SinkError(f"{schema}.{table} would be in {both}", remedy=remedy)
        elif (index.schema, index.table) != (schema, table):
            both = f"{index.schema}.{index.table} and {schema}.{table}"
            raise SinkError(f"The index {alias} would have the rows of {both}", remedy=remedy)
        return index

    async def _properties(self, index: Index) -> Properties:
        """The fields of a table's columns, as far as they are known."""
        found = None
        if self._describe is not None:
            found = await self._describe(index.schema, index.table)
        return properties_of((found or {}).get("columns") or ())

    async def _empty(self, index: Index, floor: Position, **changed: Any) -> None:
        self._pending.pop(index.writer, None)
        await self._indices.empty(index, floor, **changed)

    async def _change(self, record: Record) -> None:
        """Apply a schema event, unless the index has it."""
        event, payload = record.event, record.event.payload
        alias = index_name(record.destination)
        index = self._current(alias, event.schema, event.table)
        version = int(payload.get("version", 0))
        if index is not None and (
            self._is_done(index, record) or index.has_shape(version, event.position)
        ):
            return
        known = index.properties if index is not None else {}
        plan = planned(payload, known, record.destination, self._remedy)
        changed: dict[str, Any] = {"applied": version, "shaped": event.position}
        changed["properties"] = plan.properties
        if index is None:
            if not plan.empties:
                await self._indices.begin(Index(alias, event.schema, event.table, **changed))
        elif plan.empties:
            await self._empty(index, event.position, applied=version, shaped=event.position)
        elif plan.steps:
            # They have the shape of before, and are changed with the documents.
            if index.writer in self._pending:
                await self._write([index.writer])
            # A row that has changed before in the same transaction may change again.
            limit = version_of(event.position) - 1
            following = index.following(floor=event.position, **changed)
            await self._indices.rebuild(index, following, limit, plan.change, self._bulk.send_lines)
        else:
            # A field's type can't change: the index may have been described more recently.
            changed["properties"] = plan.properties | index.properties
            await self._indices.describe(replace(index, **changed))

    async def _begin_copies(self, marks: Mapping[str, Watermark]) -> None:
        """Prepare an index for each copy of a table that has one already."""
        for copy in copies(marks):
            index = self._indices.of_table(*split_table_token(copy.token))
            if not copy.snapshot_id or copy.chunks_done or index is None:
                continue
            staged = self._indices.staged.get(index.alias)
            if copy.snapshot_id in {index.copy, staged.copy if staged else ""}:
                continue
            # The table's shape may have changed in a way that its events do not describe.
            following = index.following(
                floor=Position(copy.lsn, 0),
                copy=copy.snapshot_id,
                applied=0,
                properties=await self._properties(index),
            )
            await self._indices.stage(following)

    async def _end_copies(self, marks: Mapping[str, Watermark]) -> None:
        """Show readers the copies that are complete."""
        done = {copy.snapshot_id for copy in copies(marks) if copy.is_done}
        for staged in list(self._indices.staged.values()):
            if staged.copy in done:
                await self._indices.publish(staged)

    def _refuse_what_is_over(self, marks: Mapping[str, Watermark]) -> None:
        """A dead letter that is older than its index would be taken for delivered."""
        skipped, self._skipped = self._skipped, None
        if skipped is not None and any(lane.startswith(REPLAYED) for lane in marks):
            raise RefusedError(
                skipped,
                "its table was truncated, copied or changed since; drop the dead letter, and write "
                "the row again if it is missing",
            )
