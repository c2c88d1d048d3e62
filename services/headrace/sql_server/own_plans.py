"""The plans of a session: how each kind of statement that reads the lake runs in the front."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headrace.lsn import format_lsn
from headrace.sql import wire
from headrace.sql.copy_to_stdout import BINARY_HEADER, BINARY_TRAILER, CopyForm, begun_with
from headrace.sql.statements import Declare, Run
from headrace.sql.wire import BINARY, TEXT, WireColumn, WireMessage
from headrace.sql_server.held_rows import hold
from headrace.sql_server.lake_reader import LakeReader
from headrace.sql_server.plans import LakeQuery, OpenRows, Portal, Statement
from headrace.sql_server.problems import (
    FailedError,
    StatementRefusedError,
    refused,
    transaction_failed,
)
from headrace.sql_server.state import SessionState

TEXT_OID: Final = 25
# A name that no client gives to a statement.
_ARGUMENTS: Final = b"headrace: the arguments of EXECUTE"
# With its schema, because the session's search_path could lead to another operator.
_CURSOR: Final = b"SELECT 1 FROM pg_catalog.pg_cursors WHERE name OPERATOR(pg_catalog.=) $1"


def text_column(name: str) -> WireColumn:
    """A column of texts that no table has."""
    return WireColumn(name.encode(), 0, 0, TEXT_OID, -1, -1)


@dataclass(slots=True)
class QueryPlan:
    """A query of the lake's tables."""

    state: SessionState
    reader: LakeReader
    query: LakeQuery

    async def execute(self, portal: Portal, rows_max: int) -> None:
        """Send the next rows."""
        sent = await self.fetch(portal, rows_max)
        # As in PostgreSQL: even if these were the last rows, only the next Execute finds that out.
        if rows_max and sent == rows_max:
            self.state.client.write(wire.PORTAL_SUSPENDED)
        else:
            self.state.client.write(wire.command_complete(f"SELECT {sent}"))

    async def fetch(
        self, portal: Portal, rows_max: int, forms: tuple[int, ...] | None = None
    ) -> int:
        """Send a portal's next rows, so many at most; returns how many."""
        sent = 0
        async with self.reader.statement():
            wanted = portal.column_forms if forms is None else forms
            rows = await self.opened(portal, wanted)
            async for count, data in self.reader.batches(rows, wanted, rows_max):
                await self.state.client.send(data)
                sent += count
        return sent

    async def opened(self, portal: Portal, forms: tuple[int, ...]) -> OpenRows:
        """The portal's rows; at the first call the query starts."""
        if portal.rows is None:
            types = portal.statement.parameters
            portal.rows = await self.reader.open(self.query, types, portal.values, forms)
        return portal.rows


@dataclass(slots=True)
class DeclarePlan:
    """DECLARE … CURSOR. The private PostgreSQL has a cursor of the same name, which can't be read:
    so names, transactions and savepoints are its own.
    """

    state: SessionState
    inner: Statement
    declare: Declare

    async def execute(self, portal: Portal, rows_max: int) -> None:  # noqa: ARG002  # a plan's call
        """Declare the cursor."""
        plan = self.inner.plan
        assert isinstance(plan, QueryPlan), "made of a lake query"
        words = self.declare.options
        if "HOLD" in words and "WITHOUT" not in words:
            await self._hold(plan, portal)
            return
        # First: after another call PostgreSQL would take the messages for a transaction block.
        placeholder = self.declare.head + b" SELECT headrace.unreadable()"
        # PostgreSQL refuses a name that is taken, and a cursor outside a transaction.
        await self.state.backend.call(placeholder)
        async with plan.reader.statement():
            await plan.reader.check(plan.query, self.inner.parameters, portal.values)
        cursor = Portal(self.inner, portal.values, self._forms())
        self.state.portals[self.declare.name] = cursor
        self.state.client.write(wire.command_complete("DECLARE CURSOR"))

    def _forms(self) -> tuple[int, ...]:
        form = BINARY if "BINARY" in self.declare.options else TEXT
        return (form,) * len(self.inner.columns or ())

    async def _hold(self, plan: QueryPlan, portal: Portal) -> None:
        """Declare a cursor WITH HOLD. In a block, the private PostgreSQL has a cursor of its name
        that is not held: it would read that one when it commits.
        """
        state, name, forms = self.state, self.declare.name, self._forms()
        in_block = state.status == "T"
        if name in state.portals or (not in_block and await _is_cursor(state, name)):
            shown = name.decode("utf-8", "replace")
            raise refused("42P03", f'cursor "{shown}" already exists')
        if in_block:
            quoted = b'"' + name.replace(b'"', b'""') + b'"'
            await state.backend.call(
                b"DECLARE " + quoted + b" CURSOR FOR SELECT headrace.unreadable()"
            )
        async with plan.reader.statement():
            types = self.inner.parameters
            rows = await plan.reader.open(plan.query, types, portal.values, forms)
            kept = await hold(plan.reader, rows, forms, state.portals.values())
        cursor = Portal(self.inner, portal.values, forms, kept, holds=True)
        cursor.held = cursor.fresh = not in_block
        state.portals[name] = cursor
        state.client.write(wire.command_complete("DECLARE CURSOR"))


