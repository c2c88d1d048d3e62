"""Compares source and mirror, table by table, each at one LSN, while both move.

The procedure: the mirror is asked to hold; the source's snapshot is taken, which gives the LSN; the
mirror continues to that LSN and no further; a read transaction on it is opened there
(`headrace.verify.at_lsn` says when), and it is released. Then both are read without holding up
either.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace

import nats.errors
import psycopg
from nats.aio.client import Client

from headrace import log as logs
from headrace.bus import subjects
from headrace.errors import HeadraceError
from headrace.jetstream.dictionaries import DictionaryReader
from headrace.mirror.mirror_state import identity_of, tables_of
from headrace.mirror.postgres import PostgresReading, PostgresTarget, error_of
from headrace.mirror.row_editor import is_editable
from headrace.mirror.soft_deleted_rows import unmarked_in_sql
from headrace.mirror.source_values import SourceValues
from headrace.mirror.table import Phase, Table, TableState
from headrace.mirror.target import ReadableTarget, TargetReading
from headrace.postgres.quoting import quote_table
from headrace.settings import Settings
from headrace.spark.request import SnapshotRequest
from headrace.spark.source import HeldSnapshot, TableRefusedError, held_snapshot
from headrace.verify import source
from headrace.verify.at_lsn import MirrorProgress, Stream, awaits, place_of, state_of
from headrace.verify.comparison import (
    ComparedTable,
    Comparison,
    HashedHere,
    HashedThere,
    compared,
)
from headrace.verify.digest import RANGES, Difference
from headrace.verify.forms import in_postgres, in_sqlite
from headrace.verify.repair import MovedError, repair
from headrace.verify.row_repair import RowRepair, rows_wanted
from headrace.verify.soft_deleted import count_marked, unmarked
from headrace.verify.sql_rows import SqlRows, settle
from headrace.verify.types import SqlType, types_of

log = logs.logger("verify")

# The mirror ends the hold after this time, so that a verifier that dies stops it only briefly.
HOLD_S = 30.0
ANSWER_S = 10.0
LOOK_S = 0.1
BOOTSTRAP_LOOK_S = 1.0
# Writes the rows that differ; returns their number.
Repairing = Callable[[], Awaitable[int]]
# Only a part of very many differences is found at a time.
REPAIRS_MAX = 20


class NotThereError(HeadraceError):
    """The mirror did not reach the source's LSN in time."""

    remedy = (
        "Check that the suite and the mirror run (`headrace status`, the mirror's log), or "
        "raise --wait."
    )


class NoMirrorError(HeadraceError):
    """The target contains no mirror."""

    remedy = "Run `headrace mirror --to …` first."


class RepairRefusedError(HeadraceError):
    """The rows that differ can't be written by a repair."""

    remedy = "Copy the table again: `headrace sinks reset NAME --to snapshot`."


class HistoryError(HeadraceError):
    """A history has a row for each change, and can't be compared with the source's rows."""

    remedy = "Query it with SQL, or name other tables with --table."


class PastError(HeadraceError):
    """The mirror passed the LSN before it could be held."""

    retry = True


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait for a mirror, and when to compare a table that differs once more.

    DDL that no row follows is reported a few seconds late: its differences disappear, lost changes
    stay.
    """

    wait_s: float = 60.0
    again_s: float = 6.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one table's comparison."""

    token: str
    lsn: int
    rows: int = 0
    ranges: int = 0
    found: tuple[Difference, ...] = ()
    # The reason why a table can't be compared row by row.
    why: str = ""
    # Columns of the key, which identify rows in `found`; empty: whole rows.
    key: tuple[str, ...] = ()
    # The number of rows that a repair wrote before this comparison.
    repaired: int = 0
    # The number of rows in the mirror that are marked as deleted, and not compared.
    marked: int = 0

    @property
    def equal(self) -> bool:
        return not (self.ranges or self.why)


