"""The range of an archive that `headrace replay` replays: its rows in order, and a run's progress.

Promises that a run that ends before the requested end, and before the archive's end as it was when
the run started, is an error and never a success. Reads only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from headrace.archive import (
    RowEntry,
    WalFileCollectedError,
    WalFileInfo,
    WalReader,
    WalReaderOptions,
)
from headrace.archive.bases import BaseRecord
from headrace.archive.errors import ArchiveError
from headrace.archive.file_format import RowSelection
from headrace.archive.layout import FIRST_ID
from headrace.archive.payloads import Payloads, Replayed
from headrace.archive.reader import ReadingStart, WalFile
from headrace.cli.archive.read import TableName, check_tables, place
from headrace.errors import SettingError
from headrace.lsn import ORIGIN, Position

_ID_MAX = 1 << 62


class ReplayError(ArchiveError):
    """The archive's range can't be replayed into this target."""


@dataclass(frozen=True, slots=True)
class ReplayRange:
    """The range: from a start to before an end."""

    url: str
    begin: str | None = None
    end: str | None = None
    tables: tuple[str, ...] = ()
    past_gaps: bool = False
    # The name of the one table in the target, if it is another one.
    called: str | None = None


class ReplayRun:
    """One run through a range."""

    def __init__(self, chosen: ReplayRange) -> None:
        self._begin, self._end = place(chosen.begin), place(chosen.end)
        self.called = chosen.called
        for kind in self._begin.keys() & self._end.keys():
            # Both are of one type, as the kind is the same.
            if self._end[kind] < self._begin[kind]:  # type: ignore[operator]
                raise SettingError(
                    f"--to {chosen.end} comes before --from {chosen.begin}",
                    remedy="Name an end that is after the start.",
                )
        self._reader = WalReader(
            chosen.url, WalReaderOptions(tables=chosen.tables, raise_at_gap=not chosen.past_gaps)
        )
        self._payloads = Payloads()
        listed = self._reader.list()
        # The archive's current end: later files may be replayed, but need not be.
        self._last_id = listed[-1].id if listed else 0
        self._file_id = 0
        self._read = ORIGIN
        self._at_end_asked = False
        self._at_end = False
        # The tables whose rows were read, or that the target has.
        self._tables: set[TableName] = set()
        self._bases: list[BaseRecord] = []
        # The number of changes in the target, and the last one's position.
        self.count = 0
        self._stored = ORIGIN

    @property
    def reader(self) -> WalReader:
        """The archive's reader."""
        return self._reader

    @property
    def has_start(self) -> bool:
        """Whether the user names a start."""
        return bool(self._begin)

    def wants(self, name: TableName) -> bool:
        """Whether a table is selected."""
        wanted = self._reader.reading.options.wanted
        return not wanted or name in wanted

    def includes(self, record: BaseRecord) -> bool:
        """Whether everything in a base is before the range's end."""
        file_id = self._end.get("from_id")
        lsn = self._end.get("from_lsn")
        moment = self._end.get("from_time")
        if isinstance(moment, datetime):
            # Its transactions had committed by then.
            return record.time < moment
        if isinstance(lsn, int):
            return record.lsn <= lsn
        # The file in which the base continues may also contain changes that the base has.
        return not isinstance(file_id, int) or file_id > min(record.next_id, self._last_id)

    def loaded(self, record: BaseRecord) -> None:
        """The target has a base's rows."""
        self._bases.append(record)
        self.know([record.name])

    def know(self, names: Iterable[TableName]) -> None:
        """The target has these tables: the rest of the range may contain no change of them."""
        self._tables.update(names)

    def last(self) -> WalFileInfo | None:
        """The archive's last file, as of the run's start."""
        file = self._reader.get(self._last_id) if self._last_id else None
        return None if file is None else file.info

    def source(self) -> str:
        """The source of the changes."""
        file = next(self._reader.files(), None)
        if file is None:
            return ""
        return file.info.source

    def events(self, done: Position = ORIGIN, *, ids: bool = False) -> Iterator[Replayed]:
        """The range's events, from the end of an earlier run on; `ids`: with original ids."""
        return self._payloads.of(self._rows(done, ids=ids))

    def changes(self, done: Position = ORIGIN) -> Iterator[tuple[WalFileInfo, RowEntry]]:
        """The range's rows of tables, from the end of an earlier run on."""
        for info, entry in self._rows(done, ids=False):
            if entry.table is not None:
                yield info, entry

    def stored(self, count: int, up_to: Position) -> None:
        """The target has stored this many more changes."""
        self.count += count
        self._stored = max(self._stored, up_to)

    def finish(self) -> None:
        """Everything was read and stored: raises if that is less than requested."""
        if not self._at_end_asked and self._file_id < self._last_id:
            raise ReplayError(
                f"the archive reached to file {self._last_id} when the replay started, which "
                f"ended at file {self._file_id}",
                remedy="Run `headrace archive verify`, and run the replay again.",
            )
        self._at_end = True
        check_tables(self._reader, self._tables)
        self._stored = max(self._stored, self._read)

    def summary(self) -> str:
        """A run's progress in words."""
        said = f"{self.count} changes replayed"
        if self._bases:
            rows = sum(record.rows for record in self._bases)
            said = f"{rows} rows loaded from {len(self._bases)} bases, {said}"
        if not self._last_id:
            return f"{said}: the archive has no files"
        if self._stored > ORIGIN:
            said += f", up to {self._stored}"
        if self._at_end_asked:
            return f"{said}, where --to ends"
        if self._at_end:
            return f"{said}, the end of the archive"
        return f"{said}, not to the end"

    def _rows(self, done: Position, *, ids: bool) -> Iterator[tuple[WalFileInfo, RowEntry]]:
        start = self._start(done)
        selection = start.selection
        if done > ORIGIN and start.after == done:
            # From its transaction's first row on: ids count the rows of a WAL record.
            selection = ReadingStart(from_lsn=done.lsn).selection
        first = self._reader.run(
            start.first_id(self._reader.reading.options, self._reader.reading.seen)
        )
        self._file_id = first - 1
        self._read = done
        for file in self._reader.files(from_id=first):
            # An ID is a number.
            if file.id >= self._end.get("from_id", _ID_MAX):  # type: ignore[operator]
                self._at_end_asked = True
                return
            if ids and file.id == first:
                for entry in self._same_record_before(file, selection):
                    self._payloads.count(entry)
            for entry in file.entries(selection):
                if self._is_past(entry):
                    self._at_end_asked = True
                    return
                self._read = entry.position
                self._tables.add((entry.schema, entry.table))
                yield file.info, entry
            self._file_id = file.id
            # The file's own end, although its last rows may not be selected.
            self._read = file.info.last

    def _start(self, done: Position) -> ReadingStart:
        """Where to read from: the requested start, or after the end of an earlier run, whichever is
        later.
        """
        # Only an LSN can be compared with a position; any other start is read again from there.
        lsn = self._begin.get("from_lsn", 0)
        if (
            done > ORIGIN
            and self._begin.keys() <= {"from_lsn"}
            and isinstance(lsn, int)
            and lsn <= done.lsn
        ):
            return ReadingStart(after=done)
        return ReadingStart(**self._begin)  # type: ignore[arg-type]  # each place has its own type

    def _is_past(self, entry: RowEntry) -> bool:
        lsn = self._end.get("from_lsn")
        moment = self._end.get("from_time")
        if isinstance(lsn, int) and entry.commit_lsn >= lsn:
            return True
        return (
            isinstance(moment, datetime)
            and entry.commit_time is not None
            and entry.commit_time >= moment
        )

    def _same_record_before(self, file: WalFile, selection: RowSelection) -> list[RowEntry]:
        """Rows of earlier files that share a WAL record with the file's first row: its id counts
        them.
        """
        commit, seq = file.info.first
        if file.id > FIRST_ID and seq > 0:
            begun = next(file.entries(selection), None)
        else:
            begun = None
        if begun is None or begun.commit_lsn != commit:
            return []
        found: list[RowEntry] = []
        for file_id in range(file.id - 1, FIRST_ID - 1, -1):
            same = []
            others = False
            for entry in self._of_transaction(file_id, commit):
                if entry.lsn == begun.lsn:
                    same.append(entry)
                else:
                    others = True
            found += same
            if others or not same:
                break
        return found

    def _of_transaction(self, file_id: int, commit: int) -> Iterator[RowEntry]:
        try:
            file = self._reader.get(file_id)
        except WalFileCollectedError as error:
            raise ReplayError(
                f"file {file_id + 1} starts inside a transaction, and file {file_id} was "
                "removed by garbage collection: the original ids of its rows are unknown",
                remedy="Start at a later transaction: --from LSN.",
            ) from error
        if file is not None and file.info.last.lsn == commit:
            yield from file.entries(RowSelection(after=(commit - 1, _ID_MAX)))
