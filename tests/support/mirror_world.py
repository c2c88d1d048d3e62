"""A mirror in a world of one thread: the real mirror, consumer and SQLite file, on a simulated
nats-server, with a source that is a plain dictionary.

Time is a number (`tests.simulation.clockwork`), so waits cost nothing and every history can be
repeated. The source's transactions are written as events by hand. After each commit of the mirror,
SQL reads the file: readers must see one moment of the source, and never an earlier one than before.
"""

from __future__ import annotations

import asyncio
import copy
import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack

from headrace.contract.subjects_and_ids import table_token
from headrace.lsn import format_lsn
from headrace.mirror import Mirror
from headrace.mirror.sqlite import SqliteTarget
from headrace.mirror.table import Phase
from headrace.mirror.target import InsertRows, Step
from tests.simulation.clockwork import Process
from tests.simulation.stream import Stored, Stream
from tests.support.virtual_nats import PATIENCE_S, STREAMS, VirtualNats

Row = dict[str, Any]
Body = dict[str, Any]
SOURCE = "s"
# From one commit's LSN to the next one's.
STEP = 16


@dataclass(slots=True)
class SourceTable:
    """A table of the source. `id` is its key."""

    columns: dict[str, str]
    rows: dict[int, Row] = field(default_factory=dict)
    version: int = 1
    schema: str = "public"
    replica_identity: str = "d"

    def described(self, name: str) -> Body:
        """As a schema event or the schemas bucket has it."""
        return {
            "schema": self.schema,
            "table": name,
            "version": self.version,
            "columns": [
                {"name": column, "data_type": kind} for column, kind in self.columns.items()
            ],
            "primary_key": ["id"],
            "identity": ["id"],
            "replica_identity": self.replica_identity,
        }


Moment = dict[str, SourceTable]


class Source:
    """The tables, and all their moments: what they were after each commit."""

    def __init__(self) -> None:
        self.tables: Moment = {}
        self.versions: dict[str, int] = {}
        self.end = 0x1000
        self.moments: list[Moment] = [{}]

    def create(self, name: str, rows: int = 0, /, schema: str = "public", **columns: str) -> None:
        made = SourceTable({"id": "integer", **(columns or {"name": "text"})}, schema=schema)
        self.tables[name] = made
        for number in range(rows):
            made.rows[number] = {
                column: f"{column} {number}" if kind == "text" else number
                for column, kind in made.columns.items()
            }
        self.remember()

    def remember(self) -> None:
        self.moments.append(copy.deepcopy(self.tables))


