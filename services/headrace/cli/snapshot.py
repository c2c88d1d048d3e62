"""`headrace snapshot`: requests a table's snapshot and waits for it; or cancels it.

On a terminal there is a progress bar, elsewhere a line from time to time: a cold Spark takes a
while. Ctrl-C leaves the snapshot running, and reports it: others may have requested it too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import nats.errors
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from headrace.cli import missing, session
from headrace.cli.terminal import Console
from headrace.contract.events import decode
from headrace.contract.subjects_and_ids import chunk_subject, snapshot_cancel_subject, table_token
from headrace.contract.table_patterns import table_of
from headrace.errors import HeadraceError, SettingError
from headrace.extras import NO_SPARK, SPARK_EXTRAS
from headrace.lsn import format_lsn
from headrace.mirror.snapshots import Progress as SnapshotProgress
from headrace.mirror.snapshots import SnapshotError, Snapshots
from headrace.settings import Settings
from headrace.terminal.text import counted

COMMAND = "snapshot"
WAITING = "waiting for the copy to start; a cold Spark takes up to a minute"
# Where there is no bar.
NEWS_S = 10.0
# The answer comes only when the snapshots have stopped.
CANCEL_TIMEOUT_S = 60.0


class NobodyAnswersError(HeadraceError):
    """No responder is running, so there is nothing to cancel."""

    remedy = "Start `headrace snapshot-responder`; queued requests are served then."


def request(columns: str | None, conditions: str | None, *, text: bool) -> bytes:
    """The payload of a request (docs/contract.md)."""
    wanted: dict[str, Any] = {"values": "text" if text else "typed"}
    if columns is not None:
        wanted["columns"] = [column.strip() for column in columns.split(",")]
    if conditions is not None:
        try:
            wanted["filter"] = json.loads(conditions)
        except ValueError as error:
            raise SettingError(
                f"--filter is not JSON: {error}",
                remedy="""Write it as '[["id", ">=", 100], ["name", "is not null"]]'.""",
            ) from error
    return json.dumps(wanted).encode()


def token_of(table: str) -> str:
    return table_token(*table_of(table))


async def run(settings: Settings, table: str, payload: bytes, *, as_json: bool) -> None:
    """Send the request, wait, and report the result."""
    token = token_of(table)
    async with session.nats(settings, COMMAND) as (client, _):
        snapshots = Snapshots(
            client, settings.streams.cdc, settings.streams.init, settings.streams.state
        )
        async with _shown(table, quiet=as_json) as told:
            try:
                made = await snapshots.take(token, told, payload)
            except SnapshotError as error:
                # The responder of a `./taskw up` runs from this very environment.
                if NO_SPARK not in str(error) or not missing.installed(SPARK_EXTRAS):
                    raise
                made = await snapshots.take(token, told, payload)
    facts = {
        "snapshot_id": made.snapshot_id,
        "lsn": format_lsn(made.lsn),
        "row_count": made.row_count,
        "batch_count": made.batch_count,
        "subject": f"{chunk_subject(token, made.snapshot_id, 0)[:-1]}*",
    }
    if as_json:
        print(json.dumps(facts))
        return
    screen = session.Screen()
    rows = counted(made.row_count, "row")
    chunks = counted(made.batch_count, "chunk")
    screen.made("snapshot", table, f"{rows} in {chunks} at LSN {facts['lsn']}")
    screen.kept("chunks", settings.streams.init, str(facts["subject"]))


@contextlib.asynccontextmanager
async def _shown(table: str, *, quiet: bool) -> AsyncIterator[SnapshotProgress]:
    """Progress on stderr, and what Ctrl-C leaves behind; returns the function that hears of it."""
    console = Console(stderr=True)
    news = WAITING
    # A refusal is one line: nothing is shown before the responder works on it.
    working = asyncio.Event()

    def noted(rows: int, estimated: int) -> None:
        nonlocal news
        working.set()
        if rows or estimated:
            news = f"{rows:,} of about {max(estimated, rows + 1):,} rows"

    try:
        if console.is_terminal and not quiet:
            with _bar(table, console) as told:
                yield told
            return
        # No group of tasks: it would wrap the snapshot's own error.
        lines = asyncio.create_task(
            _lines(table, lambda: news, working, quiet=quiet), name="snapshot-lines"
        )
        try:
            yield noted
        finally:
            lines.cancel()
    except asyncio.CancelledError:
        print(
            f"Stopped waiting. The snapshot of {table} continues; `headrace snapshot {table}` "
            f"waits for it, `headrace snapshot {table} --cancel` stops it.",
            file=sys.stderr,
            flush=True,
        )
        raise


async def _lines(
    table: str, news: Callable[[], str], working: asyncio.Event, *, quiet: bool
) -> None:
    began = time.monotonic()
    await working.wait()
    while not quiet:
        elapsed_s = time.monotonic() - began
        print(f"{table}: {news()} ({elapsed_s:.0f} s)", file=sys.stderr, flush=True)
        await asyncio.sleep(NEWS_S)


@contextlib.contextmanager
def _bar(table: str, console: Console) -> Iterator[SnapshotProgress]:
    """A progress bar with the time so far; returns the function that updates it."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[rows]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(table, total=None, rows=WAITING)

        def told(rows: int, estimated: int) -> None:
            if not (rows or estimated):
                return
            # PostgreSQL estimates; a bar that is full before the end would be wrong.
            total = max(estimated, rows + 1)
            progress.update(
                task, completed=rows, total=total, rows=f"{rows:,} of about {total:,} rows"
            )

        yield told


async def cancel(settings: Settings, table: str, *, as_json: bool) -> None:
    """Cancel a table's snapshots; when it returns, they send nothing more."""
    async with session.nats(settings, COMMAND) as (client, _):
        try:
            message = await client.request(
                snapshot_cancel_subject(token_of(table)), timeout=CANCEL_TIMEOUT_S
            )
        except nats.errors.NoRespondersError as error:
            raise NobodyAnswersError("no snapshot-responder answers") from error
        except TimeoutError as error:
            raise NobodyAnswersError(
                f"no answer within {CANCEL_TIMEOUT_S:g} s", remedy="Ask again."
            ) from error
    answer: Mapping[str, Any] = decode(message.data)
    if as_json:
        print(json.dumps(answer))
        return
    screen = session.Screen()
    for snapshot_id in answer["cancelled"]:
        screen.made("snapshot", snapshot_id, "cancelled")
    if not answer["cancelled"]:
        screen.kept("snapshot", table, "no snapshot is running")
