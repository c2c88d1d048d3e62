"""Reads what the stream has discarded from the archive, by position.

Promises: whole transactions in commit order, from the one after a position to the one at an LSN,
none left out; raises where the archive has a gap, or does not reach that far yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from headrace.archive import RowEntry, WalFileInfo, WalReader
from headrace.archive.payloads import Payloads, Replayed
from headrace.archive.reader import ReadingStart
from headrace.consumer import Event, Transaction
from headrace.contract.events import decode
from headrace.errors import HeadraceError
from headrace.lsn import Position, format_lsn


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
    _reached: int = 0

    def transactions(self) -> Iterator[Transaction]:
        """Blocking. The last one may be a part only if the archive is behind."""
        replayed = Payloads().of(self._rows())
        for _, events in groupby(replayed, key=lambda one: one.position.lsn):
            yield Transaction(tuple(_event(one) for one in events), ends=True)
        if self._reached <= self.up_to:
            raise ArchiveBehindError(
                f"the archive reaches to {format_lsn(self._reached)}, and the stream begins at "
                f"{format_lsn(self.up_to)}"
            )

    def _rows(self) -> Iterator[tuple[WalFileInfo, RowEntry]]:
        reader = WalReader(self.url)
        start = ReadingStart(after=self.after)
        first = reader.run(start.first_id(reader.reading.options, reader.reading.seen))
        held: list[tuple[WalFileInfo, RowEntry]] = []
        for file in reader.files(from_id=first):
            if file.info.source != self.source:
                raise ForeignArchiveError(f"{self.url} is the archive of {file.info.source}")
            for entry in file.entries(start.selection):
                if entry.commit_lsn > self.up_to:
                    self._reached = entry.commit_lsn
                    yield from held
                    return
                # A transaction is passed on when the next one has started, or its file ends whole.
                if held and held[0][1].commit_lsn != entry.commit_lsn:
                    yield from held
                    held = []
                held.append((file.info, entry))
            if file.info.whole:
                yield from held
                held = []
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
