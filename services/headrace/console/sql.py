"""SQL over the lake: statements that people write, answered by the SQL server, with limits.

Reads through the SQL server's own protocol, as the one user of the setting, in a transaction that
can't write. Before each statement the user's grants are compared with the caller's right and with
the redacted columns: a statement could rename or compute with a column, so that hiding it in the
result would hide nothing. Grants that can't be checked are refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
from aiohttp import web
from psycopg import sql as composed
from psycopg.adapt import AdaptersMap
from psycopg.types.string import TextLoader

from headrace import log as logs
from headrace.console.access import Caller
from headrace.console.acts import ActsLog
from headrace.console.cells import Redaction, shown
from headrace.console.json_answers import answer, body_of, caller_of
from headrace.console.last_known import FAILURES
from headrace.console.problem import ProblemError, invalid, not_found
from headrace.console.search import begin_of, limit_of
from headrace.console.suite_view import SuiteView
from headrace.settings import Settings

log = logs.logger("console")

CONNECT_S = 5
RUN_S = 60.0
ROWS_MAX = 10_000
BYTES_MAX = 8 << 20
RUNNING_MAX = 2
# Results are in memory, so only the last ones are kept, and not for long.
KEPT_MAX = 6
KEPT_S = 600.0
TEXT_MAX = 100_000
_NUMBERS = frozenset({"int2", "int4", "int8", "float4", "float8", "numeric", "oid"})
# By PostgreSQL's own functions, which know grants to PUBLIC and those of other roles.
_GRANTED = """
SELECT n.nspname, c.relname, c.relkind::text, a.attname, format_type(a.atttypid, a.atttypmod)
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid
WHERE c.relkind IN ('r', 'p', 'f', 'v', 'm') AND a.attnum > 0 AND NOT a.attisdropped
AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'headrace') AND n.nspname !~ '^pg_'
AND pg_catalog.has_schema_privilege(n.oid, 'USAGE')
AND pg_catalog.has_column_privilege(c.oid, a.attnum, 'SELECT')
ORDER BY 1, 2, a.attnum
"""


class _Texts:
    """Every value as PostgreSQL writes it: a number keeps all of its digits."""

    connection = None

    def __init__(self) -> None:
        self.adapters = AdaptersMap(types=psycopg.adapters.types)
        # For types without a loader, hence for all.
        self.adapters.register_loader(0, TextLoader)


@dataclass(eq=False)
class SqlRun:
    """One statement."""

    user: str
    text: str
    cut: str
    id: str = field(default_factory=lambda: secrets.token_urlsafe(9))
    state: str = "running"
    columns: list[dict[str, Any]] = field(default_factory=list)
    rows: list[Sequence[str | None]] = field(default_factory=list)
    # Why there are not more rows.
    truncated: str | None = None
    error: str | None = None
    sqlstate: str | None = None
    lsn: str | None = None
    began: float = field(default_factory=time.monotonic)
    seconds: float | None = None
    task: asyncio.Task[None] | None = None

    def document(self) -> dict[str, Any]:
        elapsed = self.seconds
        if elapsed is None:
            elapsed = time.monotonic() - self.began
        return {
            "id": self.id,
            "state": self.state,
            "columns": self.columns,
            "row_count": str(len(self.rows)),
            "truncated": self.truncated,
            "error": self.error,
            "sqlstate": self.sqlstate,
            "lsn": self.lsn,
            "seconds": round(elapsed, 3),
        }


class SqlRuns:
    def __init__(
        self, settings: Settings, suite: SuiteView, redaction: Redaction, acts: ActsLog
    ) -> None:
        self._url = settings.console.sql_url
        self._suite = suite
        self._redaction = redaction
        self._acts = acts
        self._runs: dict[str, SqlRun] = {}

    async def catalog(self, request: web.Request) -> web.Response:
        """The tables that a statement may name, with their columns."""
        caller = self._allowed(request)
        # A server that accepts connections and says nothing would hold the page.
        async with asyncio.timeout(2 * CONNECT_S):
            try:
                connection = await self._connected()
                try:
                    granted = await self._granted(connection)
                finally:
                    await connection.close()
            except psycopg.Error as error:
                raise _unreachable(error) from error
        check_grants(caller, self._redaction, granted)
        return answer({**self._suite.head(), "items": _tables(granted)})

    async def start(self, request: web.Request) -> web.Response:
        """Run a statement; the answer has its ID."""
        caller = self._allowed(request)
        body = await body_of(request, "sql", "cut")
        text, cut = body.get("sql"), body.get("cut", "")
        if not isinstance(text, str) or not text.strip() or len(text) > TEXT_MAX:
            raise invalid("sql is missing, or too long", "Send one statement.")
        if not isinstance(cut, str) or len(cut) > 100:
            raise invalid("cut is not a text", "Send a cut's number, an LSN or a time.")
        # Each holds a connection and a result in memory.
        if sum(one.state == "running" for one in self._runs.values()) >= RUNNING_MAX:
            raise ProblemError(
                429, "busy", f"{RUNNING_MAX} statements are running.", "Wait, or cancel one."
            )
        run = SqlRun(caller.user, text, cut)
        # Before the first await: a second request counts it.
        self._runs[run.id] = run
        try:
            # Without its text, which may contain values.
            await self._acts.note(request, caller, "sql", run.id, result="begun")
        except (*FAILURES, TimeoutError):
            del self._runs[run.id]
            raise
        self._forget()
        run.task = asyncio.create_task(self._run(run, caller), name="sql-run")
        return answer({**self._suite.head(), "run": run.document()}, 202)

    async def one(self, request: web.Request) -> web.Response:
        """How far a statement is."""
        run = self.mine(request)
        return answer({**self._suite.head(), "run": run.document()})

    async def rows(self, request: web.Request) -> web.Response:
        """The rows of a result, page by page."""
        run = self.mine(request)
        limit = limit_of(request.query)
        begin = begin_of(request.query)
        # Rows that came are final, so pages can be read while the statement runs.
        items = [[shown(value) for value in row] for row in run.rows[begin : begin + limit]]
        following = None
        if begin + limit < len(run.rows):
            following = str(begin + limit)
        return answer({**self._suite.head(), "items": items, "next": following})

    async def cancel(self, request: web.Request) -> web.Response:
        """End a statement at the server, and forget its result."""
        run = self.mine(request)
        if run.task is not None and not run.task.done():
            run.task.cancel()
            # Until the server was asked to cancel it: the caller may start another one immediately.
            await asyncio.wait([run.task])
        self._runs.pop(run.id, None)
        return web.Response(status=204)

    def _allowed(self, request: web.Request) -> Caller:
        if not self._url:
            raise not_found(
                "The console has no SQL server: HEADRACE_CONSOLE_SQL_URL is not set.",
                "Set it to postgresql://user:password@host:5440/lake, with a user of "
                "`headrace sql users add`.",
            )
        caller = caller_of(request)
        if not caller.sql:
            raise _refused("You have no right to SQL.", "Ask for the right `sql`.")
        return caller

    def mine(self, request: web.Request) -> SqlRun:
        """The caller's own run that a request names."""
        caller = self._allowed(request)
        self._forget()
        run = self._runs.get(request.match_info["id"])
        # Others' results may have values of tables that the caller has no right to.
        if run is None or run.user != caller.user:
            raise not_found("There is no such result any more.", "Run the statement again.")
        return run

    def _forget(self) -> None:
        now = time.monotonic()
        done = [run for run in self._runs.values() if run.state != "running"]
        # Newest first: the dictionary is in the order of their starts.
        for place, run in enumerate(reversed(done)):
            if place >= KEPT_MAX or now - run.began > KEPT_S:
                del self._runs[run.id]

    async def _run(self, run: SqlRun, caller: Caller) -> None:
        try:
            async with asyncio.timeout(RUN_S + CONNECT_S):
                connection = await self._connected()
                try:
                    # On the very connection that runs the statement: grants may have changed since
                    # the page was loaded.
                    check_grants(caller, self._redaction, await self._granted(connection))
                    await self._fetch(connection, run)
                finally:
                    await _ended(connection)
            run.state = "done"
        except asyncio.CancelledError:
            run.state, run.error = "cancelled", "The statement was cancelled."
        except TimeoutError:
            run.state, run.error = "failed", f"It took more than {RUN_S:g} s."
        except ProblemError as error:
            run.state, run.error = "failed", f"{error.detail} {error.remedy}"
        except psycopg.ProgrammingError as error:
            run.state, run.sqlstate = "failed", error.sqlstate
            # Without a code it is the client's own: the statement gave something else than rows.
            run.error = error.diag.message_primary or "It gives no rows. Write a SELECT."
        except psycopg.Error as error:
            run.state, run.sqlstate = "failed", error.sqlstate
            run.error = error.diag.message_primary or _first_line(error)
        # A run that never ends would take the place of another.
        except Exception as error:  # noqa: BLE001
            log.crash("sql_run_failed", error)
            run.state, run.error = "failed", "The console failed: see its log."
        run.seconds = time.monotonic() - run.began

    async def _fetch(self, connection: psycopg.AsyncConnection[Any], run: SqlRun) -> None:
        cursor = connection.cursor()
        # So that the server ends the statement even if the console is gone by then.
        await cursor.execute(f"SET statement_timeout = {int(RUN_S * 1000)}".encode())
        if run.cut:
            name = composed.SQL("SET headrace.as_of = {}").format(composed.Literal(run.cut))
            await cursor.execute(name.as_string(None).encode())
        await cursor.execute(b"BEGIN READ ONLY")
        # It also pins the cut that the statement sees.
        await cursor.execute(b"SHOW headrace.lsn")
        found = await cursor.fetchone()
        run.lsn = found[0] if found else None
        size = 0
        # The extended protocol takes one statement only: none can end the transaction.
        async for row in cursor.stream(run.text.encode(), size=1):
            if not run.columns:
                run.columns = _columns(cursor)
            # Checked row by row: the server may send a few very long ones.
            size += sum(len(value) for value in row if value is not None)
            if len(run.rows) >= ROWS_MAX or size > BYTES_MAX:
                run.truncated = "rows" if len(run.rows) >= ROWS_MAX else "bytes"
                return
            run.rows.append(row)

    async def _connected(self) -> psycopg.AsyncConnection[Any]:
        return await psycopg.AsyncConnection.connect(
            self._url or "",
            autocommit=True,
            context=_Texts(),
            connect_timeout=CONNECT_S,
            application_name="headrace console",
        )

    async def _granted(self, connection: psycopg.AsyncConnection[Any]) -> list[Sequence[str]]:
        cursor = connection.cursor()
        await cursor.execute(_GRANTED.encode())
        return list(await cursor.fetchall())


