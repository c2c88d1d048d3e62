"""Reads the lake for one session: rights, the cut, the translation, and rows as messages.

The rights are PostgreSQL's: the private PostgreSQL is asked about every relation in a statement's
tree, at every execution. The pinned cut must have the tables as the statement was analyzed.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import duckdb

from headrace.contract.type_oids import NUMERIC
from headrace.errors import HeadraceError
from headrace.sql import wire
from headrace.sql.copy_to_stdout import CopyForm, copy_data
from headrace.sql.duckdb_errors import OVERFLOWS, postgres_error
from headrace.sql.errors import NotProvenEqualError
from headrace.sql.parameters import parameter_values
from headrace.sql.result_rows import RowMessages
from headrace.sql.translation import (
    RequiredPrivilege,
    Translation,
    numeric_digits,
    translate,
)
from headrace.sql.wire import BINARY
from headrace.sql_server.delayed_task import DelayedTask
from headrace.sql_server.exact_run import ExactRunner
from headrace.sql_server.lake_run import CancelledError, Pinned, Result
from headrace.sql_server.link import ClosedError
from headrace.sql_server.plans import LakeQuery, OpenRows, Ready, TranslationKey, shape
from headrace.sql_server.private_postgres import SETTINGS
from headrace.sql_server.problems import (
    NOT_SUPPORTED,
    SessionEndError,
    StatementRefusedError,
    refused,
    transaction_failed,
    unsupported,
)
from headrace.sql_server.state import SessionState

_FACTS: Final = b"SELECT * FROM headrace.session_state($1, $2, $3)"
_OID_ARRAY: Final = 1028
_TEXT_ARRAY: Final = 1009
# Types of which every value of this length is one.
_FIXED: Final[Mapping[int, int]] = {16: 1, 21: 2, 23: 4, 20: 8, 26: 4, 700: 4, 701: 8}
# PostgreSQL's limit of a result's columns.
_COLUMNS_MAX: Final = 1600
_DURATION: Final = re.compile(r"(\d+)(us|ms|s|min|h|d)?\Z")
_UNITS_S: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_UTC: Final = frozenset({"UTC", "Etc/UTC"})
_FEW_ROWS: Final = 16
_FEW_BYTES: Final = 64 * 1024
_ENCODINGS: Final = frozenset({b"UTF8", b"SQL_ASCII"})


@dataclass(frozen=True, slots=True)
class Facts:
    """A session's settings, and a relation that its role may not read."""

    settings: Mapping[str, str]
    denied: str | None

    @property
    def timeout_s(self) -> float | None:
        """`statement_timeout`; None for no limit."""
        found = _DURATION.match(self.settings["statement_timeout"])
        if found is None:
            raise refused("XX000", "statement_timeout is not in the expected form")
        return int(found.group(1)) * _UNITS_S[found.group(2) or "ms"] or None


