"""The mirror's state: what the target contains, in memory as of its last commit.

Owns the only lock for writing. Promises that changes of the state are stored in the same
transaction as the rows that were written since the last commit.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from headrace import log as logs
from headrace.consumer import Event, Watermark
from headrace.consumer.watermark import Watermarks
from headrace.contract.subjects_and_ids import table_token
from headrace.lsn import format_lsn
from headrace.mirror.assembly import is_outside
from headrace.mirror.event_steps import coalesced
from headrace.mirror.rules import NO_RULES, CopyRules, Place
from headrace.mirror.table import Column, Phase, Table, TableState, decode_mark, encode_mark
from headrace.mirror.target import (
    CarryOver,
    CreateTable,
    DeleteRow,
    DropTable,
    InsertRows,
    SamePlaceError,
    Step,
    SwapTables,
    Target,
    TargetError,
)
from headrace.mirror.visible import VISIBLE, visible_in, visible_of
from headrace.process.failpoint import failpoint
from headrace.timing.waits import heed_cancellation

log = logs.logger("mirror")

FORMAT = 1
ABOUT = "mirror"
LANE = "lane "
TABLE = "table "
STALE_ROWS = "stale"
_STALE_COLUMNS = ("schema_name", "table_name", "lsn", "reason")
# Of a mirror with fresh tables: tables that show an older moment than the others.
STALE = Table(
    "headrace_mirror",
    "stale_tables",
    tuple(Column(name, "text") for name in _STALE_COLUMNS),
    _STALE_COLUMNS[:2],
    _STALE_COLUMNS[:2],
)
_COPIED = frozenset({Phase.WANTED, Phase.LOADING, Phase.LOADED})
# The lane without a source: how far the stream was seen, including irrelevant messages.
SEEN = ""


def _stale_row(values: Sequence[str]) -> dict[str, str]:
    return dict(zip(_STALE_COLUMNS, values, strict=True))


class FormatError(TargetError):
    """The target was written by another version of Headrace."""

    remedy = "Mirror into a new target, or use the version that created it."


def seen_by(lanes: Watermarks) -> int:
    """Everything of the stream up to this sequence is applied."""
    if SEEN in lanes:
        return lanes[SEEN].stream_seq
    return max((mark.stream_seq for mark in lanes.values()), default=0)


def has_passed(lanes: Watermarks, event: Event) -> bool:
    """Whether an event is applied: beyond the seen messages, its transaction is, if it committed
    before another applied one.

    Events outside transactions are compared by their stream sequence, because their LSNs have no
    order with those of transactions.
    """
    if event.stream_seq <= seen_by(lanes):
        return True
    mark = lanes.get(event.source)
    if mark is not None:
        if is_outside(event):
            return event.stream_seq <= mark.stream_seq
        if event.position <= mark.position:
            return True
    if event.lane == event.source:
        return False
    table = lanes.get(event.lane)
    return table is not None and event.advances and event.position <= table.position


def lanes_of(marks: Mapping[str, str]) -> Watermarks:
    """The watermarks among a target's marks."""
    return {
        key.removeprefix(LANE): decode_mark(text)
        for key, text in marks.items()
        if key.startswith(LANE)
    }


def settled(lanes: Watermarks) -> Watermarks:
    """Drop the lanes that an earlier version kept for each table of arrays, if their source is past
    them.
    """
    return {
        lane: mark
        for lane, mark in lanes.items()
        if "/" not in lane or mark.position > lanes.get(lane.split("/")[0], Watermark()).position
    }


def tables_of(marks: Mapping[str, str]) -> dict[str, TableState]:
    """The tables among a target's marks, by token."""
    states = [TableState.decode(text) for key, text in marks.items() if key.startswith(TABLE)]
    return {state.token: state for state in states}


def identity_of(marks: Mapping[str, str]) -> str | None:
    """The identity of this mirror; None for a target that no mirror has written to."""
    if ABOUT not in marks:
        return None
    about = json.loads(marks[ABOUT])
    if about["format"] != FORMAT:
        raise FormatError(f"the target has format {about['format']}, this version reads {FORMAT}")
    return str(about["id"])


