"""Sinks that each break one claim of the conformance kit, and what they write to."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from headrace.consumer import Position, Watermark
from headrace.process.failpoint import failpoint
from headrace.sinks import Promise, Record, RefusedError, RoutedTransaction, SinkOptions
from tests.support.memory_sink import MemorySink


class Reversed(MemorySink):
    async def write(self, transactions: Sequence[RoutedTransaction]) -> None:
        await super().write(transactions)
        self._written.reverse()


class ReversedInAKey(MemorySink):
    """Promises less, and not even keeps the order of a row's changes."""

    promise = Promise.AT_LEAST_ONCE

    async def write(self, transactions: Sequence[RoutedTransaction]) -> None:
        await super().write(transactions)
        self._written.reverse()


class LastWriteOnly(MemorySink):
    async def write(self, transactions: Sequence[RoutedTransaction]) -> None:
        self._written = []
        await super().write(transactions)


class Hasty(MemorySink):
    """Shows records before the commit."""

    async def write(self, transactions: Sequence[RoutedTransaction]) -> None:
        await super().write(transactions)
        self._target.records += self._written
        self._written = []


class Forgetful(MemorySink):
    """Keeps only the source's marks."""

    async def commit(self, marks: Mapping[str, Watermark]) -> None:
        await super().commit({lane: mark for lane, mark in marks.items() if "/" not in lane})


class Leaking(MemorySink):
    """The next session commits the records that one has left behind."""

    left: ClassVar[list[RoutedTransaction]] = []

    async def open(self) -> Mapping[str, Watermark]:
        marks = await super().open()
        await super().write(type(self).left)
        type(self).left = []
        return marks

    async def write(self, transactions: Sequence[RoutedTransaction]) -> None:
        await super().write(transactions)
        type(self).left = [*transactions]

    async def commit(self, marks: Mapping[str, Watermark]) -> None:
        await super().commit(marks)
        type(self).left = []


class Unfenced(MemorySink):
    notices = False

    async def open(self) -> Mapping[str, Watermark]:
        self._epoch = self._target.epoch
        self._marks = dict(self._target.marks)
        return dict(self._marks)


class ByPosition(MemorySink):
    """Takes a record whose position it has for a repeat."""

    async def write(self, transactions: Sequence[RoutedTransaction]) -> None:
        seen = {record.event.position for record in self._target.records}
        for transaction in transactions:
            self._written += [one for one in transaction.records if one.event.position not in seen]


class Skipping(MemorySink):
    """Leaves out what is too large for it."""

    async def write(self, transactions: Sequence[RoutedTransaction]) -> None:
        for transaction in transactions:
            self._written += [one for one in transaction.records if len(one.value) < 100_000]


class Cutting(MemorySink):
    """Cuts off what is too large for it."""

    async def write(self, transactions: Sequence[RoutedTransaction]) -> None:
        for transaction in transactions:
            self._written += [
                one._replace(value=one.value[:100_000]) for one in transaction.records
            ]


class Misnaming(MemorySink):
    """Names the first record of a write for each refusal."""

    async def write(self, transactions: Sequence[RoutedTransaction]) -> None:
        for transaction in transactions:
            for record in transaction.records:
                if len(record.value) > 2000:
                    raise RefusedError(transactions[0].records[0], "something is too large")
        await super().write(transactions)


class Rounding(MemorySink):
    """Decodes and encodes values with doubles."""

    async def write(self, transactions: Sequence[RoutedTransaction]) -> None:
        await super().write(transactions)
        self._written = [
            one._replace(
                value=json.dumps(
                    json.loads(one.value, parse_int=float), separators=(",", ":")
                ).encode()
            )
            if b"beyond_double" in one.value
            else one
            for one in self._written
        ]


class RowsOnly(MemorySink):
    """Leaves out what changes no row."""

    async def write(self, transactions: Sequence[RoutedTransaction]) -> None:
        for transaction in transactions:
            self._written += [one for one in transaction.records if one.key is not None]


class Unaware(MemorySink):
    """Writes behind what its target has lost."""

    notices = False


class Table(MemorySink):
    """Keeps the newest state of each row."""

    promise = Promise.RIGHT_STATE

    async def commit(self, marks: Mapping[str, Watermark]) -> None:
        self._target.marks = dict(marks)
        for record in self._written:
            known = [one.id for one in self._target.records]
            if record.id not in known:
                self._target.records.append(record)
        self._written = []


class ListOfChanges(MemorySink):
    """Promises the right state of rows, and keeps every change."""

    promise = Promise.RIGHT_STATE