class LakeReader:
    """One session's way to the copies."""

    def __init__(self, state: SessionState) -> None:
        self._state = state
        self._exact = ExactRunner(state, self._without_limit)
        self._limit: asyncio.Timeout | None = None

    @contextlib.asynccontextmanager
    async def statement(self) -> AsyncIterator[None]:
        """A statement runs: it ends at a cancel request, at its time-out, or with its client."""
        # A client that has left frees its threads and its PostgreSQL process soon.
        watch = DelayedTask(self._watch_client)
        started = asyncio.get_running_loop().time()
        try:
            with self._state.runner.cancellable(), as_problems():
                async with asyncio.timeout(None) as self._limit:
                    yield
        except TimeoutError as error:
            seconds = asyncio.get_running_loop().time() - started
            raise refused(
                "57014",
                "canceling statement due to statement timeout",
                detail=f"It ran for {seconds:.3f} s.",
            ) from error
        finally:
            stats = self._state.lake.stats
            stats.count("sql_statements")
            stats.observe("sql_statement_seconds", asyncio.get_running_loop().time() - started)
            self._limit = None
            # Until it has ended: it reads the same connection as the next message.
            await watch.end()

    @contextlib.contextmanager
    def _without_limit(self) -> Iterator[None]:
        """The front leaves `statement_timeout` to the private PostgreSQL: its own time-out in the
        middle of an exchange would leave answers that nobody reads.
        """
        limit = self._limit
        if limit is None:
            yield
            return
        until = limit.when()
        limit.reschedule(None)
        yield
        limit.reschedule(until)

    async def _watch_client(self) -> None:
        try:
            await self._state.client.arrival()
        except ClosedError:
            self._state.runner.cancel()

    @contextlib.asynccontextmanager
    async def _until_ended(self) -> AsyncIterator[None]:
        """While DuckDB works, `pg_terminate_backend` may end the session."""
        watch = DelayedTask(self._watch_backend)
        try:
            yield
        finally:
            ended = await watch.end()
            if ended is not None and not ended.cancelled():
                # Its error says why the statement was cancelled.
                ended.result()

    async def _watch_backend(self) -> None:
        try:
            await self._state.backend.idle()
        except (SessionEndError, OSError):
            self._state.runner.cancel()
            raise

    async def facts(self, needs: Sequence[RequiredPrivilege] = ()) -> Facts:
        """Ask the private PostgreSQL for the settings and the rights."""
        relids = ",".join(str(need.relid) for need in needs)
        roles = ",".join(str(need.user) for need in needs)
        columns = ",".join(f'"{" ".join(map(str, sorted(need.columns)))}"' for need in needs)
        rows = await self._state.backend.call(
            # One exchange for both. It is needed for every execution, because rights may change at
            # any time.
            _FACTS,
            [f"{{{each}}}".encode() for each in (relids, roles, columns)],
            (_OID_ARRAY, _OID_ARRAY, _TEXT_ARRAY),
        )
        *values, denied = rows[0]
        settings = dict(zip(SETTINGS, ((item or b"").decode() for item in values), strict=True))
        return Facts(settings, None if denied is None else denied.decode())

    async def pin(self, facts: Facts) -> Pinned:
        """The transaction's cut."""
        state = self._state
        as_of = facts.settings.get("headrace.as_of") or None
        with as_problems():
            return await state.runner.pin(as_of, in_block=state.status == "T")

    async def _checked(self, query: LakeQuery) -> tuple[Facts, Pinned]:
        """The rights of a query are checked, and its cut is pinned."""
        state = self._state
        if state.status == "E":
            raise transaction_failed()
        facts = await self.facts(query.needs)
        if facts.timeout_s is not None and self._limit is not None:
            # Settings are known only now. The time for rights and the cut is not counted.
            self._limit.reschedule(asyncio.get_running_loop().time() + facts.timeout_s)
        if facts.denied is not None:
            raise refused("42501", f"permission denied for {facts.denied}")
        pinned = await self.pin(facts)
        # The statement was analyzed with the newest columns, and its cut may be older.
        for relid in sorted(query.relids):
            if shape(pinned.relations.get(relid)) != query.shapes[relid]:
                raise _other_shape(pinned, relid)
        return facts, pinned

    async def _ready(
        self, query: LakeQuery, types: Sequence[int], values: Sequence[bytes | None]
    ) -> Ready:
        """Check everything that a query needs before DuckDB runs it; refuse it otherwise."""
        facts, pinned = await self._checked(query)
        encoding = self._state.backend.encoding
        if encoding not in _ENCODINGS:
            raise unsupported(f"client_encoding {encoding.decode()}")
        key = _translation_key(facts.settings, types, values, narrow=query.narrow)
        return Ready(facts.settings, self._translation(query, pinned, key))

    async def values(
        self, types: Sequence[int], formats: Sequence[int], values: Sequence[bytes | None]
    ) -> tuple[bytes | None, ...]:
        """Bind's values in binary form, as PostgreSQL itself reads them."""
        if len(values) != len(types):
            raise refused(
                "08P01",
                f"bind message supplies {len(values)} parameters, but the prepared statement "
                f"requires {len(types)}",
            )
        forms = wire.result_forms(formats, len(values))
        # PostgreSQL would return the very same bytes: the exchange is saved.
        if all(map(_is_canonical, types, forms, values)):
            return tuple(values)
        found: list[bytes | None] = []
        # A statement may have more parameters than a result has columns.
        for start in range(0, len(values), _COLUMNS_MAX):
            part = slice(start, start + _COLUMNS_MAX)
            wanted = ", ".join(f"${number}" for number in range(1, len(types[part]) + 1))
            text = f"SELECT {wanted}".encode()
            rows = await self._state.backend.call(
                text, values[part], types[part], form=BINARY, formats=forms[part]
            )
            found += rows[0]
        return tuple(found)

    async def open(
        self,
        query: LakeQuery,
        types: Sequence[int],
        values: Sequence[bytes | None],
        forms: Sequence[int],
    ) -> OpenRows:
        """Start a query: in DuckDB, or in PostgreSQL itself if it is not proven equal there."""
        rows = OpenRows(query, types, values)
        try:
            with as_problems():
                await self._start(rows)
        except StatementRefusedError as error:
            await self._start_exact(rows, forms, error)
        return rows

    async def _start(self, rows: OpenRows) -> None:
        query, types, values = rows.query, rows.types, rows.values
        rows.ready = await self._ready(query, types, values)
        if query.folds:
            await self._exact.plan(query, types, values)
            # Planned once is enough, unless parameters change what its constants are.
            query.folds = bool(types)
        rows.ready, rows.result = await self._executed(query, types, values, rows.ready)

    async def _executed(
        self,
        query: LakeQuery,
        types: Sequence[int],
        values: Sequence[bytes | None],
        ready: Ready,
        verb: str = "",
    ) -> tuple[Ready, Result]:
        """A query that DuckDB has started; with 128 bits if a number doesn't fit into 64."""
        while True:
            translation = ready.translation
            parameters = await self._parameters(translation, types, values)
            try:
                async with self._until_ended():
                    return ready, await self._state.runner.execute(
                        verb + translation.sql, parameters, query.relids, spare=translation.narrow
                    )
            except OVERFLOWS:
                if not translation.narrow:
                    raise
            query.narrow = False
            ready = await self._ready(query, types, values)

    async def _start_exact(
        self, rows: OpenRows, forms: Sequence[int], reason: StatementRefusedError
    ) -> None:
        # Every other refusal is the answer: PostgreSQL would give the same one, or none that is
        # right.
        if reason.problem.code != NOT_SUPPORTED:
            raise reason
        query = rows.query
        await self._checked(query)
        rows.exact = await self._exact.open(query, rows.types, rows.values, forms, reason)
        # PostgreSQL itself watches statement_timeout from here on.
        if self._limit is not None:
            self._limit.reschedule(None)

    async def check(
        self, query: LakeQuery, types: Sequence[int], values: Sequence[bytes | None]
    ) -> None:
        """Refuse a query that can't run in DuckDB and never runs in PostgreSQL itself."""
        try:
            with as_problems():
                await self._ready(query, types, values)
        except StatementRefusedError as error:
            if error.problem.code != NOT_SUPPORTED or not self._exact.is_allowed:
                raise

    async def explain(
        self,
        query: LakeQuery,
        types: Sequence[int],
        values: Sequence[bytes | None],
        *,
        analyze: bool,
    ) -> list[str]:
        """The engine that runs a query, and its plan."""
        verb = "EXPLAIN ANALYZE" if analyze else "EXPLAIN"
        try:
            with as_problems():
                plan = await self._duckdb_plan(query, types, values, verb)
        except StatementRefusedError as error:
            if error.problem.code != NOT_SUPPORTED:
                raise
            await self._checked(query)
            plan = await self._exact.explain(query, types, values, verb.encode(), error)
            return [f"Engine: PostgreSQL ({error.problem.message})", *plan]
        return ["Engine: DuckDB", *plan]

    async def _duckdb_plan(
        self, query: LakeQuery, types: Sequence[int], values: Sequence[bytes | None], verb: str
    ) -> list[str]:
        ready = await self._ready(query, types, values)
        _, result = await self._executed(query, types, values, ready, f"{verb} ")
        lines: list[str] = []
        while (batch := await result.batch()) is not None:
            for text in batch.column(1).to_pylist():
                lines += str(text).splitlines()
        return lines

    async def batches(
        self,
        rows: OpenRows,
        forms: Sequence[int],
        rows_max: int,
        copy: CopyForm | None = None,
    ) -> AsyncIterator[tuple[int, bytes]]:
        """The next rows as DataRow messages, or as CopyData of a form: so many at most (0: all),
        and how many they are.
        """
        if rows.exact is None:
            try:
                with as_problems():
                    async for each in self._converted(rows, forms, rows_max, copy):
                        yield each
                    return
            except StatementRefusedError as error:
                # Once rows were sent, another engine can't continue in their order.
                if rows.sent:
                    raise
                await self._start_exact(rows, forms, error)
        assert rows.exact is not None, "it was just started"
        async for count, data in rows.exact.parts(forms, rows_max):
            self._count(rows, count)
            yield count, data if copy is None else copy_data(copy, data)

    def _count(self, rows: OpenRows, count: int) -> None:
        """Keep to the limit of rows."""
        limit = self._state.lake.rows_max
        rows.sent += count
        self._state.lake.stats.count("sql_rows", count)
        if limit and rows.sent > limit:
            raise refused(
                "54000",
                f"the result has more than {limit} rows",
                hint="Add a LIMIT, or set HEADRACE_SQL_RESULT_ROWS_MAX.",
            )

    async def _converted(
        self, rows: OpenRows, forms: Sequence[int], rows_max: int, copy: CopyForm | None
    ) -> AsyncIterator[tuple[int, bytes]]:
        """DuckDB's rows."""
        assert rows.ready is not None, "DuckDB runs it"
        assert rows.result is not None, "DuckDB runs it"
        ready = rows.ready
        messages = RowMessages(ready.translation.columns, forms, ready.settings, copy)
        taken = 0
        while not rows_max or taken < rows_max:
            async with self._until_ended():
                batch = await rows.result.batch(rows_max and rows_max - taken)
            if batch is None:
                return
            if batch.num_rows <= _FEW_ROWS and batch.nbytes <= _FEW_BYTES:
                data = messages.of(batch)
            else:
                # In a thread: forming a large batch would stop the event loop.
                data = await self._state.runner.run(partial(messages.of, batch))
            taken += batch.num_rows
            self._count(rows, batch.num_rows)
            yield batch.num_rows, data

    def _translation(self, query: LakeQuery, pinned: Pinned, key: TranslationKey) -> Translation:
        found = query.translation(pinned.relations, key)
        if found is not None:
            return found
        # Always with digits: without them the translation can only be described.
        found = translate(
            query.node,
            pinned.relations,
            self._state.lake.builtins,
            utc=key.utc,
            iso_dates=key.iso_dates,
            numerics=dict(key.numerics),
            narrow=key.narrow,
        )
        # It may leave tables out that the result doesn't depend on.
        # Rights were checked for the statement's tables only.
        if not found.relids <= query.relids:
            raise refused("XX000", "the translation reads other tables than the statement")
        query.keep(pinned.relations, key, found)
        return found

    async def _parameters(
        self, translation: Translation, types: Sequence[int], values: Sequence[bytes | None]
    ) -> list[object]:
        """The client's values, and those that the private PostgreSQL computes in the session."""
        more = translation.session_values
        if more:
            texts = ", ".join(each.expression for each in more)
            rows = await self._state.backend.call(f"SELECT {texts}".encode(), form=BINARY)
            types = [*types, *(each.type_oid for each in more)]
            values = [*values, *rows[0]]
        return list(parameter_values(types, values))


