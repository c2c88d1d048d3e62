"""Compares a lake with its source, table by table, while both move.

The procedure: the source's snapshot is taken, which gives an LSN; the first cut at that LSN or
later is waited for. Both are read. Rows that changed between the LSN and the cut, as the archive
says, may differ, and are not compared.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import psycopg
from pyiceberg.schema import Schema

from headrace.archive import WalReader, WalReaderOptions
from headrace.archive.entry import RowEntry
from headrace.errors import HeadraceError
from headrace.lake.catalog import Catalog, Cut, TableName
from headrace.lake.files import LakeFiles
from headrace.postgres.quoting import quote_table
from headrace.settings import Settings
from headrace.spark.request import SnapshotRequest
from headrace.spark.source import HeldSnapshot, TableRefusedError, held_snapshot
from headrace.verify import source
from headrace.verify.check import NotThereError, Verdict
from headrace.verify.comparison import HashedHere, compared
from headrace.verify.digest import Row
from headrace.verify.lake_forms import in_archive_key, in_lake
from headrace.verify.lake_rows import EXACT, LakeRows
from headrace.verify.sql_rows import SqlRows
from headrace.verify.types import SqlType, types_of

# For older transactions: a comparison names those that it waited for, and doesn't wait longer.
HOLD_S = 30.0
LOOK_S = 0.2
AGAIN_S = 1.0
_CHANGES = frozenset({"insert", "update", "delete"})


class RestlessTableError(HeadraceError):
    """The table changes in a way that looks like a difference."""

    remedy = "Verify it when it changes less, or give it a primary key."


@dataclass(frozen=True, slots=True)
class LakeVerdict:
    """The outcome of one table's comparison, and how many rows were not compared."""

    verdict: Verdict
    cut: int
    moving: int


@dataclass(slots=True)
class LakeVerifier:
    """Compares a lake with the settings' source."""

    settings: Settings
    files: LakeFiles
    catalog: Catalog
    wait_s: float

    async def table(self, name: TableName) -> LakeVerdict:
        """One table's verdict; a difference is checked again before it is reported."""
        deadline = time.monotonic() + self.wait_s
        first = await self._settled(name, deadline)
        if first.verdict.equal:
            return first
        # DDL that no row follows reaches the lake a little later.
        await asyncio.sleep(AGAIN_S)
        return await self._settled(name, time.monotonic() + self.wait_s)

    async def _settled(self, name: TableName, deadline: float) -> LakeVerdict:
        while True:
            try:
                return await self._once(name, deadline)
            except RestlessTableError:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(AGAIN_S)

    async def _once(self, name: TableName, deadline: float) -> LakeVerdict:
        token = str(name)
        request = SnapshotRequest(token, name.namespace, name.name)
        settings = source.patient(self.settings, HOLD_S)
        try:
            async with held_snapshot(settings, request) as held:
                cut = await self._cut_at(held.lsn, token, deadline)
                return await self._compared(name, held, cut)
        except TableRefusedError as error:
            why = f"the source does not have it: {error}"
            return LakeVerdict(Verdict(token, 0, why=why), 0, 0)

    async def _cut_at(self, lsn: int, token: str, deadline: float) -> Cut:
        """The first cut that shows everything before an LSN."""
        while True:
            cut = await asyncio.to_thread(self.catalog.last_cut, self.settings.source.slot)
            if cut is not None and cut.lsn >= lsn:
                return cut
            if time.monotonic() > deadline:
                raise NotThereError(
                    f"the lake did not reach the source's LSN; {token} can't be compared",
                    remedy="Check that the suite and the lake-writer run (`headrace lake status`), "
                    "or raise --wait.",
                )
            await asyncio.sleep(LOOK_S)

    async def _compared(self, name: TableName, held: HeldSnapshot, cut: Cut) -> LakeVerdict:
        token = str(name)
        location = self.catalog.tables().get(name)
        if location is None or token not in cut.tables:
            verdict = Verdict(token, held.lsn, why="the lake does not have it")
            return LakeVerdict(verdict, cut.number, 0)
        names = [column.name for column in held.columns]
        lake = LakeRows(self.files, location, cut.tables[token], names)
        schema = await asyncio.to_thread(lake.schema)
        if why := _columns_differ(names, schema):
            return LakeVerdict(Verdict(token, held.lsn, why=why), cut.number, 0)
        async with source.in_snapshot(self.settings, held) as connection:
            # In the snapshot, whose types the rows have; the table may have others by now.
            types = await types_of(connection, quote_table(name.namespace, name.name))
            stored = {each: schema.find_type(each) for each in names}
            forms = [in_lake(types[each], stored[each]) for each in names]
            moving = await asyncio.to_thread(self._moving, name, held, cut, types, schema)
            relations = [f"ONLY {storage.relation}" for storage in held.storages]
            where = " AND ".join(f"({condition})" for condition in held.conditions) or "true"
            # With ONLY: tables that inherit from this one are published with their own rows.
            rows = SqlRows(connection, relations, names, self._source_error, held.key, where)
            outcome = await compared(
                HashedHere(rows.rows, [there for there, _ in forms]),
                HashedHere(lake.rows, [here for _, here in forms]),
                names,
                held.key,
                moving,
            )
        verdict = Verdict(
            token, held.lsn, outcome.rows, outcome.ranges, outcome.found, key=held.key
        )
        return LakeVerdict(verdict, cut.number, len(moving))

    def _moving(
        self,
        name: TableName,
        held: HeldSnapshot,
        cut: Cut,
        types: Mapping[str, SqlType],
        schema: Schema,
    ) -> frozenset[Row]:
        """The keys of rows that changed after the snapshot and before the cut."""
        forms = {each: in_archive_key(types[each], schema.find_type(each)) for each in held.key}
        found: set[Row] = set()
        for entry in self._entries(name, held.lsn, cut.lsn):
            # A TRUNCATE, and a row without a key, concern rows that no key could leave out.
            if entry.operation not in _CHANGES or not held.key:
                raise RestlessTableError(f"{name} changes while it is being compared")
            # An update of the key moves the row: the comparison meets it under either key.
            for text in (entry.key_json, entry.before_json):
                values: Mapping[str, Any] = {} if text is None else orjson.loads(text)
                if values.keys() >= forms.keys():
                    found.add(tuple(form(values[each]) for each, form in forms.items()))
        return frozenset(found)

    def _entries(self, name: TableName, begin: int, end: int) -> list[RowEntry]:
        """The table's changes that committed from one LSN on and before another."""
        if begin >= end or self.settings.archive.url is None:
            return []
        # After a gap the lake-writer copies all tables again, so a gap is no reason to stop.
        reader = WalReader(self.settings.archive.url, WalReaderOptions(raise_at_gap=False))
        found = []
        for entry in reader.follow(from_lsn=begin, wait=False):
            if entry.commit_lsn >= end:
                break
            if (entry.schema, entry.table) == (name.namespace, name.name):
                found.append(entry)
        return [entry for entry in found if entry.commit_lsn >= begin]

    def _source_error(self, error: psycopg.Error) -> HeadraceError:
        return source.explained(error, self.settings)


def _columns_differ(names: list[str], schema: Schema) -> str:
    there = {field.name for field in schema.fields} - {EXACT}
    if there == set(names):
        return ""
    lacks = ", ".join(sorted(set(names) - there)) or "none"
    has = ", ".join(sorted(there - set(names))) or "none"
    return f"columns missing in the lake: {lacks}; columns only in the lake: {has}"