def check_grants(caller: Caller, redaction: Redaction, granted: Sequence[Sequence[str]]) -> None:
    """Raise unless all that the server's user may read may be shown to the caller."""
    # A view may read any table, so it needs the right to all of them.
    whole = "*" in caller.sql and not redaction.patterns
    for schema, table, kind, column, _ in granted:
        if not caller.may_query(schema, table):
            raise _refused(
                f"The SQL server's user may read {schema}.{table}, and you may not.",
                "Ask for the right `sql` to it, or for a user with fewer grants.",
            )
        # Even a statement that does not name the column could compute with it.
        if column in redaction.columns(schema, table):
            raise _refused(
                f"The SQL server's user may read {schema}.{table}.{column}, which is redacted.",
                "Grant HEADRACE_CONSOLE_SQL_URL's user the other columns only.",
            )
        if kind in {"v", "m"} and not whole:
            raise _refused(
                f"The SQL server's user may read the view {schema}.{table}, whose columns "
                "can't be checked.",
                "Grant it tables only.",
            )


def _columns(cursor: psycopg.AsyncCursor[Any]) -> list[dict[str, Any]]:
    found = []
    for column in cursor.description or ():
        known = psycopg.adapters.types.get(column.type_code)
        name = "unknown" if known is None else known.name
        if known is not None and column.type_code == known.array_oid:
            name += "[]"
        found.append({"name": column.name, "type": name, "number": name in _NUMBERS})
    return found


def _tables(granted: list[Sequence[str]]) -> list[dict[str, Any]]:
    found: dict[tuple[str, str], list[dict[str, str]]] = {}
    for schema, table, _, column, kind in granted:
        found.setdefault((schema, table), []).append({"name": column, "type": kind})
    return [
        {"schema": schema, "table": table, "columns": columns}
        for (schema, table), columns in found.items()
    ]


async def _ended(connection: psycopg.AsyncConnection[Any]) -> None:
    """Close it; what still runs is cancelled at the server."""
    if not connection.closed and connection.pgconn.transaction_status == (
        psycopg.pq.TransactionStatus.ACTIVE
    ):
        # Closing ends it, too, when the server notices.
        with contextlib.suppress(psycopg.Error):
            await asyncio.shield(connection.cancel_safe(timeout=2.0))
    await connection.close()


def _first_line(error: psycopg.Error) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _refused(detail: str, remedy: str) -> ProblemError:
    return ProblemError(403, "values", detail, remedy)


def _unreachable(error: psycopg.Error) -> ProblemError:
    return ProblemError(
        503,
        "unavailable",
        f"The SQL server can't be used: {_first_line(error)}",
        "Check HEADRACE_CONSOLE_SQL_URL, and that headrace sql-server runs.",
    )