@contextlib.contextmanager
def as_problems() -> Iterator[None]:
    """Errors of translation and execution as clients get them."""
    try:
        yield
    except NotProvenEqualError as error:
        raise refusal_of(error) from error
    except CancelledError as error:
        raise refused("57014", "canceling statement due to user request") from error
    except duckdb.Error as error:
        found = postgres_error(str(error))
        raise refused(found.sqlstate, found.message) from error
    except HeadraceError as error:
        raise refused(getattr(error, "sqlstate", "XX000"), str(error)) from error


def _translation_key(
    settings: Mapping[str, str],
    types: Sequence[int],
    values: Sequence[bytes | None],
    *,
    narrow: bool,
) -> TranslationKey:
    numerics = tuple(
        (number, numeric_digits(value))
        for number, (type_oid, value) in enumerate(zip(types, values, strict=True), 1)
        if type_oid == NUMERIC and value is not None
    )
    return TranslationKey(
        settings["TimeZone"] in _UTC, settings["DateStyle"].startswith("ISO"), narrow, numerics
    )


def refusal_of(error: NotProvenEqualError) -> StatementRefusedError:
    """The refusal of a feature by its name."""
    return refused(
        error.sqlstate, f"{error.feature} is not supported over the lake", hint=error.hint
    )


def _is_canonical(type_oid: int, form: int, value: bytes | None) -> bool:
    if value is None:
        return True
    return form == BINARY and len(value) == _FIXED.get(type_oid, -1)


def _other_shape(pinned: Pinned, relid: int) -> StatementRefusedError:
    found = pinned.relations.get(relid)
    if found is None:
        return refused(
            "55000", f"a table of the statement is not in cut {pinned.cut}", hint=_SHAPE_HINT
        )
    return refused(
        "55000",
        f'table "{found.name}" has other columns in cut {pinned.cut}',
        hint=_SHAPE_HINT,
    )


_SHAPE_HINT: Final = "Begin another transaction, or RESET headrace.as_of."