@dataclass(slots=True)
class FetchPlan:
    """FETCH or MOVE on a cursor of the front."""

    state: SessionState
    name: bytes
    rows: int
    move: bool

    async def execute(self, portal: Portal, rows_max: int) -> None:  # noqa: ARG002  # no limit
        """Send the cursor's next rows."""
        cursor = await self._cursor()
        plan = cursor.statement.plan
        assert isinstance(plan, QueryPlan), "only queries have cursors"
        # A result of DuckDB can't skip rows, so MOVE reads them.
        if self.move:
            sent = 0
            async with plan.reader.statement():
                rows = await plan.opened(cursor, cursor.column_forms)
                async for count, _ in plan.reader.batches(rows, cursor.column_forms, self.rows):
                    sent += count
        else:
            # A cursor that was declared BINARY sends binary values in any case.
            binary = BINARY in cursor.forms
            forms = cursor.column_forms if binary else portal.column_forms
            sent = await plan.fetch(cursor, self.rows, forms)
        tag = f"{'MOVE' if self.move else 'FETCH'} {sent}"
        self.state.client.write(wire.command_complete(tag))

    async def _cursor(self) -> Portal:
        held = self.state.portals.get(self.name)
        if held is not None and held.held:
            if self.state.status == "E":
                raise transaction_failed()
            return held
        # A savepoint may have taken the cursor away.
        backend = self.state.backend
        await backend.send(wire.describe(b"P", self.name), wire.FLUSH)
        answer, _ = await backend.until(b"Tn")
        found = self.state.portals.get(self.name)
        if answer.kind == b"E":
            # PostgreSQL has lost its cursor, so the front's must not be read either.
            self.state.portals.pop(self.name, None)
            raise FailedError(answer)
        if found is None:
            raise refused("34000", "the cursor was declared again by another statement")
        return found


@dataclass(slots=True)
class ClosePlan:
    """CLOSE of a cursor that is held: the private PostgreSQL has none of its name."""

    state: SessionState
    name: bytes

    async def execute(self, portal: Portal, rows_max: int) -> None:  # noqa: ARG002  # a plan's call
        """Forget its rows."""
        if self.state.status == "E":
            raise transaction_failed()
        self.state.portals.pop(self.name, None)
        self.state.client.write(wire.command_complete("CLOSE CURSOR"))


async def forget_undone(state: SessionState) -> None:
    """ROLLBACK TO has taken away cursors that would be held after the transaction."""
    for name, portal in list(state.portals.items()):
        if portal.holds and not portal.held and not await _is_cursor(state, name):
            del state.portals[name]


async def _is_cursor(state: SessionState, name: bytes) -> bool:
    """Whether the private PostgreSQL has a cursor of a name."""
    rows = await state.backend.call(_CURSOR, [name], (TEXT_OID,))
    return bool(rows)


@dataclass(slots=True)
class CopyPlan:
    """COPY (…) TO STDOUT."""

    state: SessionState
    inner: Statement
    form: CopyForm
    options: bytes

    async def execute(self, portal: Portal, rows_max: int) -> None:  # noqa: ARG002  # no limit
        """Send all rows."""
        plan = self.inner.plan
        assert isinstance(plan, QueryPlan), "made of a lake query"
        client = self.state.client
        binary = self.form.form == "binary"
        cursor = Portal(self.inner, portal.values)
        sent = 0
        async with plan.reader.statement():
            forms = (BINARY if binary else TEXT,) * len(cursor.columns)
            rows = await plan.opened(cursor, forms)
            # After the query has started: an error must come in place of CopyOutResponse, not after
            # it.
            for message in await self._header():
                client.write(message.encode())
            # PostgreSQL sends the header with the first row, and clients rely on it.
            head = BINARY_HEADER if binary else b""
            async for count, data in plan.reader.batches(rows, forms, 0, self.form):
                if data:
                    await client.send(begun_with(head, data))
                    head = b""
                sent += count
        if binary:
            client.write(wire.frame(b"d", head + BINARY_TRAILER))
        client.write(wire.COPY_DONE + wire.command_complete(f"COPY {sent}"))

    async def _header(self) -> list[WireMessage]:
        """PostgreSQL's messages for no rows: the formats, and the header's line. It refuses wrong
        options.
        """
        names = [each.name.replace(b'"', b'""') for each in self.inner.columns or ()]
        # The same names without any table: the header's line is the one of the real query.
        nothing = b", ".join(b'NULL AS "' + name + b'"' for name in names)
        text = b"COPY (SELECT " + nothing + b" WHERE false) TO STDOUT " + self.options
        found = await self.state.backend.answers(text)
        wanted = b"H" if self.form.form == "binary" else b"Hd"
        return [message for message in found if message.kind in wanted]


