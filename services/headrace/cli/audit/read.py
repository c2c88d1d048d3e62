"""`headrace audit log`, `show`, `diff`, `at`, `revert`, `stats`: read the trail where it is stored.

Promises: reads only, except for `revert --apply`, which runs what `revert` prints in one
transaction on the source, each statement on exactly one row, and leaves its own context in the
trail. Connects as `headrace audit up` does: by DB_* and DEST_DB_*, or the suite's own variables.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg

from headrace.audit import query
from headrace.audit.destination import connect
from headrace.audit.history import known_of, row_at
from headrace.audit.query import Search
from headrace.audit.revert import IrreversibleError
from headrace.audit.settings import load_audit
from headrace.audit.table import GAPS, STATE, AuditTable
from headrace.cli.audit.environment import environment
from headrace.cli.audit.revert import INSERTED, Reverting
from headrace.cli.audit.revert import show as show_script
from headrace.cli.session import Screen, postgres
from headrace.contract.table_patterns import table_of
from headrace.errors import HeadraceError, SettingError
from headrace.lsn import format_lsn
from headrace.settings import Settings, load
from headrace.terminal.text import one_line, plain

_AGO = re.compile(r"(\d+)([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class NotFoundError(HeadraceError):
    """The trail contains no such change."""

    remedy = "See `headrace audit log`."


def moment(text: str) -> datetime:
    """A time as users write it."""
    try:
        if found := _AGO.fullmatch(text):
            return datetime.now(UTC) - timedelta(**{_UNITS[found[2]]: int(found[1])})
        time = datetime.fromisoformat(text)
    except (ValueError, OverflowError) as error:
        raise SettingError(
            f"{text!r} is not a time", remedy="Write 2026-01-31T12:00, or 30m, 2h, 7d."
        ) from error
    if time.tzinfo:
        # Times of the trail are UTC.
        return time
    return time.replace(tzinfo=UTC)


def searched(
    table: str | None,
    key: str | None,
    context: str | None,
    since: str | None,
    until: str | None,
    *,
    operation: str | None,
    limit: int,
) -> Callable[[], Search]:
    """The search for the options; created where its errors are reported."""
    # A wrong time is reported like other errors, by `finish`.
    return lambda: Search(
        table=table,
        key=key,
        context=context,
        since=moment(since) if since else None,
        until=moment(until) if until else None,
        operation=operation.upper() if operation else None,
        limit=limit,
    )


@contextlib.asynccontextmanager
async def _trail() -> AsyncIterator[tuple[asyncpg.Connection, AuditTable, Settings]]:
    environ = environment(os.environ)
    settings = load(environ)
    audit = load_audit(environ)
    connection = await connect(audit, settings.postgres, "headrace audit")
    try:
        yield connection, AuditTable.of(audit), settings
    # These two first: both are PostgresErrors.
    except asyncpg.UndefinedColumnError as error:
        raise HeadraceError(
            f"the trail was written by an earlier version: {error.args[0]}",
            remedy=(
                "Start the audit-writer once, or run the SQL of `headrace audit sql` as the "
                "table's owner."
            ),
        ) from error
    except asyncpg.UndefinedTableError as error:
        raise NotFoundError(
            f"there is no trail: {error.args[0]}", remedy="Start `headrace audit up`."
        ) from error
    except asyncpg.PostgresError as error:
        raise HeadraceError(f"the audit's destination: {error.args[0]}") from error
    finally:
        connection.terminate()


async def _found(connection: asyncpg.Connection, table: AuditTable, search: Search) -> list[Any]:
    sql_text, arguments = query.rows(search, table)
    return list(await connection.fetch(sql_text, *arguments))


def _check_id(change: str) -> None:
    try:
        uuid.UUID(change)
    except ValueError as error:
        raise SettingError(
            f"{change!r} is not a change's id",
            remedy="Take one from the second column of `headrace audit log`.",
        ) from error


async def _one(connection: asyncpg.Connection, table: AuditTable, change: str) -> Any:
    _check_id(change)
    found = await _found(connection, table, Search(id=change))
    if not found:
        raise NotFoundError(f"the trail contains no change {change}")
    return found[0]


def as_document(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row for programs."""
    # Documents come as text (`query.SHOWN`).
    document = dict(row)
    for name in ("before", "after", "context", "exact"):
        document[name] = json.loads(document[name] or "null")
    for name, one in document.items():
        if name == "id" or isinstance(one, datetime):
            document[name] = str(one)
    return document


async def log(search: Search, *, as_json: bool) -> None:
    async with _trail() as (connection, table, _):
        for row in await _found(connection, table, search):
            # Programs get the text as it is, terminals without control characters.
            if as_json:
                print(json.dumps(as_document(row)))
            else:
                print(one_line(_line(row)))


def _line(row: Mapping[str, Any]) -> str:
    if row["context"] == "{}":
        context = ""
    else:
        context = f"  {_short(row['context'])}"
    # As commands take a name without a schema.
    if row["schema"] == "public":
        where = row["table"]
    else:
        where = f"{row['schema']}.{row['table']}"
    changed = ", ".join(
        f"{name}: {_side(row, _short(was), _short(now))}" for name, was, now in _differences(row)
    )
    time = row["committed_at"].astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
    what = f"{row['operation']:<8} {where} {row['primary_key'] or ''}"
    return f"{time}  {row['id']}  {what}  {_short(changed, 160)}{context}"


def _side(row: Mapping[str, Any], was: str, now: str) -> str:
    """A new row has no old values, and a deleted one no new ones; an update has both."""
    if row["operation"] in INSERTED:
        return now
    if row["operation"] == "DELETE":
        return was
    return f"{was} → {now}"


