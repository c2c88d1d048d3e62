"""The bases from which a replay into a database starts: which ones, and how they are loaded.

Promises: the tables of a new target start from bases of before the range's end, or with the
archive's own beginning; a table with neither is refused. A load that was interrupted continues, and
readers of the target see none of its tables before all have the same moment. Never used where the
user names a start, or the target has changes already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import orjson

from headrace.archive import RowEntry
from headrace.archive.bases import BaseRecord, Bases
from headrace.archive.layout import FIRST_ID
from headrace.cli.archive.read import TableName
from headrace.cli.archive.replay_range import ReplayError, ReplayRun
from headrace.cli.archive.replay_tables import shape
from headrace.contract import exact
from headrace.contract.subjects_and_ids import table_token
from headrace.lsn import ORIGIN, Position
from headrace.mirror import CreateTable, DropTable, InsertRows
from headrace.mirror.mirror_state import SEEN, Book
from headrace.mirror.table import BootstrapRun, Phase, Table, TableState
from headrace.mirror.target import Step
from headrace.process.failpoint import failpoint

# Rows are written in portions, to bound the memory; a part is committed as a whole.
ROWS_A_STEP = 5000


@dataclass(frozen=True, slots=True)
class ReplayStart:
    """Where the changes after the bases begin."""

    # The slot; empty if there is no base.
    source: str = ""
    # Before the first change; ORIGIN: with the archive's first file.
    position: Position = ORIGIN
    # From this LSN on, all loaded tables show the same moment.
    level_lsn: int = 0


class BaseLoading:
    """Loads the bases of one replay."""

    def __init__(self, book: Book, run: ReplayRun) -> None:
        self._book = book
        self._run = run
        self._bases = Bases(run.reader.store)
        self._chosen: dict[TableName, BaseRecord] = {}

    async def load(self) -> ReplayStart:
        """Load each table's newest base into a table that readers don't see yet."""
        # A mirror's target: its tables are on their way there.
        if self._run.has_start or SEEN in self._book.lanes:
            return ReplayStart()
        self._chosen = await asyncio.to_thread(newest_bases, self._run)
        whole = await asyncio.to_thread(self._needs_beginning)
        await self._forget_others()
        for record in self._chosen.values():
            await self._load(record)
            self._run.loaded(record)
        if not self._chosen:
            return ReplayStart()
        failpoint("replay.bases_loaded")
        records = self._chosen.values()
        first = min(record.lsn for record in records)
        source = next(record.source for record in records)
        whole = whole or await asyncio.to_thread(self._begins_before_files)
        # No commit record starts directly before an LSN.
        before = ORIGIN if whole else Position(first - 1, 0)
        return ReplayStart(source, before, max(record.lsn for record in records))

    def shown(self) -> list[Step]:
        """The steps after which readers see what was loaded."""
        return [
            step
            for name in self._chosen
            for step in self._book.show(self._book.tables[_token(name)])
        ]

    def _needs_beginning(self) -> bool:
        """Whether a table needs the whole archive, as it has no base; raises if that is not there
        any more.
        """
        listed = self._run.reader.list()
        if not listed:
            return False
        last = self._run.reader.get(listed[-1].id)
        known = _tables(last.info.versions if last is not None else {})
        without = {name for name in known - self._chosen.keys() if self._run.wants(name)}
        if not without or listed[0].id == FIRST_ID:
            return bool(without)
        first = next(self._run.reader.files(), None)
        # A table that the first file that is left does not know is younger.
        lost = sorted(without & _tables(first.info.versions if first is not None else {}))
        if lost:
            name = ".".join(str(part) for part in lost[0])
            raise ReplayError(
                f"{name} has no base before the range's end, and the archive's files no longer "
                "reach back to the table's beginning",
                remedy=(
                    "Name other tables with --table; or a start with --from, for a target that "
                    "already has the rows from before. `headrace archive base now` takes a base "
                    "for the next time."
                ),
            )
        return True

    def _begins_before_files(self) -> bool:
        """Whether a base is older than the archive's first file, which starts at a later LSN if the
        log contained nothing in between.
        """
        listed = self._run.reader.list()
        is_first = any(record.next_id == FIRST_ID for record in self._chosen.values())
        return is_first and bool(listed) and listed[0].id == FIRST_ID

    async def _forget_others(self) -> None:
        """Drop what an earlier run loaded from bases that are not the ones now."""
        wanted = {
            _token(name): (record.id, self._staged(record)) for name, record in self._chosen.items()
        }
        for state in list(self._book.tables.values()):
            run = state.run
            if run is None or wanted.get(state.token) == (run.snapshot_id, run.staged):
                continue
            if state.phase is Phase.LOADING:
                async with self._book.lock:
                    await self._book.write([DropTable(run.staged)])
                    self._book.remove(state)
                    await self._book.commit()

    async def _load(self, record: BaseRecord) -> None:
        state = self._book.tables.get(_token(record.name))
        if state is None:
            state = await self._begin(record)
        run = state.run
        if state.phase is not Phase.LOADING or run is None:
            # Of another source.
            raise ReplayError(
                f"the target already has {record.table.schema}.{record.table.table}, from another "
                "archive",
                remedy="Replay into another target.",
            )
        for number, part in enumerate(record.parts[run.chunks :], run.chunks + 1):
            rows = (entry for _, entry in self._bases.entries(record, part))
            # Rows and the number of parts are committed together: a rerun continues with the next.
            run = replace(run, chunks=number, rows=run.rows + part.rows)
            await self._write(state, run, rows)
            failpoint("replay.base_part")

    def _staged(self, record: BaseRecord) -> Table:
        return replace(shape(record.table, self._run.called), staging=True)

    async def _begin(self, record: BaseRecord) -> TableState:
        staged = self._staged(record)
        self._book.check_place(staged)
        run = BootstrapRun(
            record.id,
            record.lsn,
            len(record.parts),
            record.rows,
            staged,
            source=record.source,
        )
        state = TableState(
            record.table.schema,
            record.table.table,
            phase=Phase.LOADING,
            run=run,
            relation_id=record.table.relation_id,
        )
        async with self._book.lock:
            # It must not replace a table that somebody else made.
            await self._book.write([CreateTable(staged, replaces=False)])
            self._book.put(state)
            await self._book.commit()
        return state

    async def _write(self, state: TableState, run: BootstrapRun, rows: Iterator[RowEntry]) -> None:
        async with self._book.lock:
            while portion := await asyncio.to_thread(_portion, rows):
                await self._book.write([InsertRows(run.staged, portion)])
            self._book.put(replace(state, run=run))
            await self._book.commit()


def newest_bases(run: ReplayRun) -> dict[TableName, BaseRecord]:
    """By table: the newest base that the range includes."""
    first = next(run.reader.files(), None)
    found: dict[TableName, BaseRecord] = {}
    for base in Bases(run.reader.store).all():
        record = base.record
        mine = first is None or record.archive == first.info.archive
        if mine and run.wants(record.name) and run.includes(record):
            found[record.name] = record
    return found


def _portion(rows: Iterator[RowEntry]) -> Sequence[exact.Row]:
    """The next rows, nothing lost."""
    return [
        exact.row({"data": entry.after, "exact": entry.exact if entry.exact_json else None})
        for entry in islice(rows, ROWS_A_STEP)
    ]


def _tables(versions: Mapping[str, object]) -> set[TableName]:
    """The tables of a file's `versions`: of all files up to it."""
    return {tuple(orjson.loads(name)) for name in versions}


def _token(name: TableName) -> str:
    schema, table = name
    return table_token(str(schema), str(table))