@dataclass(slots=True)
class RunPlan:
    """EXECUTE of a statement that PREPARE, or the protocol, prepared."""

    state: SessionState
    prepared: Statement
    run: Run

    async def execute(self, portal: Portal, rows_max: int) -> None:
        """Run it with its arguments, which the private PostgreSQL computes."""
        prepared = self.prepared
        assert isinstance(prepared.plan, QueryPlan), "made of a lake query"
        if portal.rows is None:
            portal.values = await self._arguments()
        # The portal is that of EXECUTE; its rows are kept there between two parts.
        inner = Portal(prepared, portal.values, portal.forms, portal.rows)
        await prepared.plan.execute(inner, rows_max)
        portal.rows = inner.rows

    async def _arguments(self) -> tuple[bytes | None, ...]:
        types, given = self.prepared.parameters, self.run.arguments
        if len(types) != len(given):
            raise refused(
                "42601",
                "wrong number of parameters for the prepared statement",
                detail=f"Expected {len(types)} parameters but got {len(given)}.",
            )
        if not types:
            return ()
        # Of a statement of the same types, PostgreSQL computes them as for EXECUTE.
        backend = self.state.backend
        # An argument may call set_config; without a call, all names mean the same afterwards.
        if any(b"(" in each for each in given):
            self.state.command_ran()
        numbered = ", ".join(f"${number}" for number in range(1, len(types) + 1))
        text = f"SELECT {numbered}".encode()
        await backend.send(
            # Closing what doesn't exist is no error, and Parse refuses a name that is in use.
            wire.close(b"S", _ARGUMENTS),
            wire.Parse(_ARGUMENTS, text, types).encode(),
            wire.FLUSH,
        )
        await backend.until(b"3")
        answer, _ = await backend.until(b"1")
        if answer.kind == b"E":
            raise FailedError(answer)
        execute = b'EXECUTE "' + _ARGUMENTS + b'" (' + b", ".join(given) + b")"
        rows = await backend.call(execute, form=BINARY)
        return rows[0]


@dataclass(slots=True)
class ExplainPlan:
    """EXPLAIN of a query of the lake's tables: how DuckDB runs it."""

    state: SessionState
    plan: QueryPlan
    analyze: bool

    async def execute(self, portal: Portal, rows_max: int) -> None:  # noqa: ARG002  # few rows
        """Send DuckDB's plan, a line in each row."""
        async with self.plan.reader.statement():
            texts = await self.plan.reader.explain(
                self.plan.query, portal.statement.parameters, portal.values, analyze=self.analyze
            )
        client = self.state.client
        for text in texts:
            client.write(wire.data_row([text.encode()]))
        client.write(wire.command_complete("EXPLAIN"))


@dataclass(slots=True)
class ShowLsnPlan:
    """SHOW headrace.lsn: the LSN of the transaction's cut, which is pinned by it."""

    state: SessionState
    reader: LakeReader

    async def execute(self, portal: Portal, rows_max: int) -> None:  # noqa: ARG002  # one row
        """Send it."""
        if self.state.status == "E":
            raise transaction_failed()
        pinned = await self.reader.pin(await self.reader.facts())
        self.state.client.write(wire.data_row([format_lsn(pinned.lsn).encode()]))
        self.state.client.write(wire.command_complete("SHOW"))


@dataclass(slots=True)
class RefusedPlan:
    """A statement that can be described and not run."""

    error: StatementRefusedError

    async def execute(self, portal: Portal, rows_max: int) -> None:  # noqa: ARG002  # a plan's call
        """Refuse it."""
        raise self.error