class Book:
    def __init__(self, target: Target, *, fresh: bool = False, rules: CopyRules = NO_RULES) -> None:
        self.target = target
        # Of tables from their next copy on.
        self.rules = rules
        # Whether tables continue while another one that readers see is copied again.
        self.fresh = fresh
        # Held from the first write of a transaction of the target to its commit or rollback: the
        # target has one open transaction, and a second writer would be committed with it.
        self.lock = asyncio.Lock()
        # Set whenever the state of a table changes.
        self.news = asyncio.Event()
        self.identity = ""
        self.tables: dict[str, TableState] = {}
        # Of these: tables that are loaded and wait for the others to reach their snapshots; and
        # tables that readers need before their view can move on.
        self.loaded: list[TableState] = []
        self.awaited: list[TableState] = []
        # Whether the stream moves on a table that readers see, or that table waits for one that is
        # copied again.
        self.is_moving = False
        self.stands = False
        # Of the committed state: how far the stream was seen (SEEN), and how far each source is
        # applied.
        self.lanes: Watermarks = {}
        # The lanes from the next commit on.
        self._next_lanes: Watermarks = {}
        # The follower receives these tables, or all (None). Only they can join those it follows.
        self.subscribed: frozenset[str] | None = frozenset()
        # By token: the number of the bootstrap in force, and the number of times the stream has
        # reported the table. Not stored: bootstraps don't outlive the process.
        self._runs: dict[str, int] = {}
        self._told: dict[str, int] = {}
        # Changes of the state that the next commit stores, by key; None removes a key.
        self._changed: dict[str, str | None] = {}
        # By source, how far readers see everything: as stored, and as the follower knows from the
        # publisher's progress.
        self._visible: dict[str, int] = {}
        self._complete: dict[str, int] = {}
        # The rows of the table that names older tables; None if there is none.
        self._stale: list[list[str]] | None = None

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Hold the lock, unless this task is cancelled.

        A follower that fails keeps the lock until the target is opened again: what it wrote is not
        committed, and nobody may commit it. A cancelled task would wait for the lock forever.
        """
        heed_cancellation()
        async with self.lock:
            yield

    async def open(self) -> None:
        """Read what the target holds; anything not committed is forgotten."""
        self.lock = asyncio.Lock()
        self.subscribed = frozenset()
        self.identity = ""
        await self.roll_back()
        for token in self.tables:
            # Bootstraps of the connection before may still be running: their numbers no longer
            # match.
            self._runs[token] = self._runs.get(token, 0) + 1

    async def roll_back(self) -> None:
        """Forget everything uncommitted."""
        before, marks = self.tables, await self.target.load()
        self._changed = {}
        self._stale = json.loads(marks[STALE_ROWS]) if STALE_ROWS in marks else None
        self.lanes, self.tables = lanes_of(marks), tables_of(marks)
        for token, state in before.items():
            # A bootstrap may be running that only the forgotten state asked for.
            if token not in self.tables or self.tables[token].phase is not state.phase:
                self._runs[token] = self.run_of(token) + 1
        self._next_lanes = self.lanes
        self._visible, self._complete = visible_of(marks), {}
        self._sort()
        # A new target gets an identity with its first commit; a rollback before that keeps the
        # chosen one.
        self.identity = identity_of(marks) or self.identity or uuid.uuid4().hex
        if ABOUT not in marks:
            self._changed[ABOUT] = json.dumps({"format": FORMAT, "id": self.identity})

    @property
    def seen_seq(self) -> int:
        """Every message up to this sequence is in the target, or in a bootstrap."""
        return seen_by(self.lanes)

    @property
    def reached_seq(self) -> int:
        """No message beyond this sequence is in the target."""
        return max((mark.stream_seq for mark in self.lanes.values()), default=0)

    def passed(self, event: Event) -> bool:
        """Whether the follower is past an event: it is in the target, or concerns no table that was
        followed then.
        """
        return has_passed(self.lanes, event)

    def run_of(self, token: str) -> int:
        """Changes whenever a running bootstrap of the table has become pointless."""
        return self._runs.get(token, 0)

    def tell_of(self, token: str) -> None:
        """The stream reported that the source has the table."""
        self._told[token] = self.told_of(token) + 1

    def told_of(self, token: str) -> int:
        """Changes whenever the stream reports that the source has the table: an earlier refusal may
        be outdated.
        """
        return self._told.get(token, 0)

    def put(self, state: TableState) -> None:
        self.tables[state.token] = state
        self._changed[TABLE + state.token] = state.encode()
        self._sort()
        self.news.set()

    def _sort(self) -> None:
        """Cache what every event needs."""
        states = list(self.tables.values())
        self.loaded = [state for state in states if state.phase is Phase.LOADED]
        if self.fresh:
            awaited = []
        else:
            awaited = [state for state in states if state.awaited]
        self.awaited = [state for state in awaited if state.phase in _COPIED]
        self.is_moving = any(state.phase is Phase.FOLLOWING for state in states)
        self.stands = self.is_moving and any(
            state.phase is not Phase.LOADED for state in self.awaited
        )

    def want(
        self,
        schema: str,
        name: str,
        why: str,
        *,
        awaited: bool = False,
        lsn: int = 0,
        diverged_seq: int = 0,
    ) -> None:
        """The table must be bootstrapped (again); readers keep the current rows until then."""
        token = table_token(schema, name)
        state = self.tables.get(token) or TableState(schema, name)
        self._runs[token] = self._runs.get(token, 0) + 1
        log.info("bootstrap_wanted", table=token, why=why)
        # Readers see a parked table at an older moment than the others already: nothing waits for
        # its copy.
        is_shown = state.live is not None and state.phase is not Phase.PARKED
        awaited = not self.fresh and (awaited or state.awaited or is_shown)
        until = self._until(state, lsn)
        diverged_seq = max(diverged_seq, state.diverged_seq)
        self.put(
            replace(
                state,
                phase=Phase.WANTED,
                run=None,
                why=why,
                awaited=awaited,
                until=until,
                diverged_seq=diverged_seq,
                rules=self.rules.of(schema, name),
            )
        )

    def _until(self, state: TableState, lsn: int = 0) -> int:
        """The LSN before which all transactions committed whose rows readers see of a table at
        rest.
        """
        if state.phase is not Phase.FOLLOWING:
            return state.until
        return lsn or self.lanes.get(state.source, Watermark()).position.lsn

    def show(self, state: TableState) -> list[Step]:
        """The steps after which the table's copy is what readers see."""
        run = state.run
        assert run is not None
        live = replace(run.staged, staging=False)
        self.put(
            replace(
                state,
                phase=Phase.FOLLOWING,
                live=live,
                since=run.lsn,
                version=run.version,
                run=None,
                source=run.source,
                awaited=False,
                diverged_seq=0,
            )
        )
        log.info("bootstrap_done", table=state.token, rows=run.row_count, snapshot=run.snapshot_id)
        before = state.live
        if before is None:
            return [SwapTables(run.staged, replaces=False)]
        steps: list[Step] = []
        if before.keeps_rows_of(run.staged):
            # Their deletion was never an event here, so its own time is unknown.
            now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
            steps.append(CarryOver(run.staged, before, now))
        if before.place == run.staged.place:
            return [*steps, SwapTables(run.staged)]
        # Its name in the target is another one now.
        return [*steps, DropTable(before), SwapTables(run.staged, replaces=False)]

    def token_at(self, place: Place | None) -> str:
        """The token of the table that readers see there; empty if there is none."""
        there = (s.token for s in self.tables.values() if s.live and s.live.place == place)
        return next(there, "")

    def check_place(self, table: Table) -> None:
        """Raise if another table has the same name in the target."""
        for state in self.tables.values():
            is_other = state.token != table.token and state.phase is not Phase.GONE
            if is_other and state.place == table.place:
                raise SamePlaceError(
                    (table.schema, table.name), (state.schema, state.name), table.place
                )

    async def park(self, token: str, error: TargetError) -> None:
        """The target can't store this table; the others continue. If there are none, the target
        itself is unusable.
        """
        others = [state for name, state in self.tables.items() if name != token]
        if all(state.phase in {Phase.PARKED, Phase.GONE} for state in others):
            raise error
        log.error("table_parked", table=token, reason=str(error))
        state = self.tables[token]
        until = self._until(state)
        self.put(
            replace(state, phase=Phase.PARKED, run=None, why=str(error), awaited=False, until=until)
        )
        await self.commit()

    def remove(self, state: TableState) -> None:
        """The table was never here."""
        del self.tables[state.token]
        self._changed[TABLE + state.token] = None
        self._sort()

    def forget(self, state: TableState, outdated_seq: int = 0) -> None:
        """The source no longer has the table; the stream's messages about it are outdated up to
        this sequence.
        """
        self._runs[state.token] = self._runs.get(state.token, 0) + 1
        log.info("table_gone", table=state.token)
        self.put(
            replace(
                state,
                phase=Phase.GONE,
                live=None,
                run=None,
                awaited=False,
                outdated_seq=outdated_seq,
                diverged_seq=0,
            )
        )

    def keep_lanes(self, lanes: Watermarks) -> None:
        """These are all the lanes from the next commit on."""
        for lane in self._next_lanes.keys() - lanes.keys():
            self._changed[LANE + lane] = None
        for lane, mark in lanes.items():
            if self._next_lanes.get(lane) != mark:
                self._changed[LANE + lane] = encode_mark(mark)
        self._next_lanes = dict(lanes)

    def begin_at(self, stream_seq: int) -> None:
        """Follow from here, with every table to be bootstrapped."""
        self.keep_lanes({SEEN: Watermark(stream_seq=stream_seq)})
        for state in list(self.tables.values()):
            # Sequences of another stream, or from before this position, say nothing about later
            # messages.
            self.put(replace(state, outdated_seq=0, diverged_seq=0))
            if state.phase is not Phase.GONE:
                self.want(
                    state.schema, state.name, state.why if state.live is None else "fallen behind"
                )

    @property
    def sources(self) -> frozenset[str]:
        """The sources whose changes readers see."""
        of_tables = {s.source for s in self.tables.values() if s.phase is Phase.FOLLOWING}
        of_lanes = {lane for lane in self.lanes if "/" not in lane}
        return frozenset(of_tables | of_lanes) - {""}

    @property
    def lags(self) -> bool:
        """Whether it is unknown that the last transaction was its source's last one."""
        return any(
            self._complete.get(source, 0) <= self.lanes.get(source, Watermark()).position.lsn
            for source in self.sources
        )

    def complete_to(self, source: str, lsn: int) -> bool:
        """Note that everything of a source before this LSN is applied; whether the next commit
        would store more than the last one.
        """
        self._complete[source] = max(lsn, self._complete.get(source, 0))
        return self._visible_now() != self._visible

    def _visible_now(self) -> dict[str, int]:
        states = self.tables.values()
        return visible_in(self._next_lanes, states, self._complete, self._visible, fresh=self.fresh)

    def _stale_steps(self) -> list[Step]:
        """Name the tables that may be older than the others; only changes are written."""
        if not self.fresh:
            dropped: list[Step] = []
            if self._stale is not None:
                dropped.append(DropTable(STALE))
            self._keep_stale(None)
            return dropped
        older = [state for state in self.tables.values() if state.phase is not Phase.FOLLOWING]
        states = [state for state in older if state.live is not None]
        now = [[state.schema, state.name, format_lsn(state.until), state.why] for state in states]
        steps: list[Step] = []
        if self._stale is None:
            steps.append(CreateTable(STALE))
        before = self._stale or []
        steps += [DeleteRow(STALE, _stale_row(row)) for row in before if row not in now]
        if rows := [_stale_row(row) for row in now if row not in before]:
            steps.append(InsertRows(STALE, rows))
        self._keep_stale(now)
        return steps

    def _keep_stale(self, rows: list[list[str]] | None) -> None:
        if rows != self._stale:
            self._stale = rows
            if rows is None:
                self._changed[STALE_ROWS] = None
            else:
                self._changed[STALE_ROWS] = json.dumps(rows)

    async def write(self, steps: Sequence[Step]) -> None:
        """Call only while holding the lock."""
        if not steps:
            return
        try:
            await self.target.write(coalesced(steps))
        except TargetError:
            # Before the lock is released: its next holder must not commit a part of this.
            with contextlib.suppress(TargetError):
                await self.target.load()
            raise

    async def commit(self) -> None:
        """Call only while holding the lock."""
        await self.write(self._stale_steps())
        if (visible := self._visible_now()) != self._visible:
            self._visible = visible
            self._changed[VISIBLE] = json.dumps(visible)
        changed = self._changed
        self._changed = {}
        failpoint("mirror.before_commit")
        await self.target.commit(changed)
        failpoint("mirror.committed")
        # Only now: a bootstrap reads them without the lock, and takes as applied what they pass.
        self.lanes = self._next_lanes