@dataclass
class _Lines:
    """Two files: one with records, one with marks."""

    options: SinkOptions
    written: list[str] = field(default_factory=list)

    promise: ClassVar[Promise] = Promise.EXACTLY_ONCE

    @property
    def _file(self) -> Path:
        return Path(self.options.options["file"])

    async def open(self) -> Mapping[str, Watermark]:
        marks = self._file.with_suffix(".marks")
        if not marks.exists():
            return {}
        return {
            lane: Watermark(Position(lsn, seq), at)
            for lane, (lsn, seq, at) in json.loads(marks.read_text()).items()
        }

    async def write(self, transactions: Sequence[RoutedTransaction]) -> None:
        self.written += [one.id for each in transactions for one in each.records]

    def _store_records(self) -> None:
        with self._file.open("a") as file:
            file.writelines(f"{one}\n" for one in self.written)
        self.written = []

    def _store_marks(self, marks: Mapping[str, Watermark]) -> None:
        body = {lane: [*mark.position, mark.stream_seq] for lane, mark in marks.items()}
        self._file.with_suffix(".marks").write_text(json.dumps(body))

    async def close(self) -> None: ...


def ids_in(options: SinkOptions) -> list[str]:
    file = Path(options.options["file"])
    return file.read_text().splitlines() if file.exists() else []


_open_sinks: dict[str, int] = {}


class _Fenced(_Lines):
    """Refuses an older session of the same process, as the claim before the kills wants."""

    async def open(self) -> Mapping[str, Watermark]:
        name = str(self._file)
        _open_sinks[name] = self.epoch = _open_sinks.get(name, 0) + 1
        return await super().open()

    def _check(self) -> None:
        if _open_sinks[str(self._file)] != self.epoch:
            raise ValueError("a newer session")


class MarksFirst(_Fenced):
    async def commit(self, marks: Mapping[str, Watermark]) -> None:
        self._check()
        self._store_marks(marks)
        failpoint("broken.between")
        self._store_records()


class DataFirst(_Fenced):
    async def commit(self, marks: Mapping[str, Watermark]) -> None:
        self._check()
        self._store_records()
        failpoint("broken.between")
        self._store_marks(marks)


@dataclass
class Store:
    """What a server has."""

    records: list[str] = field(default_factory=list)
    marks: dict[str, Any] = field(default_factory=dict)
    epoch: int = 0

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        if asked["call"] == "open":
            self.epoch += 1
            return {"epoch": self.epoch, "marks": self.marks}
        if asked["epoch"] != self.epoch:
            return {"refused": True}
        self.records += asked["records"]
        self.marks = asked["marks"]
        return {}


@contextlib.asynccontextmanager
async def serve() -> AsyncIterator[tuple[int, Store]]:
    """A server on loopback: a line of JSON for each call and each answer."""
    store = Store()
    writers: list[asyncio.StreamWriter] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with contextlib.suppress(OSError):
            while line := await reader.readline():
                writer.write(json.dumps(store.answer(json.loads(line))).encode() + b"\n")
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0, limit=32 * 1024 * 1024)
    try:
        yield server.sockets[0].getsockname()[1], store
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(0)


class Remote:
    """Writes to that server, and asks it for the marks when it opens."""

    promise = Promise.EXACTLY_ONCE

    def __init__(self, port: int) -> None:
        self._port = port
        self._epoch = 0
        self._records: list[Record] = []

    async def _call(self, **asked: Any) -> dict[str, Any]:
        line = json.dumps({**asked, "epoch": self._epoch}).encode() + b"\n"
        self._writer.write(line)
        answer = await self._reader.readline()
        if not answer:
            raise ConnectionError("no answer")
        found: dict[str, Any] = json.loads(answer)
        return found

    async def open(self) -> Mapping[str, Watermark]:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        found = await self._call(call="open")
        self._epoch = found["epoch"]
        return {
            lane: Watermark(Position(lsn, seq), at)
            for lane, (lsn, seq, at) in found["marks"].items()
        }

    async def write(self, transactions: Sequence[RoutedTransaction]) -> None:
        self._records += [one for each in transactions for one in each.records]

    async def commit(self, marks: Mapping[str, Watermark]) -> None:
        body = {lane: [*mark.position, mark.stream_seq] for lane, mark in marks.items()}
        ids = [one.id for one in self._records]
        if (await self._call(call="commit", records=ids, marks=body)).get("refused"):
            raise ValueError("a newer session")
        self._records = []

    async def close(self) -> None:
        self._writer.close()


class Remembers(Remote):
    """Keeps the marks of the commits that were confirmed, instead of asking the server."""

    known: ClassVar[dict[int, dict[str, Watermark]]] = {}

    async def open(self) -> Mapping[str, Watermark]:
        await super().open()
        return dict(self.known.get(self._epoch - 1, {}))

    async def commit(self, marks: Mapping[str, Watermark]) -> None:
        self.known[self._epoch] = self.known.get(self._epoch - 1, {})
        await super().commit(marks)
        self.known[self._epoch] = dict(marks)

    async def close(self) -> None:
        self.known.setdefault(self._epoch, self.known.get(self._epoch - 1, {}))
        await super().close()