@dataclass(slots=True)
class Verifier:
    """Compares a target with the settings' source."""

    settings: Settings
    client: Client
    target: ReadableTarget
    patience: Patience = field(default_factory=Patience)
    # Shows the rows that differ before they are written; None while nothing is to be repaired.
    _before_repair: Callable[[Verdict], None] | None = None
    _repaired: int = 0

    async def tables(self) -> list[TableState]:
        """The tables that the mirror contains."""
        async with self.target.reading() as reading:
            if identity_of(reading.marks) is None:
                raise NoMirrorError("the target contains no mirror")
            states = tables_of(reading.marks).values()
        return sorted(
            (s for s in states if s.phase is not Phase.GONE), key=lambda state: state.token
        )

    async def tokens(self) -> list[str]:
        """The tables that the mirror contains, as tokens."""
        return [state.token for state in await self.tables()]

    async def table(self, token: str) -> Verdict:
        """One table's verdict; a difference is checked again before it is reported."""
        if (refusal := await self._refusal(token)) is not None:
            return refusal
        deadline = time.monotonic() + self.patience.wait_s
        verdict = await self._once(token, deadline)
        # DDL that no row follows reaches the mirror late, so the first difference may be only that.
        if not verdict.equal:
            await asyncio.sleep(self.patience.again_s)
            # The first comparison may have used up the time, and the second needs as much.
            verdict = await self._once(
                token, max(deadline, time.monotonic() + self.patience.wait_s)
            )
        # A reason such as other columns may be DDL that is still on its way to the mirror.
        while verdict.why and time.monotonic() < deadline:
            await asyncio.sleep(1.0)
            # The time may be over before the next comparison. Then the known reason says more than
            # a mirror that was not reached.
            with contextlib.suppress(PastError, NotThereError):
                verdict = await self._once(token, deadline)
        return verdict

    def check_repairs(self) -> None:
        """Raise if this target can't be repaired."""
        # An editor finds rows in a transaction of the target, which a custom one may lack.
        if not isinstance(self.target, PostgresTarget) and not is_editable(self.target):
            raise RepairRefusedError(
                "--repair writes only into PostgreSQL, SQLite, DuckDB, MariaDB"
            )

    async def repair(self, token: str, show: Callable[[Verdict], None]) -> Verdict:
        """Compare; write the rows that differ, after showing them, and compare again."""
        if (refusal := await self._refusal(token)) is not None:
            return refusal
        verdict = await self._once(token, time.monotonic() + self.patience.wait_s)
        if verdict.equal:
            return verdict
        # The first difference may be DDL that no row follows, which reaches the mirror late.
        await asyncio.sleep(self.patience.again_s)
        self._before_repair = show
        self._repaired = 0
        try:
            for _ in range(REPAIRS_MAX):
                verdict = await self._once(token, time.monotonic() + self.patience.wait_s)
                if verdict.equal or verdict.why:
                    break
        finally:
            self._before_repair = None
        if not verdict.equal:
            verdict = await self.table(token)
        return replace(verdict, repaired=self._repaired)

    async def _refusal(self, token: str) -> Verdict | None:
        """The verdict on a table that needs no waiting: the mirror doesn't know its name."""
        known = {state.token: state for state in await self.tables()}
        if token in known and known[token].rules.history:
            raise HistoryError(f"{token} is a history of changes, which verify does not compare")
        if token in known and known[token].phase is Phase.PARKED:
            return Verdict(token, 0, why=f"it is parked: {known[token].why}")
        if token in known:
            return None
        there = (
            ", ".join(f"{s.schema}.{s.name}".removeprefix("public.") for s in known.values())
            or "none"
        )
        return Verdict(token, 0, why=f"the mirror has no such table; it has: {there}")

    async def _once(self, token: str, deadline: float) -> Verdict:
        while True:
            try:
                return await self._compare(token, deadline)
            except (PastError, NotThereError, MovedError):
                # The mirror is released by now: the next attempt takes another snapshot, at
                # another LSN.
                if time.monotonic() >= deadline:
                    raise

    async def _compare(self, token: str, deadline: float) -> Verdict:
        async with self.target.reading() as reading:
            state = state_of(reading.marks, token)
            identity = identity_of(reading.marks)
            waits = awaits(reading.marks)
        if state is None or identity is None or state.phase is Phase.GONE:
            return Verdict(token, 0, why="the mirror has no such table")
        if state.phase is not Phase.FOLLOWING:
            # Nothing may hold up a bootstrap.
            await asyncio.sleep(BOOTSTRAP_LOOK_S)
            raise NotThereError(f"{token} is being bootstrapped")
        # Readers stay at an older moment until the copy is shown (docs/adr/0020), so this LSN would
        # be waited for in vain.
        if waits:
            await asyncio.sleep(BOOTSTRAP_LOOK_S)
            raise NotThereError(f"{token} waits for a table that the mirror copies again")
        async with contextlib.AsyncExitStack() as stack:
            held = await self._held(stack, state, identity)
            if isinstance(held, Verdict):
                return held
            async with self._reading_at(held.lsn, state, deadline) as reading:
                # The reading keeps its moment, so the mirror may continue while rows are compared.
                # A repair needs it where it is.
                if self._before_repair is None:
                    await self._hold(identity, None)
                verdict, repairing = await self._rows(held, reading, token)
            # After the reading: while it is open, nobody can write to a DuckDB file.
            if self._before_repair is not None and repairing is not None:
                self._before_repair(verdict)
                self._repaired += await repairing()
            return verdict

    async def _held(
        self, stack: contextlib.AsyncExitStack, state: TableState, identity: str
    ) -> HeldSnapshot | Verdict:
        """The source's snapshot, with the mirror held before it."""
        # Before the snapshot: a mirror that had passed its LSN could not be compared with it.
        await self._hold(identity, 0)
        # Also if the snapshot fails: a mirror must not stay held.
        stack.push_async_callback(self._hold, identity, None)
        try:
            request = SnapshotRequest(state.token, state.schema, state.name)
            # A longer wait for older transactions would outlast the hold.
            settings = source.patient(self.settings, HOLD_S)
            held = await stack.enter_async_context(held_snapshot(settings, request))
        except TableRefusedError as error:
            return Verdict(state.token, 0, why=f"the source does not have it: {error}")
        # Its LSN is known only now; until then the mirror waited where it was.
        await self._hold(identity, held.lsn)
        return held

    async def _hold(self, identity: str, lsn: int | None) -> None:
        """Ask the mirror to hold (0), to go no further than an LSN, or to continue; a stopped
        mirror holds anyway.
        """
        body = json.dumps({"lsn": lsn, "for_s": HOLD_S}).encode()
        # A mirror that did not answer and continued is noticed later: it is past the LSN.
        with contextlib.suppress(nats.errors.NoRespondersError, TimeoutError):
            await self.client.request(subjects.hold(identity), body, timeout=ANSWER_S)

    @contextlib.asynccontextmanager
    async def _reading_at(
        self, lsn: int, before: TableState, deadline: float
    ) -> AsyncIterator[TargetReading]:
        """A reader of the mirror at exactly this LSN."""
        token = before.token
        # After the hold the mirror continues, and would soon be past the LSN.
        until = min(deadline, time.monotonic() + HOLD_S)
        # Until then an event may still be on its way, and its absence from the stream proves
        # nothing.
        while await source.confirmed_lsn(self.settings) < lsn:
            if time.monotonic() > until:
                raise NotThereError(
                    f"the stream has not reached the source's LSN; {token} can't be compared"
                )
            await asyncio.sleep(LOOK_S)
        stream = self._stream()
        place = MirrorProgress.BEHIND
        while time.monotonic() <= until:
            async with self.target.reading(before.live) as reading:
                state = state_of(reading.marks, token)
                place = MirrorProgress.BEHIND
                if state is not None:
                    place = await place_of(stream, reading.marks, state, lsn)
                if place is MirrorProgress.THERE:
                    yield reading
                    return
            if place is MirrorProgress.BOOTSTRAPPING:
                raise NotThereError(f"{token} is being bootstrapped")
            # It can't go back: only a later snapshot can be compared.
            if place is MirrorProgress.PAST:
                raise PastError(f"{token} went past the LSN")
            await asyncio.sleep(LOOK_S)
        raise NotThereError(f"the mirror's {token} is {place} and did not reach the source's LSN")

    def _stream(self) -> Stream:
        js = self.client.jetstream()
        names = self.settings.streams
        return Stream(js, names.cdc, DictionaryReader(js, names.state))

    async def _rows(
        self, held: HeldSnapshot, reading: TargetReading, token: str
    ) -> tuple[Verdict, Repairing | None]:
        state = state_of(reading.marks, token)
        assert state is not None
        assert state.live is not None
        ours = {c.name for c in state.live.source_columns}
        theirs = {c.name for c in held.columns if state.live.rules.keeps(c.name)}
        # Rows with other columns would differ in every range.
        if ours != theirs:
            lacks = ", ".join(sorted(theirs - ours)) or "none"
            has = ", ".join(sorted(ours - theirs)) or "none"
            why = f"columns missing in the mirror: {lacks}; columns only in the mirror: {has}"
            return Verdict(token, held.lsn, why=why), None
        names = [column.name for column in state.live.source_columns]
        key = state.live.key
        async with source.in_snapshot(self.settings, held) as connection:
            types = await types_of(connection, quote_table(state.schema, state.name))
            # Without ONLY, PostgreSQL adds the rows of tables that inherit from this one.
            relations = [f"ONLY {storage.relation}" for storage in held.storages]
            where = " AND ".join(f"({condition})" for condition in held.conditions) or "true"
            table = SqlRows(connection, relations, names, self._source_error, key, where)
            sides = await self._sides(table, reading, state.live, types)
            outcome = await compared(*sides, names, key)
            repairing = None
            if self._before_repair is not None and outcome.found:
                repairing = await self._repairing(held, reading.marks, state.live, outcome, sides)
        marked = await count_marked(reading, state.live)
        found = outcome.found
        verdict = Verdict(
            token, held.lsn, outcome.rows, outcome.ranges, found, key=key, marked=marked
        )
        return verdict, repairing

    async def _repairing(
        self,
        held: HeldSnapshot,
        marks: Mapping[str, str],
        live: Table,
        outcome: Comparison,
        sides: tuple[ComparedTable, ComparedTable],
    ) -> Repairing:
        """The function that writes the rows that differ. Their values are read here, while the
        source's snapshot is open.
        """
        one, other = sides
        if isinstance(self.target, PostgresTarget):
            if isinstance(one, HashedHere) and isinstance(other, HashedHere):
                # Both servers have a text for each value, though not the same one.
                outcome = replace(
                    outcome,
                    missing=await one.as_read(outcome.missing),
                    extra=await other.as_read(outcome.extra),
                )
            url = self.target.url
            return lambda: repair(url, marks, live, outcome)
        assert isinstance(one, HashedHere)
        assert isinstance(other, HashedHere)
        names = [column.name for column in live.source_columns]
        values = SourceValues(held, names, self.settings.format.arrays)
        wanted = await rows_wanted(one.read, one.forms, outcome.missing, values)
        made = RowRepair(live, marks, outcome, other.forms, wanted)
        return lambda: made.write(self.target)

    def _source_error(self, error: psycopg.Error) -> HeadraceError:
        return source.explained(error, self.settings)

    async def _sides(
        self, table: SqlRows, reading: TargetReading, live: Table, types: Mapping[str, SqlType]
    ) -> tuple[ComparedTable, ComparedTable]:
        lists = self.settings.format.arrays == "list"
        if isinstance(reading, PostgresReading):
            await settle(reading.connection)
            relation = reading.relation(live)
            where = unmarked_in_sql(live)
            mirror = SqlRows(
                reading.connection, [relation], table.names, error_of, table.key, where
            )
            there = await types_of(reading.connection, relation)
            forms = [
                in_postgres(types[name], there[name].name, lists=lists) for name in table.names
            ]
            # Every column has the same type on both servers, so equal values have equal texts, and
            # no row needs to leave a server (docs/adr/0024).
            if not any(forms):
                return HashedThere(table), HashedThere(mirror)
            return HashedHere(table.rows, forms), HashedHere(mirror.rows, forms)
        pairs = [in_sqlite(types[name], lists=lists) for name in table.names]
        return (
            HashedHere(table.rows, [pair[0] for pair in pairs]),
            HashedHere(lambda: unmarked(reading, live), [pair[1] for pair in pairs]),
        )


__all__ = ["RANGES", "NoMirrorError", "NotThereError", "Patience", "Verdict", "Verifier"]