class Transaction:
    """Changes of one commit: each changes the source's tables, and becomes an event."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.events: list[Body] = []

    def _table(self, name: str) -> SourceTable:
        return self._source.tables[name]

    def _event(self, name: str, operation: str, **more: Any) -> None:
        about = {"table": name, "schema": self._table(name).schema, "operation": operation}
        self.events.append({**about, **more})

    def insert(self, name: str, /, **row: Any) -> None:
        whole = {**dict.fromkeys(self._table(name).columns), **row}
        self._table(name).rows[row["id"]] = whole
        self._event(name, "INSERT", data=dict(whole))

    def update(self, name: str, key: int, /, **data: Any) -> None:
        row = self._table(name).rows.pop(key)
        row = {**row, **data}
        self._table(name).rows[row["id"]] = row
        old = {"old": {"id": key}} if row["id"] != key else {}
        self._event(name, "UPDATE", data=dict(row), **old)

    def delete(self, name: str, key: int) -> None:
        del self._table(name).rows[key]
        self._event(name, "DELETE", data={"id": key}, old={"id": key})

    def truncate(self, name: str) -> None:
        self._table(name).rows.clear()
        self._event(name, "TRUNCATE", data={})

    def message(self) -> None:
        """One of pg_logical_emit_message, which concerns no table."""
        self.events.append({"operation": "MESSAGE", "prefix": "p", "content": "x"})

    def add_column(self, name: str, column: str, value: Any = None) -> None:
        table = self._table(name)
        table.columns[column] = "text"
        for row in table.rows.values():
            row[column] = value
        filled = {} if value is None else {"filled": value, "filled_text": value}
        self._schema(name, {"change": "column_added", "column": column, **filled})

    def drop_column(self, name: str, column: str) -> None:
        del self._table(name).columns[column]
        for row in self._table(name).rows.values():
            del row[column]
        self._schema(name, {"change": "column_dropped", "column": column})

    def rename_column(self, name: str, before: str, now: str) -> None:
        table = self._table(name)
        table.columns = {now if one == before else one: kind for one, kind in table.columns.items()}
        for key, row in table.rows.items():
            table.rows[key] = {now if one == before else one: value for one, value in row.items()}
        self._schema(name, {"change": "column_renamed", "from": before, "column": now})

    def rewrite(self, name: str) -> None:
        """The rows change, and no event tells how."""
        for row in self._table(name).rows.values():
            row["name"] = f"{row['name']}!"
        self._schema(name, {"change": "table_rewritten"}, resync=True)

    def drop(self, name: str) -> None:
        self._table(name).columns = {}
        self._schema(name, {"change": "table_dropped"})
        # A table that is created again under this name continues its versions.
        self._source.versions[name] = self._table(name).version
        del self._source.tables[name]

    def rename(self, name: str, now: str) -> None:
        table = copy.deepcopy(self._table(name))
        self._table(name).columns = {}
        self._schema(name, {"change": "table_renamed", "to": f"public.{now}"})
        del self._source.tables[name]
        self._source.tables[now] = table
        self._schema(now, {"change": "table_renamed"})

    def create(self, name: str, /, **columns: str) -> None:
        made = SourceTable({"id": "integer", **(columns or {"name": "text"})})
        made.version = self._source.versions.get(name, 0)
        self._source.tables[name] = made
        self._schema(name, {"change": "table_created"})

    def _schema(self, name: str, *changes: Body, resync: bool = False) -> None:
        table = self._table(name)
        table.version += 1
        about = table.described(name)
        self._event(name, "SCHEMA", **{**about, "changes": list(changes), "resync": resync})


class WatchedTarget(SqliteTarget):
    """The file; what readers see is compared after each commit. `refuses` sees each step first."""

    def __init__(self, world: MirrorWorld) -> None:
        super().__init__(str(world.path))
        self._world = world
        self._loading: Counter[str] = Counter()

    def _load(self) -> dict[str, str]:
        self._world.writes.clear()
        self._loading.clear()
        return super()._load()

    def _write(self, steps: Sequence[Step]) -> None:
        self._world.refuses(steps)
        super()._write(steps)
        self._world.writes.update(step.table.name for step in steps)
        inserts = [step for step in steps if isinstance(step, InsertRows)]
        self._loading.update(
            {step.table.name: len(step.rows) for step in inserts if step.table.staging}
        )

    def _commit(self, marks: Mapping[str, str | None]) -> None:
        self._world.refuses_commit()
        super()._commit(marks)
        self._world.writes.clear()
        self._world.loaded.update(self._loading)
        self._loading.clear()
        self._world.look()

    def die(self) -> None:
        """The operating system closes the files of a process that was killed."""
        if self._connection is not None:
            self._connection.close()


class MirrorWorld(VirtualNats):
    def __init__(
        self,
        folder: Path,
        seed: int = 0,
        tables: tuple[tuple[str, str], ...] = (),
        *,
        fresh: bool = False,
    ) -> None:
        super().__init__(seed)
        self.path = folder / "mirror.db"
        self.server.on_stored = self._on_stored
        self.source = Source()
        self.mirrored = tables
        self.fresh = fresh
        self.process: Process | None = None
        self.mirror: Any = None
        # Called with the steps before they are written, and before each commit.
        self.refuses: Callable[[Sequence[Step]], None] = lambda _: None
        self.refuses_commit: Callable[[], None] = lambda: None
        # By table: why the source lets nobody copy it; whether requests get no answer at all.
        self.rejected: dict[str, str] = {}
        self.responds = True
        self.joined = False
        self.fails_snapshots = 0
        # How long an answer takes, and a copy.
        self.answer_s = 0.01
        self.copy_s = 0.05
        # Whether the bucket of schemas keeps up with the stream.
        self.keeps_schemas = True
        self.chunk_rows = 3
        # By table: steps since the last commit, and rows put into its copies.
        self.writes: Counter[str] = Counter()
        self.loaded: Counter[str] = Counter()
        # The tables that readers saw after each commit, and the moment that they belong to.
        self.moment = 0
        # Whether these moments are compared: not where a table is parked, or the file was changed.
        self.checks = True
        self.commits = 0
        self.violations: list[str] = []
        self.snapshots: list[str] = []
        self.ended: list[BaseException] = []
        self.large: dict[str, bytes] = {}
        self._sent_at = 0.0
        self._progress = (0, 0)
        self._reader: sqlite3.Connection | None = None

    # The source.

    def rewrite(self, name: str, *others: str, key: int) -> None:
        """Make the mirror copy a table again: rewrite it, and insert rows into it and others."""
        with self.transaction() as tx:
            tx.rewrite(name)
            for each in (name, *others):
                tx.insert(each, id=key, name="x")

    @contextmanager
    def transaction(
        self, *, lost: bool = False, arrays: bool = False, send: bool = True
    ) -> Iterator[Transaction]:
        """One commit; `lost` in a gap, or published as arrays, one for each table."""
        made = Transaction(self.source)
        yield made
        lsn = self.source.end
        self.source.end += STEP
        self.source.remember()
        for seq, event in enumerate(made.events):
            last = seq == len(made.events) - 1
            event["source"] = SOURCE
            event["tx"] = {"xid": lsn, "lsn": lsn, "ts": None, "seq": seq, "last": last}
        if lost or not send:
            return
        if arrays:
            self._send_arrays(made.events)
        else:
            for event in made.events:
                self.send(event)

    def changed(self, *names: str, key: int = 100) -> None:
        """A transaction that inserts a row into each of these tables."""
        with self.transaction() as tx:
            for name in names:
                tx.insert(name, id=key, name="new")

    def send(self, body: Body | list[Body], headers: Mapping[str, str] | None = None) -> None:
        """Publish an event or an array, a moment after the one before."""
        self._sent_at = max(self._sent_at, self.loop.now) + self.chance.choice(
            (0.0, 0.0, 0.001, 0.03)
        )
        self.server.at(self._sent_at, self._publish, (body, headers))

    def _publish(self, message: tuple[Body | list[Body], Mapping[str, str] | None]) -> None:
        body, headers = message
        one = body[0] if isinstance(body, list) else body
        seq = self.server.put(_subject(body), json.dumps(body).encode(), headers)
        if one["operation"] == "SCHEMA" and self.keeps_schemas:
            token = table_token(one["schema"], one["table"])
            self.server.put(f"$KV.{STREAMS.schemas}.{token}", json.dumps(one).encode())
        tx = (body[-1] if isinstance(body, list) else body)["tx"]
        if tx["last"] and not isinstance(body, list):
            self._progress = (tx["lsn"] + STEP, seq)
            self.server.at(self.loop.now + self.chance.random(), self._keep_progress, None)

    def _keep_progress(self, _: object) -> None:
        """Store the publisher's resume point."""
        lsn, seq = self._progress
        body = msgpack.packb({"confirmed_lsn": lsn, "stream_seq": seq})
        self.server.put(f"$KV.{STREAMS.state}.progress.{SOURCE}", body)

    def _send_arrays(self, events: list[Body]) -> None:
        """One array for each table; the last one says that everything before is complete."""
        names = list(dict.fromkeys(event["table"] for event in events))
        for name in names:
            headers = None
            if name == names[-1]:
                headers = {"Headrace-Complete": str(self.source.end)}
            self.send([event for event in events if event["table"] == name], headers)

    def gap(self, reason: str = "slot_moved", source: str = SOURCE) -> None:
        """Report what was lost up to here."""
        tx = {"xid": 0, "lsn": self.source.end, "ts": None, "seq": 0, "last": False}
        up_to = format_lsn(self.source.end)
        self.send(
            {"operation": "GAP", "source": source, "tx": tx, "up_to": up_to, "reason": reason}
        )

    def create(self, name: str, rows: int = 0, /, **more: str) -> None:
        """A table that the source publishes already."""
        self.source.create(name, rows, **more)
        self.republish(name)
        self._progress = (self.source.end, self.server.streams["CDC"].last_seq)
        self._keep_progress(None)

    def republish(self, name: str) -> None:
        """Store the table's shape in the bucket of schemas."""
        table = self.source.tables[name]
        token = table_token(table.schema, name)
        self.server.put(
            f"$KV.{STREAMS.schemas}.{token}", json.dumps(table.described(name)).encode()
        )

    # The responder.

    def _on_stored(self, stream: Stream, stored: Stored) -> None:
        if stream.name == "SNAPSHOT_REQUESTS" and self.responds:
            token = stored.subject.split(".", 2)[2]
            self.server.at(self.loop.now + self.answer_s, self._answer, (token, stored))

    def _answer(self, message: tuple[str, Stored]) -> None:
        token, request = message
        snapshot_id = f"snap-{len(self.snapshots)}"
        self.snapshots.append(token)
        answer: Body = {"snapshot_id": snapshot_id, "reason": None}
        answer["status"] = "joined" if self.joined else "accepted"
        refused = token in self.rejected or token not in self._tokens()
        if refused:
            answer |= {"status": "rejected", "reason": self.rejected.get(token, "no such table.")}
        self._tell(request.headers["Headrace-Reply"], answer)
        if not refused:
            copied = copy.deepcopy(self.source.tables[self._tokens()[token]]), self.source.end
            self.server.at(self.loop.now + self.copy_s, self._copy, (token, snapshot_id, *copied))

    def _tokens(self) -> dict[str, str]:
        return {table_token(one.schema, name): name for name, one in self.source.tables.items()}

    def _tell(self, subject: str, body: Body) -> None:
        self.server.route(subject, "", None, json.dumps(body).encode())

    def report(self, name: str, **progress: int) -> None:
        """Progress of a running snapshot."""
        self._tell(f"snapshot.progress.{name}", progress)

    def _copy(self, message: tuple[str, str, SourceTable, int]) -> None:
        """The rows as they were when the copy began."""
        token, snapshot_id, table, lsn = message
        if token not in self._tokens() or self.fails_snapshots:
            self.fails_snapshots = max(0, self.fails_snapshots - 1)
            body = {"snapshot_id": snapshot_id, "error": "it failed."}
            self.server.put(f"init.error.{token}", json.dumps(body).encode())
            return
        rows = list(table.rows.values())
        chunks = [rows[at : at + self.chunk_rows] for at in range(0, len(rows), self.chunk_rows)]
        for number, chunk in enumerate(chunks):
            subject = f"init.snap.{token}.{snapshot_id}.{number}"
            self.server.put(subject, json.dumps({"data": chunk}).encode())
        self._tell(f"snapshot.progress.{token}", {"rows": len(rows), "rows_estimated": len(rows)})
        meta = {
            "snapshot_id": snapshot_id,
            "lsn": format_lsn(lsn),
            "batch_count": len(chunks),
            "row_count": len(rows),
            "source": SOURCE,
        }
        self.server.put(f"init.meta.{token}", json.dumps(meta).encode())

    # The mirror.

    def start(self) -> None:
        self.process = Process("mirror")
        self.loop.begin(self.process, self._life(self.process))

    async def _life(self, process: Process) -> None:
        self.stopping = asyncio.Event()
        client = self.client(process)
        target = WatchedTarget(self)
        process.on_death.append(target.die)
        self.mirror = Mirror(client, target, self.mirrored, fresh=self.fresh)
        try:
            await self.mirror.run(self.stopping)
        except BaseException as error:
            self.ended.append(error)
            raise
        finally:
            process.done = True
        target.die()

    def kill(self) -> None:
        """End it in the middle of its work."""
        assert self.process is not None
        self.loop.kill(self.process)

    def stop(self) -> None:
        """In order."""
        self.stopping.set()
        self.until(lambda: self.process is not None and self.process.done)

    def phase(self, name: str) -> Phase:
        """The stage of a table."""
        found: Phase = self.mirror.book.tables[name].phase
        return found

    # Readers.

    def shown(self) -> dict[str, list[Row]]:
        """The rows that SQL finds in the file, by table."""
        if self._reader is None:
            self._reader = sqlite3.connect(self.path)
            self._reader.row_factory = sqlite3.Row
        query = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'headrace%'"
        names = [row[0] for row in self._reader.execute(query)]
        return {name: self.rows(name) for name in names}

    def rows(self, name: str) -> list[Row]:
        assert self._reader is not None
        cursor = self._reader.execute(f'SELECT * FROM "{name}"')
        columns = [column[0] for column in cursor.description]
        return sorted(
            (dict(zip(columns, row, strict=True)) for row in cursor),
            key=lambda row: repr(row["id"]),
        )

    def row(self, name: str, key: int) -> Row | None:
        """The row that readers see, if there is one."""
        return next((row for row in self.rows(name) if row["id"] == key), None)

    def look(self) -> None:
        """Readers see the moment that they saw, or a later one."""
        self.commits += 1
        if self.fresh or not self.checks:
            return
        shown = self.shown()
        for number in range(self.moment, len(self.source.moments)):
            if all(_is(self.source.moments[number], name, rows) for name, rows in shown.items()):
                self.moment = number
                return
        self.violations.append(f"at {self.loop.now:g} s, no moment of the source: {shown}")

    @property
    def is_equal(self) -> bool:
        """Whether readers see the source as it is now, all of it that is to be mirrored."""
        shown = self.shown()
        wanted = {_name(table.schema, name) for name, table in self.source.tables.items()}
        if self.mirrored:
            # And what these are renamed to.
            wanted &= {_name(schema, name) for schema, name in self.mirrored} | set(shown)
        return set(shown) == wanted and all(
            _is(self.source.tables, name, rows) for name, rows in shown.items()
        )

    # Time.

    def until(self, holds: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
        super().until(holds, patience_s)
        self.check()

    def settle(self) -> None:
        """Until the mirror is equal to its source; asked now and then, since it takes a reading."""
        asked = [self.commits - 1]

        def holds() -> bool:
            if asked[0] == self.commits:
                return False
            asked[0] = self.commits
            return self.path.exists() and self.commits > 0 and self.is_equal

        deadline = self.loop.now + PATIENCE_S
        self.run(lambda: holds() or self.loop.now > deadline)
        assert self.is_equal, f"{self.shown()} is not {self.source.tables}"
        self.check()

    def check(self) -> None:
        assert not self.violations, self.violations[0]

    def close(self) -> None:
        if self.process is not None:
            self.loop.kill(self.process)
        super().close()
        if self._reader is not None:
            self._reader.close()


@contextmanager
def mirrored(folder: Path, sizes: Mapping[str, int], **more: Any) -> Iterator[MirrorWorld]:
    """A mirror that has copied these tables, with this many rows each."""
    world = MirrorWorld(folder, **more)
    try:
        for name, rows in sizes.items():
            world.create(name, rows)
        world.start()
        world.settle()
        yield world
        world.check()
    finally:
        world.close()


def _subject(body: Body | list[Body]) -> str:
    if isinstance(body, list):
        return f"cdc.{table_token(body[0]['schema'], body[0]['table'])}.batch"
    if body["operation"] == "GAP":
        return "cdc._gap"
    if body["operation"] == "MESSAGE":
        return f"cdc._message.{body['prefix']}"
    return f"cdc.{table_token(body['schema'], body['table'])}.{body['operation'].lower()}"


def _name(schema: str, name: str) -> str:
    return name if schema == "public" else f"{schema}.{name}"


def _is(moment: Moment, shown: str, rows: list[Row]) -> bool:
    names = {_name(table.schema, name): table for name, table in moment.items()}
    table = names.get(shown)
    if table is None:
        return False
    wanted = sorted(table.rows.values(), key=lambda row: repr(row["id"]))
    return rows == wanted
