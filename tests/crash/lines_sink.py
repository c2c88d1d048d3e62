"""A sink in full, as small as one can be: every change is a line of JSON in a file, exactly once.

    python lines_sink.py FILE       settings come from the environment, as a service's

It takes the publisher's place at the wal-reader. The file is its own resume point: after a kill, a
torn last line is cut off, and changes up to the last line's position are skipped.
"""

from __future__ import annotations

import os
import secrets
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from nats.aio.client import Client

from headrace.bus.frame import Opening
from headrace.confirming.change_store import Demand, Stored, Taken
from headrace.confirming.epoch_follower import EpochFollower
from headrace.confirming.relation_shape import DescribedRelations, RelationShape, Values
from headrace.confirming.relations import Relations
from headrace.confirming.source_identity import SourceIdentity, divergence, gap_before
from headrace.confirming.transaction_cursor import TransactionCursor
from headrace.contract.values import Encoding, ValueOptions
from headrace.errors import HeadraceError
from headrace.jetstream.provisioning import ensure_patiently
from headrace.jetstream.state import bucket, suite_identity
from headrace.lsn import ORIGIN, Position
from headrace.pgoutput import messages
from headrace.pgoutput.decoder import decode
from headrace.process import lifecycle
from headrace.process.lifecycle import Scope
from headrace.process.recovery import follow_on
from headrace.process.service import on_the_bus
from headrace.settings import Settings, load


class FileDivergedError(HeadraceError):
    """The file contains changes of another source."""


@dataclass(frozen=True, slots=True)
class Table:
    shape: RelationShape


class LinesSink:
    """Lines are rows, `{"at": [commit LSN, ordinal], …}`, and marks, `{"stored": LSN, …}`."""

    def __init__(self, scope: Scope, relations: Relations, path: Path) -> None:
        self._scope = scope
        self._relations = relations
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        whole = [line for line in lines if line.endswith(b"\n")]
        self._file = path.open("r+b" if path.exists() else "w+b", buffering=0)
        self._file.seek(sum(map(len, whole)))
        self._file.truncate()
        self._last = ORIGIN
        self._mark: dict[str, Any] = {"stored": 0, "system_id": "", "timeline": 0}
        for line in map(orjson.loads, whole):
            if "stored" in line:
                self._mark = line
            elif "at" in line:
                self._last = Position(*line["at"])
        # Rows that are not in the file yet, and the LSN before which everything came.
        self._rows: list[dict[str, Any]] = []
        self._complete_lsn = 0
        self._cursor = TransactionCursor()
        self._tables: DescribedRelations[Table] = DescribedRelations()

    async def on_epoch(self, opening: Opening) -> None:
        mark = self._mark
        known = SourceIdentity("file", mark["system_id"], mark["timeline"], self._last.lsn)
        if (reason := divergence(known, opening)) is not None:
            raise FileDivergedError(reason)
        # They come again.
        self._rows = []
        self._complete_lsn = opening.confirmed_lsn
        self._cursor, self._tables = TransactionCursor(), DescribedRelations()
        if gap := gap_before(mark["stored"], opening):
            self._rows = [{"gap": [gap.after, gap.up_to]}]
        self._mark = {**mark, "system_id": opening.system_id, "timeline": opening.timeline}

    async def take(self, taken: Taken) -> Stored:
        for lsn, message in taken.entries:
            if self._scope.stopping.is_set():
                break
            await self._on_entry(lsn, message)
        return self._stored()

    async def store(self, demand: Demand) -> Stored:
        if self._rows or (demand is not Demand.LITTLE and self._stored().waiting):
            self._mark["stored"] = max(self._mark["stored"], self._complete_lsn)
            for row in (*self._rows, self._mark):
                self._file.write(orjson.dumps(row) + b"\n")
            os.fsync(self._file.fileno())
            self._last = max(
                [self._last, *(Position(*row["at"]) for row in self._rows if "at" in row)]
            )
            self._rows = []
        return self._stored()

    def _stored(self) -> Stored:
        waiting = bool(self._rows) or self._complete_lsn > self._mark["stored"]
        return Stored(min(self._mark["stored"], self._complete_lsn), waiting)

    async def _on_entry(self, lsn: int, message: bytes) -> None:
        cursor = self._cursor
        if not message:
            # A keepalive: everything before it was sent.
            if cursor.transaction is None:
                self._complete_lsn = max(self._complete_lsn, lsn)
            return
        match decode(message):
            case messages.Begin() as begin:
                cursor.begin(begin)
            case messages.Commit() as commit:
                cursor.commit()
                self._complete_lsn = max(self._complete_lsn, commit.end_lsn)
            case messages.Relation() as relation:
                shape = await self._relations.describe(self._scope, relation, cursor.xid)
                self._tables[relation.relation_id] = Table(shape)
            case messages.Insert() as insert:
                shape = self._tables[insert.relation_id].shape
                self._row(shape, "INSERT", shape.row(insert.new))
            case messages.Update() as update:
                shape = self._tables[update.relation_id].shape
                self._row(shape, "UPDATE", shape.row(update.new))
            case messages.Delete() as delete:
                shape = self._tables[delete.relation_id].shape
                self._row(shape, "DELETE", shape.old_row(delete.key, delete.old) or Values())
            case messages.LogicalMessage() as emitted:
                cursor.emitted(emitted)

    def _row(self, shape: RelationShape, operation: str, values: Values) -> None:
        position = self._cursor.advance()
        if position > self._last and not shape.excluded:
            table = shape.relation.name
            self._rows.append(
                {"at": [*position], "op": operation, "table": table, "row": values.native}
            )


async def main(scope: Scope, settings: Settings, path: Path) -> None:
    async def work(client: Client) -> None:
        await ensure_patiently(scope, client.jetstream(), settings.streams)
        suite = await suite_identity(await bucket(client.jetstream(), settings.streams.state))
        session = secrets.token_hex(8)
        relations = Relations(settings, "lines sink", ValueOptions(encoding=Encoding.JSON))

        async def follow() -> None:
            sink = LinesSink(scope, relations, path)
            await EpochFollower(scope, settings, client, sink, "publisher", session, suite).run()

        async def failed(_: Exception) -> bool:
            return False

        await follow_on(scope, client, follow, failed)
        await relations.close()

    await on_the_bus(scope, settings, work)


if __name__ == "__main__":
    loaded = load(os.environ)
    sys.exit(
        lifecycle.run(
            "publisher", loaded.process, lambda scope: main(scope, loaded, Path(sys.argv[1]))
        )
    )
