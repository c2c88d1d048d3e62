"""Runs a statement in the private PostgreSQL itself, on the rows of the transaction's cut.

It is for statements with something that is not proven equal in DuckDB. The session's own connection
runs it: settings, role, transaction, `statement_timeout` and errors are PostgreSQL's. Only while
the statement is parsed and planned, `search_path` begins with a schema of `ExactTables`; before it
runs, its tree must be the statement's with the tables replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

import psycopg

from headrace.errors import describe
from headrace.sql import wire
from headrace.sql.errors import NotProvenEqualError
from headrace.sql.exact_text import calls, is_same, mentions, without_schemas
from headrace.sql.query_tree import QueryTreeError, parse_tree
from headrace.sql.wire import BINARY, Problem, WireMessage
from headrace.sql_server.exact_tables import ExactSchema, NotExactError, Use
from headrace.sql_server.lake_run import Pinned
from headrace.sql_server.plans import LakeQuery
from headrace.sql_server.problems import (
    NOT_SUPPORTED,
    FailedError,
    StatementRefusedError,
    refused,
    unsupported,
)
from headrace.sql_server.state import SessionState

# Rows between two looks at limits; the connection waits for a message of the front then.
_PART_ROWS: Final = 10_000
_SEND_BYTES: Final = 64 * 1024
_STATEMENT: Final = b"headrace: an exact statement"
# It names a value's type, and the tables' row types have other names here.
_PG_TYPEOF: Final = frozenset({1619})
_ENTER: Final = (
    b"SELECT pg_catalog.current_setting('search_path'), pg_catalog.set_config('search_path', "
    b"pg_catalog.concat_ws(', ', $1, pg_catalog.current_setting('search_path')), true)"
)
_LEAVE: Final = b"SELECT pg_catalog.set_config('search_path', $1, true)"
_TEXT_OID: Final = 25


class OtherStatementError(StatementRefusedError):
    """The statement means something else on these tables; another schema may serve."""


async def _twice(work: Callable[[], Awaitable[None]]) -> None:
    """Work with one schema, and once more with a new one if it doesn't serve."""
    try:
        await work()
    except OtherStatementError:
        await work()


@dataclass(slots=True)
class ExactRows:
    """An open portal of the private PostgreSQL."""

    runner: ExactRunner
    portal: bytes
    forms: tuple[int, ...]
    ended: bool = False

    async def parts(self, forms: Sequence[int], rows_max: int) -> AsyncIterator[tuple[int, bytes]]:
        """The next DataRow messages, so many at most (0: all), and how many they are."""
        # PostgreSQL fixes the forms of a portal when it makes it.
        if tuple(forms) != self.forms:
            raise refused(NOT_SUPPORTED, "a cursor that is read in two forms is not supported")
        taken = 0
        while not self.ended and (not rows_max or taken < rows_max):
            # In parts, also for a client that wants all rows: between them the front looks at its
            # limits.
            wanted = min(rows_max - taken, _PART_ROWS) if rows_max else _PART_ROWS
            async for count, data in self.runner.part(self, wanted):
                taken += count
                yield count, data


