"""`headrace restore --table … --replace` and `--where`: rows of a live table as they were.

Shows the difference first, and changes exactly these rows once it is confirmed. Promises that rows
which were inserted since the moment are shown, and deleted only on request.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import psycopg
import typer

from headrace.backup.errors import RestoreError
from headrace.backup.live_rows import LiveRows, RowChange, RowCounts
from headrace.backup.plan import RestoreTarget
from headrace.backup.store import BackupStore
from headrace.cli.restore.table import (
    LIVE,
    copy,
    restored_table,
    variables,
)
from headrace.cli.restore.wanted import RestoreMoment, RowsWanted
from headrace.cli.terminal import Console
from headrace.settings import PostgresSettings, Settings
from headrace.terminal.text import plain

_SHOWN_MAX = 20
_WORDS = {
    "PGHOST": "host",
    "PGPORT": "port",
    "PGDATABASE": "dbname",
    "PGUSER": "user",
    "PGPASSWORD": "password",
}


def run(
    settings: Settings,
    store: BackupStore,
    table: str,
    moment: RestoreMoment,
    wanted: RowsWanted,
    *,
    into: str,
    work: Path | None,
) -> None:
    """Restore the cluster into a temporary folder, compare the rows, and change them."""
    console = Console(stderr=True, soft_wrap=True)
    with (
        refusals(),
        # First: a wrong address or password must not show up after a long restore.
        connected(settings.postgres, into) as session,
        restored_table(settings, store, table, moment, work, console) as found,
    ):
        live = LiveRows(session, found.table, wanted.where)
        if not live.exists:
            # Dropped since: there are no rows to compare, and its name is free.
            copy(settings, found, found.table[1], into, console)
            return
        name = ".".join(found.table)
        console.print(f"comparing {name}")
        with psycopg.connect(found.server.conninfo(found.database), autocommit=True) as restored:
            live.take(restored)
        bring_back(live, name, found.target, wanted)


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """PostgreSQL's errors in the live database as those of a restore."""
    try:
        yield
    except psycopg.Error as error:
        text = str(error).splitlines()[0]
        raise RestoreError(
            f"PostgreSQL refuses: {text}",
            remedy="Nothing was changed. Remove the cause, or restore with --as.",
        ) from error


def connected(postgres: PostgresSettings, into: str) -> psycopg.Connection:
    """A session of the database of `--into`, in autocommit mode."""
    if into != LIVE:
        return psycopg.connect(into, autocommit=True)
    given = variables(postgres, into)
    named = {word: given[name] for name, word in _WORDS.items() if name in given}
    # libpq's own variables provide the rest.
    return psycopg.connect(psycopg.conninfo.make_conninfo(**named), autocommit=True)


def bring_back(live: LiveRows, name: str, target: RestoreTarget, wanted: RowsWanted) -> None:
    """Show the difference to the rows that were taken, and change the rows once it is confirmed."""
    counts = live.compare()
    for change in live.changes(_SHOWN_MAX):
        print(plain(_line(change)))
    print(_summary(counts, discard_later=wanted.discard_later))
    if counts.inserts:
        for column in live.newer:
            print(plain(f"left out: {column}, which has its default in inserted rows"))
    # The whole table as it was can't keep them, and nobody has asked to delete them.
    if wanted.replace and counts.later and not wanted.discard_later:
        raise RestoreError(
            f"{counts.later} rows of {name} were inserted since that moment",
            remedy="Nothing was changed. Add --discard-later to delete them, or bring back only "
            "some rows with --where.",
        )
    if not (counts.inserts or counts.updates or (counts.later and wanted.discard_later)):
        print("nothing to change")
        return
    if not wanted.yes:
        typer.confirm(f"Change these rows of {name}?", abort=True)
    # The rows are compared again there: someone may have changed them during the question.
    try:
        done = live.apply(discard_later=wanted.discard_later)
    except psycopg.OperationalError as error:
        # PostgreSQL's own refusals have a code, and change nothing.
        if error.sqlstate:
            raise
        raise RestoreError(
            f"the connection was lost while rows of {name} were changed",
            remedy="Either all of these changes took effect, or none. Run the command again: it "
            "compares the rows first.",
        ) from error
    print(
        f"{name}: {done.inserts} rows inserted, {done.updates} updated, {done.later} deleted, "
        f"{target}"
    )


def _summary(counts: RowCounts, *, discard_later: bool) -> str:
    shown = min(_SHOWN_MAX, counts.inserts + counts.updates + counts.later)
    fate = "to delete" if discard_later else "inserted since, which stay"
    return (
        f"{counts.inserts} rows to insert, {counts.updates} to update, {counts.later} {fate}; "
        f"{shown} shown"
    )


def _line(change: RowChange) -> str:
    key = _values(change.key)
    if change.kind == "update":
        pairs = [
            f"{name} {_value(change.before[name])} -> {_value(change.after[name])}"
            for name in change.after
        ]
        return f"~ {key}: {', '.join(pairs)}"
    if change.kind == "delete":
        return f"- {_values(change.before)}"
    return f"+ {_values(change.after)}"


def _values(row: Mapping[str, str | None]) -> str:
    return " ".join(f"{name}={_value(value)}" for name, value in row.items())


def _value(value: str | None) -> str:
    if value is None:
        return "NULL"
    return f"'{value}'"
