"""Reads what the stream has discarded from the archive, by position.

Promises: transactions in commit order, from the one after a position to the one at an LSN, none
left out, and whole unless they have more than `EVENTS_MAX` events; raises where the archive has a
gap, and before the first one if it does not reach that far yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headrace.archive import RowEntry, WalFileInfo, WalReader
from headrace.archive.payloads import Payloads, Replayed
from headrace.archive.reader import ReadingStart
from headrace.consumer import Event, Transaction
from headrace.contract.events import decode
from headrace.errors import HeadraceError
from headrace.lsn import Position, format_lsn
from headrace.sinks.reading import EVENTS_MAX


class ArchiveBehindError(HeadraceError):
    """The archive does not reach to the stream's first event yet."""

    retry = True
    remedy = "The archiver adds files as it goes: `headrace status` shows whether it runs."


class ForeignArchiveError(HeadraceError):
    """The archive is of another source."""

    remedy = "Name this suite's archive in HEADRACE_ARCHIVE_URL."


@dataclass(slots=True)
class ArchiveRange:
    """The transactions of one source after a position, up to a commit."""

    url: str
    source: str
    after: Position
    # The commit LSN of the last transaction that is wanted.
    up_to: int
    # A larger transaction comes in parts, which bounds the memory.
    events_max: int = EVENTS_MAX
    _reached: int = 0

    def transactions(self) -> Iterator[Transaction]:
        """Blocking."""
        reader = WalReader(self.url)
        # Before the first part is delivered, which a sink may not be able to take back.
        self._require(self._end(reader))
        events: list[Event] = []
        for one in Payloads().of(self._rows(reader)):
            if events and events[0].position.lsn != one.position.lsn:
                yield Transaction(tuple(events), ends=True)
                events = []
            elif len(events) >= self.events_max:
                # Only now: the next row shows that the transaction continues.
                yield Transaction(tuple(events), ends=False)
                events = []
            if one.position.lsn > self.up_to:
                break
            events.append(_event(one))
        self._require(self._reached)
        if events:
            yield Transaction(tuple(events), ends=True)

    def _require(self, reached: int) -> None:
        if reached <= self.up_to:
            raise ArchiveBehindError(
                f"the archive reaches to {format_lsn(reached)}, and the stream begins at "
                f"{format_lsn(self.up_to)}"
            )

    def _end(self, reader: WalReader) -> int:
        """The LSN before which the archive has everything."""
        files = reader.list()
        last = reader.get(files[-1].id) if files else None
        if last is None:
            return 0
        self._check_source(last.info)
        # A file may end in the middle of its last transaction.
        return last.info.end_lsn if last.info.whole else last.info.last.lsn

    def _check_source(self, info: WalFileInfo) -> None:
        if info.source != self.source:
            raise ForeignArchiveError(f"{self.url} is the archive of {info.source}")

    def _rows(self, reader: WalReader) -> Iterator[tuple[WalFileInfo, RowEntry]]:
        """The rows up to the first one of a later transaction, which is included."""
        start = ReadingStart(after=self.after)
        first = reader.run(start.first_id(reader.reading.options, reader.reading.seen))
        for file in reader.files(from_id=first):
            self._check_source(file.info)
            for entry in file.entries(start.selection):
                if entry.commit_lsn > self.up_to:
                    self._reached = entry.commit_lsn
                    yield file.info, entry
                    return
                yield file.info, entry
            if file.info.whole:
                self._reached = file.info.end_lsn
            if self._reached > self.up_to:
                return


def _event(replayed: Replayed) -> Event:
    payload: dict[str, Any] = decode(replayed.payload)
    if replayed.table is not None:
        payload["key"] = list(replayed.table.key)
    schema = str(payload.get("schema", ""))
    return Event(
        str(payload["source"]),
        schema,
        str(payload.get("table", "")),
        str(payload["operation"]),
        replayed.position,
        payload,
        replayed.subject,
        0,
        str(payload["source"]),
        closes=True,
    )