class ExactRunner:
    """One session's statements in the private PostgreSQL."""

    def __init__(
        self, state: SessionState, without_limit: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._state = state
        self._without_limit = without_limit
        self._portals = 0

    @property
    def is_allowed(self) -> bool:
        """Whether statements are ever run this way."""
        return self._state.lake.exact.rows_max > 0

    async def open(
        self,
        query: LakeQuery,
        types: Sequence[int],
        values: Sequence[bytes | None],
        forms: Sequence[int],
        reason: StatementRefusedError,
    ) -> ExactRows:
        """Start a statement; raises the reason, with what is missing, if it can't be run here.

        The caller has checked its rights, and pinned its cut.
        """
        self._portals += 1
        portal = b"headrace: exact %d" % self._portals

        async def bind() -> None:
            schema = await self._taken(query, reason)
            async with self._shown(schema, query, types, reason):
                await self._bound(portal, _STATEMENT, values, forms)

        await _twice(bind)
        self._state.lake.stats.count("sql_exact_statements")
        return ExactRows(self, portal, tuple(forms))

    async def plan(
        self, query: LakeQuery, types: Sequence[int], values: Sequence[bytes | None]
    ) -> None:
        """Let PostgreSQL plan a statement, on tables without rows, for its planner's errors."""
        # Answered from the copy, it could give no rows where PostgreSQL raises an error.
        reason = unsupported("an expression of constants in this statement")
        portal = b"headrace: a plan"

        async def bind() -> None:
            schema = await self._taken(query, reason, planned=True)
            async with self._shown(schema, query, types, reason):
                await self._bound(portal, _STATEMENT, values, ())

        await _twice(bind)
        # Planning was the purpose. The portal would hold its tables until the transaction ends.
        await self._state.backend.send(wire.close(b"P", portal), wire.FLUSH)
        await self._state.backend.until(b"3")

    async def explain(
        self,
        query: LakeQuery,
        types: Sequence[int],
        values: Sequence[bytes | None],
        verb: bytes,
        reason: StatementRefusedError,
    ) -> list[str]:
        """PostgreSQL's plan of a statement."""
        schema = await self._taken(query, reason)
        async with self._shown(schema, query, types, reason):
            text = verb + b" " + without_schemas(query.text, schema.names)
            given = (BINARY,) * len(values)
            # EXPLAIN ANALYZE runs the statement, which may call set_config.
            self._state.command_ran()
            rows = await self._state.backend.call(text, values, types, formats=given)
        return [(line or b"").decode() for (line,) in rows]

    async def part(self, rows: ExactRows, rows_max: int) -> AsyncIterator[tuple[int, bytes]]:
        """The next rows of a portal, in messages for the client."""
        backend = self._state.backend
        # It may call set_config.
        self._state.command_ran()
        with self._cancellable(), backend.exact():
            await backend.send(wire.execute(rows.portal, rows_max), wire.FLUSH)
            waiting: list[bytes] = []
            size = 0
            while (message := await backend.next()).kind == b"D":
                waiting.append(message.encode())
                size += len(message.body)
                if size > _SEND_BYTES:
                    yield len(waiting), b"".join(waiting)
                    waiting, size = [], 0
            if message.kind == b"E":
                raise FailedError(message)
            # `s` is PortalSuspended: the portal has more rows.
            rows.ended = message.kind != b"s"
            if waiting:
                yield len(waiting), b"".join(waiting)

    async def _taken(
        self, query: LakeQuery, reason: StatementRefusedError, *, planned: bool = False
    ) -> ExactSchema:
        """The tables, which stay until the transaction ends."""
        tables = self._state.lake.exact
        if not planned and not tables.rows_max:
            raise reason
        columns: dict[int, frozenset[int]] = dict.fromkeys(query.relids, frozenset())
        for need in query.needs:
            # ctid, xmin and the like would show rows of another table.
            if any(number < 0 for number in need.columns):
                raise _because(reason, "its rows have no system columns")
            if need.relid in columns:
                columns[need.relid] |= need.columns
        runner = self._state.runner
        # SET ROLE may have changed it since the login.
        role = await self._state.backend.call(b"SELECT current_user")

        def take(pinned: Pinned) -> ExactSchema:
            pinned.prepare(query.relids)
            use = Use(
                {relid: _all(pinned, relid, numbers) for relid, numbers in columns.items()},
                query.needs,
                (role[0][0] or b"").decode(),
            )
            return tables.take(pinned, use, planned=planned)

        try:
            # In a thread: filling takes long, and a cancel request has to be seen meanwhile.
            schema = await runner.apart(take)
        except NotExactError as error:
            limit = f"HEADRACE_SQL_EXACT_ROWS_MAX is {tables.rows_max}"
            raise _because(reason, f"{describe(error)}, and {limit}") from error
        except NotProvenEqualError as error:
            raise _because(reason, describe(error)) from error
        except psycopg.OperationalError as error:
            # It was killed: the session ends soon, and the statement itself is fine.
            raise refused("57P03", "the private PostgreSQL does not answer") from error
        except psycopg.Error as error:
            raise _because(reason, str(error).partition("\n")[0]) from error
        # A cursor reads them until then, and a second statement finds them filled.
        runner.hold(lambda: tables.release(schema))
        return schema

    @contextlib.asynccontextmanager
    async def _shown(
        self,
        schema: ExactSchema,
        query: LakeQuery,
        types: Sequence[int],
        reason: StatementRefusedError,
    ) -> AsyncIterator[None]:
        """The schema comes first in `search_path`, and the statement is parsed and is the same."""
        backend = self._state.backend
        with self._without_limit(), self._cancellable(), backend.exact():
            # The setting is local to the transaction, and is set back before the client's next
            # statement.
            rows = await backend.call(_ENTER, [schema.name.encode()], (_TEXT_OID,))
            # An error fails the transaction, and that takes the setting back.
            await self._parsed(schema, query, types, reason)
            # Before anything runs: a text that means something else must not be answered.
            same = self._is_the_statement(schema, query)
            if same:
                yield
            await backend.call(_LEAVE, [rows[0][0]], (_TEXT_OID,))
            if not same:
                # A view may have changed, or a crash of the private PostgreSQL took tables away.
                schema.stale = True
                refusal = _because(reason, "it reads the statement differently on other tables")
                raise OtherStatementError(refusal.problem)

    async def _parsed(
        self,
        schema: ExactSchema,
        query: LakeQuery,
        types: Sequence[int],
        reason: StatementRefusedError,
    ) -> None:
        backend = self._state.backend
        backend.forget_trees()
        text = without_schemas(query.text, schema.names)
        await backend.send(
            wire.close(b"S", _STATEMENT),
            wire.Parse(_STATEMENT, text, tuple(types)).encode(),
            wire.FLUSH,
        )
        await backend.until(b"3")
        answer, _ = await backend.until(b"1")
        if answer.kind == b"E":
            schema.stale = True
            # PostgreSQL's own error would name the hidden schema.
            problem = _because(reason, "it doesn't read the statement on other tables").problem
            raise FailedError(WireMessage(b"E", problem.encode()[wire.HEADER_BYTES :]))

    def _is_the_statement(self, schema: ExactSchema, query: LakeQuery) -> bool:
        trees = self._state.backend.trees
        if len(trees) != 1:
            return False
        try:
            nodes = parse_tree(trees[0].decode())
        except QueryTreeError:
            return False
        # The only function that would show the name of another row type.
        if mentions(query.node, schema.types.keys()) and calls(query.node, _PG_TYPEOF):
            return False
        return len(nodes) == 1 and is_same(query.node, nodes[0], schema.replaced)

    async def _bound(
        self,
        portal: bytes,
        statement: bytes,
        values: Sequence[bytes | None],
        forms: Sequence[int],
    ) -> None:
        """PostgreSQL plans here; its errors are the statement's."""
        backend = self._state.backend
        bind = wire.Bind(portal, statement, (BINARY,) * len(values), tuple(values), tuple(forms))
        await backend.send(wire.close(b"P", portal), bind.encode(), wire.FLUSH)
        await backend.until(b"3")
        answer, _ = await backend.until(b"2")
        if answer.kind == b"E":
            raise FailedError(answer)

    @contextlib.contextmanager
    def _cancellable(self) -> Iterator[None]:
        """A request to cancel goes to the private PostgreSQL."""

        # Also if the request came a moment ago, before the private PostgreSQL was asked.
        async def pass_on() -> None:
            await self._state.runner.cancelled.wait()
            await self._state.cancel_backend()

        watch = asyncio.create_task(pass_on(), name="exact-cancel")
        try:
            yield
        finally:
            watch.cancel()


def _all(pinned: Pinned, relid: int, numbers: frozenset[int]) -> frozenset[int]:
    """A whole row is all columns."""
    if 0 not in numbers:
        return numbers
    return frozenset(each.number for each in pinned.relations[relid].columns)


def _because(reason: StatementRefusedError, why: str) -> StatementRefusedError:
    """The refusal of a feature, and why PostgreSQL itself can't run the statement either."""
    problem = reason.problem
    detail = f"The private PostgreSQL can't run the statement instead: {why}."
    return StatementRefusedError(
        Problem(problem.code, problem.message, detail=detail, hint=problem.hint)
    )
