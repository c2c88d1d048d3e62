"""Answers from the audit trail: transactions, the history of a row, and the SQL of a revert.

Reads through a connection that can't write. A search by a value takes the right to see that value,
because its answer would reveal the value.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from decimal import Decimal
from itertools import groupby
from typing import Any

import asyncpg
from aiohttp import web

from headrace.audit.destination import connect
from headrace.audit.history import key_columns
from headrace.audit.query import Search, TrailPosition, rows
from headrace.audit.rows import key_text
from headrace.audit.settings import load_audit
from headrace.audit.table import AuditTable
from headrace.console.access import Caller
from headrace.console.cells import Redaction, changed_row, eyes_of
from headrace.console.command import output_of
from headrace.console.json_answers import answer, body_of, caller_of
from headrace.console.positions import lsn_in, number_in, position_in
from headrace.console.problem import ProblemError, invalid, not_found
from headrace.console.search import bound, limit_of
from headrace.console.suite_view import SuiteView
from headrace.contract.subjects_and_ids import split_table_token, table_token
from headrace.lsn import Position, format_lsn
from headrace.settings import Settings

QUERY_S = 9.0
_QUOTED = '"{}"."{}"'


class AuditAnswers:
    def __init__(self, settings: Settings, suite: SuiteView, redaction: Redaction) -> None:
        self._settings = settings
        self._suite = suite
        self._redaction = redaction
        self._audit = load_audit(os.environ)
        self._table = AuditTable.of(self._audit)
        # So that searches never crowd out the writer.
        self._turns = asyncio.Semaphore(4)

    async def transactions(self, request: web.Request) -> web.Response:
        found = await self.searched(caller_of(request), request.query)
        return answer({**self._suite.head(), **found})

    async def searched(self, caller: Caller, query: Mapping[str, str]) -> dict[str, Any]:
        """A page of transactions that fit the query."""
        table = None
        if query.get("table"):
            table = split_table_token(query["table"])
        if query.get("key"):
            await self._check_key(caller, table)
        if query.get("context") and not caller.sees_everything:
            raise _no_right("all tables")
        since, until = bound(query.get("from", "")), bound(query.get("to", ""))
        if isinstance(since, Position) or isinstance(until, Position):
            raise invalid("from and to are times here", "Write 2026-01-31T12:00:00Z.")
        search = Search(
            table=table and _QUOTED.format(*map(_doubled, table)),
            key=query.get("key") or None,
            operation=query.get("op") or None,
            since=since,
            until=until,
            context=query.get("context") or None,
            below=_below(query),
            limit=limit_of(query),
        )
        return await self._page(caller, search)

    async def history(self, request: web.Request) -> web.Response:
        names = split_table_token(request.match_info["token"])
        caller = caller_of(request)
        await self._check_key(caller, names)
        try:
            key = json.loads(request.query.get("key", ""))
        except (ValueError, RecursionError) as error:
            raise invalid("key is not JSON", 'Write {"id": "7"}.') from error
        if not isinstance(key, dict):
            raise invalid("key is not an object", 'Write {"id": "7"}.')
        text = key_text(key, await self._key_of(names) or list(key))
        if text is None:
            raise invalid("the key lacks a column", "Give all columns of the primary key.")
        search = Search(
            table=_QUOTED.format(*map(_doubled, names)),
            key=text,
            below=_below(request.query),
            limit=limit_of(request.query),
        )
        return answer({**self._suite.head(), **await self._page(caller, search)})

    async def _check_key(self, caller: Caller, names: tuple[str, str] | None) -> None:
        """Raise if this caller may not search by the table's key."""
        if names is None:
            raise invalid("a search by key takes a table", "Give the table as well.")
        if not caller.sees(*names):
            raise _no_right(f"{names[0]}.{names[1]}")
        redacted = self._redaction.columns(*names)
        # A search that finds a value, or does not, answers who asks for it. A key that the trail
        # does not know may be any column.
        if redacted and not redacted.isdisjoint(await self._key_of(names) or redacted):
            raise ProblemError(
                403,
                "values",
                f"The key of {names[0]}.{names[1]} is redacted.",
                "Search by table and time.",
            )

    async def _page(self, caller: Caller, search: Search) -> dict[str, Any]:
        found = await self._fetched(*rows(search, self._table))
        # A whole page may end within a transaction, which then continues on the next one.
        following = None
        if len(found) == search.limit:
            last = found[-1]
            ordinal = "" if last["ordinal"] is None else last["ordinal"]
            following = f"{last['position']}.{ordinal}.{last['id']}"
        items = [
            self._transaction(caller, position, list(changes))
            for position, changes in groupby(found, key=lambda row: row["position"])
        ]
        return {"items": items, "next": following}

    async def _fetched(self, sql: str, arguments: list[object]) -> list[Mapping[str, Any]]:
        if not self._audit.enabled:
            raise not_found("There is no audit trail.", "Set HEADRACE_AUDIT, see docs/audit.md.")
        async with self._turns, asyncio.timeout(QUERY_S + 2):
            # A connection for each search: the trail may be on a server that others need.
            session = await connect(self._audit, self._settings.postgres, "headrace console")
            try:
                # A search can't write, even if someone injected a statement.
                await session.execute(
                    "SET default_transaction_read_only = on; SET statement_timeout = '9s'"
                )
                return list(await session.fetch(sql, *arguments))
            finally:
                session.terminate()

    async def _key_of(self, names: tuple[str, str]) -> tuple[str, ...]:
        """The table's key as the trail knows it."""
        if not self._audit.enabled:
            raise not_found("There is no audit trail.", "Set HEADRACE_AUDIT, see docs/audit.md.")
        # In its turn, too: the trail's server has connections for others.
        async with self._turns, asyncio.timeout(QUERY_S + 2):
            session: asyncpg.Connection = await connect(
                self._audit, self._settings.postgres, "headrace console"
            )
            try:
                return await key_columns(session, self._table, *names)
            finally:
                session.terminate()

    def _transaction(
        self, caller: Caller, position: int, changes: list[Mapping[str, Any]]
    ) -> dict[str, Any]:
        first = changes[0]
        # Applications record people there, so it is for those who see a table of it.
        sees = any(caller.sees(row["schema"], row["table"]) for row in changes)
        return {
            "lsn": format_lsn(position),
            "xid": None if first["transaction_id"] is None else str(first["transaction_id"]),
            "at": first["committed_at"].isoformat(timespec="microseconds"),
            "context": first["context"] if sees else None,
            "changes": [self._change(caller, row) for row in changes],
        }

    def _change(self, caller: Caller, row: Mapping[str, Any]) -> dict[str, Any]:
        names = (row["schema"], row["table"])
        eyes = eyes_of(caller, self._redaction, names)
        before, after = _document(row["before"]), _document(row["after"])
        key = None
        if row["primary_key"] is not None and eyes.sees and not eyes.redacted:
            key = {"key": row["primary_key"]}
        return {
            "position": str(Position(row["position"], row["ordinal"] or 0)),
            "operation": row["operation"],
            "schema": names[0],
            "table": names[1],
            "token": table_token(*names),
            "key": key,
            "columns": changed_row(eyes, before, after, row["unchanged"] or (), row["operation"]),
        }

    async def revert(self, request: web.Request) -> web.Response:
        """The SQL that undoes changes; it has values of any table, so it takes the right to all."""
        body = await body_of(request, "dry_run", "lsn", "position", "context")
        if body.get("dry_run") is not True:
            raise invalid("reverts are previews only", "Send dry_run: true, and run the SQL.")
        if not caller_of(request).sees_everything:
            raise _no_right("all tables")
        # The command reads the rows themselves, which have values that the trail does not.
        if self._settings.console.redact or self._audit.redact:
            raise ProblemError(
                403,
                "values",
                "The SQL could have values of columns in HEADRACE_CONSOLE_REDACT or "
                "HEADRACE_AUDIT_REDACT.",
                "Use headrace audit revert on the command line.",
            )
        arguments = ["audit", "revert", *await self._chosen(body)]
        # The command compares the trail with the rows as they are now.
        code, out, err = await output_of(*arguments)
        refused = []
        if code:
            refused = [err.strip().removeprefix("headrace: ")]
        statements = [line for line in out.splitlines() if line.strip()]
        return answer(
            {
                "sql": out,
                "statements": max(0, len(statements) - 2),
                "refused": refused,
                "warnings": [],
                "command": " ".join(["headrace", *arguments]),
            }
        )

    async def _chosen(self, body: Mapping[str, Any]) -> list[str]:
        given = [key for key in ("lsn", "position", "context") if key in body]
        if len(given) != 1:
            raise invalid("give exactly one of lsn, position and context")
        if "lsn" in body:
            return ["--transaction", str(lsn_in(str(body["lsn"])))]
        if "context" in body:
            return ["--context", json.dumps(body["context"])]
        position = position_in(str(body["position"]))
        found = await self._fetched(*rows(Search(position=position.lsn, limit=1000), self._table))
        ids = [str(row["id"]) for row in found if row["ordinal"] == position.seq]
        if len(ids) != 1:
            raise not_found(f"The audit trail has no change at {position}.")
        return ["--id", ids[0]]


def _no_right(what: str) -> ProblemError:
    return ProblemError(
        403, "values", f"You have no right to values of {what}.", "Ask for the right `values`."
    )


def _below(query: Mapping[str, str]) -> TrailPosition | None:
    if not query.get("cursor"):
        return None
    parts = query["cursor"].split(".")
    # It becomes an argument of a query, never a part of its text.
    numbers = [number_in(part) for part in parts[:2]]
    if len(parts) != 3 or numbers[0] is None or (parts[1] and numbers[1] is None):
        raise invalid("the cursor is malformed", "Use `next` of the answer before.")
    return TrailPosition(numbers[0], numbers[1], parts[2])


def _document(text: str | None) -> dict[str, Any]:
    # Decimals keep every digit of what PostgreSQL stored.
    found: dict[str, Any] | None = json.loads(text or "null", parse_float=Decimal)
    return found or {}


def _doubled(name: str) -> str:
    return name.replace('"', '""')
