"""Changes as files in a folder or in object storage: NDJSON or Parquet, each file created once.

A commit is one file with whole transactions. Its name is a number, and the marks are inside: a
reader that lists the folder sees every change once. Two processes can't both create a number, so a
process that was replaced is refused at its next commit. A file is complete when its name exists.
"""

from __future__ import annotations

import asyncio
import io
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol
from urllib.parse import unquote, urlsplit

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from headrace.archive.errors import ArchiveError, FileTakenError
from headrace.archive.store import Get, Names, Store
from headrace.consumer.watermark import Watermark
from headrace.errors import SettingError
from headrace.lsn import Position
from headrace.process.failpoint import failpoint
from headrace.sinks.port import (
    Pace,
    Promise,
    SinkAwayError,
    SinkError,
    SinkFencedError,
    SinkOptions,
)
from headrace.sinks.routing import Record, RoutedTransaction

NDJSON = "ndjson"
PARQUET = "parquet"
# Says which file was last, and how far the stream was seen since; only to start sooner.
HINT = "_headrace.json"
_NAME = re.compile(r"(\d{16})\.(ndjson\.zst|parquet)")
# A zstd frame that every reader skips: its magic number, then its length.
_SKIPPABLE = (0x184D2A50).to_bytes(4, "little")
_TAIL_BYTES = 64 * 1024
_MARKS = "headrace.marks"
_COLUMNS: dict[str, pa.DataType] = {
    "id": pa.string(),
    "destination": pa.string(),
    "operation": pa.string(),
    "source": pa.string(),
    "lsn": pa.uint64(),
    "seq": pa.uint64(),
    "xid": pa.uint64(),
    "last": pa.bool_(),
    "key": pa.string(),
    "value": pa.binary(),
}
_SCHEMA = pa.schema(_COLUMNS)


class DraftFile(Protocol):
    """A file that is being written, in memory."""

    suffix: str

    def add(self, records: Sequence[Record]) -> None: ...

    def finished(self, marks: bytes) -> bytes: ...


class _NdjsonFile:
    """A line for each record, compressed; the marks follow in a frame that readers skip."""

    suffix = "ndjson.zst"

    def __init__(self) -> None:
        self._compressor = zstandard.ZstdCompressor(level=3).compressobj()
        self._pieces: list[bytes] = []

    def add(self, records: Sequence[Record]) -> None:
        lines = b"".join(record.value + b"\n" for record in records)
        self._pieces.append(self._compressor.compress(lines))

    def finished(self, marks: bytes) -> bytes:
        size = len(marks).to_bytes(4, "little")
        # The length again at the end, where a reader of the tail finds it.
        frame = marks + size
        whole = _SKIPPABLE + len(frame).to_bytes(4, "little") + frame
        return b"".join([*self._pieces, self._compressor.flush(), whole])


class _ParquetFile:
    """A row for each record, with the event in `value`; the marks are in the file's metadata."""

    suffix = "parquet"

    def __init__(self) -> None:
        self._buffer = io.BytesIO()
        self._writer = pq.ParquetWriter(self._buffer, _SCHEMA, compression="zstd")

    def add(self, records: Sequence[Record]) -> None:
        self._writer.write_table(pa.Table.from_pylist([_row(one) for one in records], _SCHEMA))

    def finished(self, marks: bytes) -> bytes:
        self._writer.add_key_value_metadata({_MARKS: marks.decode()})
        self._writer.close()
        return self._buffer.getvalue()


def _row(record: Record) -> dict[str, Any]:
    event = record.event
    return {
        "id": record.id,
        "destination": record.destination,
        "operation": event.operation,
        "source": event.source,
        "lsn": event.position.lsn,
        "seq": event.position.seq,
        "xid": event.payload["tx"]["xid"],
        "last": bool(event.payload["tx"]["last"]),
        "key": None if record.key is None else record.key.decode(),
        "value": record.value,
    }


_FORMS: dict[str, type[_NdjsonFile | _ParquetFile]] = {
    NDJSON: _NdjsonFile,
    PARQUET: _ParquetFile,
}


