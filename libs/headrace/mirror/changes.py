"""Turns events into a mirror's steps, and updates the states of its tables. Does no I/O.

Promises: an event before a table's snapshot changes nothing. If events can't keep a table in sync,
that table is bootstrapped again, and no other. If readers see this table, nothing of its
transaction may be shown before the copy is: that raises.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from headrace.consumer import Event
from headrace.contract.events import GAP, SCHEMA
from headrace.contract.subjects_and_ids import table_token
from headrace.lsn import parse_lsn
from headrace.mirror.event_steps import Resync, gone, reshaped, row_steps, shape
from headrace.mirror.mirror_state import Book
from headrace.mirror.rules import RuleError
from headrace.mirror.scope import Takes, takes_all
from headrace.mirror.table import BootstrapRun, Phase, Table, TableState
from headrace.mirror.target import DropTable, Step

DIVERGED = "source_diverged"
_FILLED = frozenset({Phase.FOLLOWING, Phase.LOADING, Phase.LOADED})


class CopyWantedError(Exception):
    """Tables that readers see must be copied again."""

    def __init__(self, names: Sequence[tuple[str, str]], why: str, diverged_seq: int = 0) -> None:
        super().__init__(why)
        self.names = names
        self.why = why
        self.diverged_seq = diverged_seq


class Changes:
    def __init__(self, book: Book, *, every_table: bool, takes: Takes = takes_all) -> None:
        """A mirror of every table takes up new ones, of those that `takes` accepts."""
        self._book = book
        self._every_table = every_table
        self._takes = takes
        # Sources whose positions are no longer meaningful.
        self.diverged: set[str] = set()

    def of(self, events: Iterable[Event]) -> list[Step]:
        """The steps of these events, in order; updates the book accordingly."""
        return [step for event in events for step in self._of(event)]

    def _of(self, event: Event) -> list[Step]:
        if event.operation == GAP:
            self._gap(event)
            return []
        # Messages emitted with pg_logical_emit_message concern no table.
        if not event.table:
            return []
        state = self._book.tables.get(table_token(event.schema, event.table))
        if event.operation == SCHEMA:
            return self._schema(event, state)
        if state is None:
            self._unknown(event)
            return []
        return self._row(event, state)

    def _row(self, event: Event, state: TableState) -> list[Step]:
        if state.phase is Phase.LOADED:
            return self._staged(event, state)
        # The copy contains everything from before `since`. In other phases a copy is on its way,
        # which will contain the event or be caught up with it.
        if (
            state.phase is not Phase.FOLLOWING
            or state.live is None
            or event.position.lsn < state.since
        ):
            return []
        steps = row_steps(event, state.live)
        if isinstance(steps, Resync):
            self._copy([state], steps.why, event)
            return []
        return steps

    def _staged(self, event: Event, state: TableState) -> list[Step]:
        """For a table that is loaded and not shown yet."""
        assert state.run is not None
        found = staged_steps(event, state.run)
        if isinstance(found, Resync):
            self._copy([state], found.why, event)
            return []
        steps, run = found
        if run is not state.run:
            self._book.put(replace(state, run=run))
        return steps

    def _copy(
        self, states: Sequence[TableState], why: str, event: Event, diverged_seq: int = 0
    ) -> None:
        # The rows that readers see must stay at the last commit until the copy is loaded, so the
        # open transaction, which is ahead of it, can't be committed (docs/adr/0020).
        if not self._book.fresh and any(self._is_shown(state) for state in states):
            raise CopyWantedError(
                [(state.schema, state.name) for state in states], why, diverged_seq
            )
        # Readers see rows of the gap's tables from before the gap.
        lsn = 0 if event.operation == GAP else event.position.lsn
        for state in states:
            self._book.want(state.schema, state.name, why, lsn=lsn, diverged_seq=diverged_seq)

    def _is_shown(self, state: TableState) -> bool:
        """Whether readers see it, or will after this is applied."""
        shown_soon = state.phase is Phase.LOADED and state.awaited and self._book.is_moving
        return state.phase is Phase.FOLLOWING or shown_soon

    def _unknown(self, event: Event) -> None:
        if self._every_table and self._takes(event.schema, event.table):
            self._book.want(event.schema, event.table, "new in the stream")

    def _schema(self, event: Event, state: TableState | None) -> list[Step]:
        went = gone(event.payload)
        if went is not None:
            if state is None:
                return []
            steps = self._gone(event, state)
            # A renamed table continues under its new name, if the mirror follows that name.
            if went.now is not None and steps is not None:
                self._follow_name(event, state, *went.now)
            return steps or []
        if state is None:
            self._unknown(event)
            return []
        # The source was asked after this message, and had no such table: the message is older than
        # the answer.
        if state.phase is Phase.GONE and event.stream_seq <= state.outdated_seq:
            return []
        self._book.tell_of(state.token)
        if state.phase is Phase.GONE:
            self._book.want(state.schema, state.name, "it exists again")
        elif state.phase is Phase.PARKED and int(event.payload["version"]) > state.version:
            # The same shape would be refused again.
            self._book.want(state.schema, state.name, "its shape changed since it was parked")
        if state.phase is Phase.LOADED:
            return self._staged(event, state)
        if state.phase is Phase.FOLLOWING:
            return self._reshape(event, state)
        return []

    def _follow_name(self, event: Event, before: TableState, schema: str, name: str) -> None:
        if self._every_table and not self._takes(schema, name):
            return
        known = self._book.tables.get(table_token(schema, name))
        if known is None or (known.phase is Phase.GONE and event.stream_seq > known.outdated_seq):
            if before.live is not None and not self._book.fresh:
                # Readers must not miss it under both names.
                raise CopyWantedError([(schema, name)], "renamed")
            self._book.want(schema, name, "renamed")

    def _gone(self, event: Event, state: TableState) -> list[Step] | None:
        """None if a later snapshot of the table replaces it, or the table is gone already."""
        reached = 0
        if state.live:
            reached = state.since
        if state.run:
            reached = max(reached, state.run.lsn)
        if state.phase is Phase.GONE or event.position.lsn < reached:
            return None
        tables = [state.live, state.run.staged if state.run else None]
        self._book.forget(state)
        return [DropTable(table) for table in tables if table is not None]

    def _reshape(self, event: Event, state: TableState) -> list[Step]:
        live = state.live
        version = int(event.payload["version"])
        if live is None or (
            event.position.lsn < state.since and not outdated(live, state.version, event)
        ):
            return []
        if event.position.lsn >= state.since:
            change = reshaped(live, event.payload)
        else:
            change = Resync("an older shape")
        if isinstance(change, Resync):
            self._copy([state], change.why, event)
            return []
        self._book.put(
            replace(state, version=version, live=live if change is None else change.after)
        )
        if change is None:
            return []
        return [change]

    def _gap(self, event: Event) -> None:
        """Every table that was not copied after the gap has lost changes."""
        up_to = parse_lsn(str(event.payload["up_to"]))
        diverged = event.payload["reason"] == DIVERGED
        if diverged:
            self.diverged.add(event.source)
        concerned = []
        for state in self._book.tables.values():
            reached = state.since
            source = state.source
            if state.run is not None:
                reached = state.run.lsn
                source = state.run.source
            # After LSNs got another meaning, only tables that are wanted because of the gap are
            # known to be copied after it.
            if diverged:
                is_older = event.stream_seq > state.diverged_seq
            else:
                is_older = reached < up_to
            # A table that is only wanted is copied anyway. Its bootstrap reads the gap itself: the
            # source may be copying a snapshot from before it already.
            if state.phase in _FILLED and source == event.source and is_older:
                concerned.append(state)
        self._copy(concerned, "a gap in the stream", event, event.stream_seq if diverged else 0)


def staged_steps(event: Event, run: BootstrapRun) -> tuple[list[Step], BootstrapRun] | Resync:
    """The steps of an event for a table that readers don't see yet."""
    table = run.staged
    if event.operation == GAP:
        if _cuts_off(event, run):
            return Resync("a gap in the stream")
        return [], run
    # The snapshot contains it. A schema event is an exception: it shows whether the table was
    # created with the columns of the snapshot's moment.
    if event.position.lsn < run.lsn:
        if (
            event.operation == SCHEMA
            and event.payload["columns"]
            and outdated(table, run.version, event)
        ):
            return Resync("its shape was newer than the known schemas")
        return [], run
    if event.operation != SCHEMA:
        steps = row_steps(event, table)
        if isinstance(steps, Resync):
            return steps
        return steps, run
    # The follower forgets a dropped table when it reaches this event.
    if gone(event.payload) is None:
        change = reshaped(table, event.payload)
    else:
        change = None
    if isinstance(change, Resync):
        return change
    version = int(event.payload["version"])
    staged = table if change is None else change.after
    return [change] if change else [], replace(run, version=version, staged=staged)


def _cuts_off(gap: Event, run: BootstrapRun) -> bool:
    """Whether changes that a snapshot lacks were lost in a gap."""
    if gap.source != run.source:
        return False
    # Behind this gap LSNs have another meaning, so they can't tell whether the snapshot is from
    # after it.
    is_incomparable = gap.payload["reason"] == DIVERGED
    return is_incomparable or run.lsn < parse_lsn(str(gap.payload["up_to"]))


def outdated(table: Table, version: int, event: Event) -> bool:
    """Whether the shape that a table was created with was older than its snapshot's, as a later
    event shows.
    """
    if int(event.payload["version"]) <= version:
        return False
    try:
        return set(shape(event.payload).ruled(table.rules).columns) != set(table.columns)
    except RuleError:
        # Another copy tells why.
        return True