def _short(text: str, length: int = 60) -> str:
    if len(text) <= length:
        return text
    return f"{text[: length - 1]}…"


def _differences(row: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Each column that a change changed, as it was and as it is; a value nobody knows is a question
    mark.
    """
    before = json.loads(row["before"])
    after = json.loads(row["after"])
    names = [name for name in {**before, **after} if before.get(name, ...) != after.get(name, ...)]
    if row["operation"] == "UPDATE" and not set(after) <= set(before):
        # The old row is incomplete: only known differences, or everything that was written.
        names = [name for name in names if name in before] or list(after)
    dumped = [(name, before.get(name, ...), after.get(name, ...)) for name in names]
    return [(name, _told(was), _told(now)) for name, was, now in dumped]


def _told(value: object) -> str:
    # Not None, which is JSON's null.
    if value is ...:
        return "?"
    return json.dumps(value, ensure_ascii=False)


async def show(change: str, *, as_json: bool) -> None:
    async with _trail() as (connection, table, _):
        document = as_document(await _one(connection, table, change))
        if as_json:
            print(json.dumps(document))
        else:
            print(plain(json.dumps(document, indent=2, ensure_ascii=False)))


async def diff(change: str) -> None:
    async with _trail() as (connection, table, _):
        row = await _one(connection, table, change)
        screen = Screen()
        screen.title(one_line(_line({**row, "before": "{}", "after": "{}"})))
        for name, was, now in _differences(row):
            if row["operation"] not in INSERTED:
                print(one_line(f"- {name}: {was}"))
            if row["operation"] != "DELETE":
                print(one_line(f"+ {name}: {now}"))
        for name in row["unchanged"] or ():
            print(one_line(f"  {name}: unchanged"))


async def at(time: str, name: str, key: str) -> None:
    async with _trail() as (connection, table, settings):
        names = table_of(name)
        row = await row_at(
            connection, table, names, key, moment(time), database=settings.postgres.database
        )
        if row.change is None:
            # Users who only read the trail need not have set the source's name.
            row = await row_at(connection, table, names, key, moment(time))
        if row.values is None:
            if row.change is None:
                why = "the trail has nothing of it before that"
            else:
                why = f"{row.change['operation']} before"
            raise NotFoundError(f"{name} {key} did not exist at that time: {why}")
        print(plain(json.dumps(row.values, indent=2, ensure_ascii=False)))
        if row.unknown:
            print(one_line(f"unknown: {', '.join(row.unknown)}"))
        oldest = row.oldest or row.change
        assert oldest is not None, "a row comes from a change"
        known = await known_of(connection, table, *names, oldest["source"] or "")
        if known is None or not known.has(oldest, oldest["source"]):
            print(
                f"Not certain: the table was rewritten, replaced or given a column after change "
                f"{oldest['id']}, or not audited for a while.",
                file=sys.stderr,
            )


async def revert(
    change: str | None,
    position: int | None,
    context: str | None,
    since: str | None,
    *,
    leave: Sequence[str] = (),
    apply: bool,
) -> None:
    if sum(one is not None for one in (change, position, context)) != 1:
        raise SettingError(
            "revert takes one of --id, --transaction, --context",
            remedy="Say which changes to undo.",
        )
    # Before a connection is needed.
    if change is not None:
        _check_id(change)
    search = Search(
        id=change,
        position=position,
        context=context,
        since=moment(since) if since else None,
        limit=query.LIMIT_MAX,
    )
    async with _trail() as (connection, table, settings):
        found = await _found(connection, table, search)
        if not found:
            raise NotFoundError("nothing in the trail matches")
        # There may be more, which would stay: a part of them is not what was asked for.
        if len(found) == query.LIMIT_MAX:
            raise IrreversibleError(
                f"more than {query.LIMIT_MAX - 1} changes match", remedy="Narrow it with --since."
            )
        # The trail may be on another server than the tables.
        async with postgres(settings, "audit revert") as source:
            run = Reverting(connection, source, table, settings.format.json_values, found, leave)
            if not apply:
                show_script(await run.script())
                return
            await run.apply()
    kept = f", but for {', '.join(leave)}" if leave else ""
    if len(found) == 1:
        outcome = "1 change was reverted, and its row reads back as it was before"
    else:
        outcome = (
            f"{len(found)} changes were reverted in one transaction, "
            "and their rows read back as they were before"
        )
    print(f"{outcome}{kept}")


async def stats(*, as_json: bool) -> None:
    async with _trail() as (connection, table, _):
        counted = await connection.fetch(query.statistics(table))
        states = await connection.fetch(f"SELECT * FROM {table.beside(STATE)}")
        gaps = await connection.fetch(f"SELECT * FROM {table.beside(GAPS)} ORDER BY noticed_at")
    if as_json:
        document = {"tables": counted, "state": states, "gaps": gaps}
        print(
            json.dumps(
                {name: [dict(row) for row in rows] for name, rows in document.items()}, default=str
            )
        )
        return
    for row in counted:
        print(
            f"{row['schema']}.{row['table']:<24} {row['operation']:<8} {row['changes']:>10}  "
            f"{row['with_context']} with context  {row['first']:%Y-%m-%d %H:%M} to "
            f"{row['last']:%Y-%m-%d %H:%M}"
        )
    for row in states:
        print(
            f"{row['source']}: written up to {format_lsn(row['position'])} at "
            f"{row['updated_at']:%Y-%m-%d %H:%M:%S}"
        )
    for row in gaps:
        print(f"GAP {row['source']} {row['noticed_at']:%Y-%m-%d %H:%M:%S}: {row['reason']}")


async def sql() -> None:
    table = AuditTable.of(load_audit(environment(os.environ)))
    print((table.create_beside() + table.create()).replace(";", ";\n"))