class FilesSink:
    """One folder of files; its options are `form` and those of the object store."""

    promise: ClassVar[Promise] = Promise.EXACTLY_ONCE
    # A file for each commit: fewer and larger ones than a broker's transactions.
    pace: ClassVar[Pace] = Pace(events_max=50_000, wait_s=10.0)

    def __init__(self, options: SinkOptions) -> None:
        self._options = dict(options.options)
        form = str(self._options.pop("form", NDJSON))
        if form not in _FORMS:
            raise SettingError(f"form = {form!r} is not one of {', '.join(_FORMS)}")
        self._form = _FORMS[form]
        self._url = options.to.rstrip("/")
        self._store: Store | None = None
        self._draft: DraftFile | None = None
        self._number = 0
        # The number in the hint that this session has read or written.
        self._hinted = 0

    async def open(self) -> Mapping[str, Watermark]:
        """The marks of the last file, or later ones of an idle time."""
        try:
            return await asyncio.to_thread(self._open)
        except ArchiveError as error:
            raise SinkAwayError(str(error.args[0])) from error

    def _open(self) -> dict[str, Watermark]:
        store = Store(self._url, {name: str(value) for name, value in self._options.items()})
        store.prepare()
        self._store = store
        hinted = _hint_of(store)
        # Without the hint, a start would list every file that was ever written.
        after = str(hinted.get("after", ""))
        names = [item.location for item in store.ask(Names(after))]
        files = sorted(name for name in names if _NAME.fullmatch(name))
        if not files and not after:
            return _marks_of(hinted.get("marks", {}))
        # Names have a fixed width, so they sort like their numbers.
        last = files[-1] if files else after
        self._number = _number_of(last)
        self._hinted = _number_of(after)
        if not files:
            # A reader has removed the newest file.
            return _marks_of(hinted["marks"])
        return self._marks_in(store, last)

    def _marks_in(self, store: Store, name: str) -> dict[str, Watermark]:
        if name.endswith(".parquet"):
            data = store.ask(Get(name)).data
            metadata = pq.ParquetFile(io.BytesIO(data)).metadata.metadata or {}
            found = metadata.get(_MARKS.encode())
        else:
            # The marks are at the end: a start does not read whole files.
            tail: bytes = store.ask(Get(name, _TAIL_BYTES)).data
            size = int.from_bytes(tail[-4:], "little")
            found = tail[-4 - size : -4]
        try:
            return _marks_of(orjson.loads(found or b""))
        except (ValueError, TypeError) as error:
            raise SinkError(
                f"{self._url}/{name} has no marks of a sink",
                remedy="Another program wrote it: give the sink a separate folder.",
            ) from error

    async def check(self) -> str:
        """List the folder. One on this machine that is missing would be created by that."""
        url = urlsplit(self._url)
        if url.scheme == "file" and not await asyncio.to_thread(Path(unquote(url.path)).is_dir):
            return "the folder does not exist yet: the sink creates it"
        try:
            await asyncio.to_thread(self._list)
        except ArchiveError as error:
            raise SinkAwayError(str(error.args[0])) from error
        return "its files can be listed"

    def _list(self) -> None:
        store = Store(self._url, {name: str(value) for name, value in self._options.items()})
        store.ask(Names("", 1))

    async def write(self, transactions: Sequence[RoutedTransaction]) -> None:
        """Add records to the next file, which is in memory until the commit."""
        if self._draft is None:
            self._draft = self._form()
        for transaction in transactions:
            await asyncio.to_thread(self._draft.add, transaction.records)
        failpoint("files.written")

    async def commit(self, marks: Mapping[str, Watermark]) -> None:
        """Create the file; without records, only note how far the stream was seen."""
        body = {lane: [*mark.position, mark.stream_seq] for lane, mark in marks.items()}
        try:
            await asyncio.to_thread(self._commit, body)
        except FileTakenError as error:
            raise SinkFencedError(f"{self._url}: {error.args[0]}") from error
        except ArchiveError as error:
            raise SinkAwayError(str(error.args[0])) from error

    def _commit(self, marks: Mapping[str, object]) -> None:
        assert self._store is not None, "opened before"
        if self._draft is not None:
            # Taken first: after an error the session ends, and a new one must not write the draft's
            # rest.
            draft = self._draft
            self._draft = None
            # One request for each file, which comes every few seconds; without it, a session would
            # write behind a hole for as long as it runs.
            if _number_of(str(_hint_of(self._store).get("after", ""))) < self._hinted:
                # Restored from a backup: the next session continues after its files.
                raise SinkAwayError(f"{self._url} has lost files of this sink")
            name = f"{self._number + 1:016d}.{draft.suffix}"
            data = draft.finished(orjson.dumps(marks))
            failpoint("files.before_create")
            # The commit: it fails if another process has created this number.
            self._store.put_new(name, data)
            failpoint("files.created")
            self._number += 1
            # Listing starts before it, because it may have been followed by others.
            self._hinted = self._number - 1
        else:
            self._hinted = self._number
        # `~` sorts after every suffix: the listing begins with the next number.
        hint = {"after": f"{self._hinted:016d}.~", "marks": marks}
        # Overwritten without a condition: an old hint only makes the next start list more.
        self._store.put(HINT, orjson.dumps(hint))

    async def close(self) -> None:
        """Forget the draft."""
        self._draft = None
        self._store = None


def _hint_of(store: Store) -> dict[str, Any]:
    hint = store.ask(Get(HINT))
    found: dict[str, Any] = json.loads(hint.data) if hint is not None else {}
    return found


def _number_of(name: str) -> int:
    """The number that a name or a hint begins with; 0 without one."""
    return int(name.partition(".")[0] or 0)


def _marks_of(body: Mapping[str, Any]) -> dict[str, Watermark]:
    return {
        lane: Watermark(Position(lsn, seq), stream_seq)
        for lane, (lsn, seq, stream_seq) in body.items()
    }
