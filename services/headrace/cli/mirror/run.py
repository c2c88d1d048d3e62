"""`headrace mirror`: keeps tables in sync in SQLite or PostgreSQL, with a progress bar at first.

On a terminal it shows bars and a status line; anywhere else it logs lines, as services do.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from headrace import log as logs
from headrace.cli.terminal import Console
from headrace.contract.table_patterns import table_of
from headrace.jetstream.connection import NatsUnreachableError, connected
from headrace.lsn import format_lsn
from headrace.mirror import Mirror, Streams, opened
from headrace.mirror.table import Phase
from headrace.mirror.watching import judge, measure
from headrace.process import lifecycle
from headrace.process.health import application, serving
from headrace.process.lifecycle import Scope
from headrace.settings import ProcessSettings, Settings
from headrace.terminal.text import plain

SERVICE = "mirror"
VIEW_S = 0.2
_BAR_CHARACTERS = 40


def table_names(tables: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """`users`, `app.orders`, … as (schema, name)."""
    return tuple(map(table_of, tables))


def run(
    settings: Settings, tables: Sequence[str], to: str, http: int | None, *, fresh: bool = False
) -> int:
    """Mirror until stopped; returns the exit code."""
    names = table_names(tables)
    on_terminal = sys.stdout.isatty()

    async def main(scope: Scope) -> None:
        await _mirror(scope, settings, names, to, http=http, fresh=fresh, on_terminal=on_terminal)

    if on_terminal:
        return lifecycle.run(SERVICE, quiet(settings.process), main, tell)
    return lifecycle.run(SERVICE, settings.process, main)


def tell(problem: str) -> None:
    """Report an error in one line on stderr."""
    print(plain(f"headrace: {problem}"), file=sys.stderr)


def quiet(process: ProcessSettings) -> ProcessSettings:
    """Log only problems next to progress bars, unless another level was requested."""
    if process.log_level == "info":
        return replace(process, log_level="warning")
    return process


async def _mirror(
    scope: Scope,
    settings: Settings,
    tables: tuple[tuple[str, str], ...],
    to: str,
    *,
    http: int | None,
    fresh: bool,
    on_terminal: bool,
) -> None:
    names = settings.streams
    streams = Streams(names.cdc, names.init, names.schemas, names.state)
    try:
        async with (
            served(scope, settings, http),
            opened(to) as target,
            connected(scope, settings.nats) as client,
        ):
            mirror = Mirror(client, target, tables, streams, fresh=fresh)
            mirror.stats = scope.health.stats
            scope.health.refreshers.append(
                lambda stats: stats.set("nats_connected", int(client.is_connected))
            )
            scope.spawn("mirror-health", judge(scope.health, scope.stopping, mirror))
            scope.spawn("mirror-figures", measure(scope.stopping, mirror))
            if on_terminal:
                scope.spawn("mirror-view", _show(scope, mirror, to))
                # So that the bars exist before anything is reported.
                await asyncio.sleep(0)
            await mirror.run(scope.stopping)
            scope.stopping.set()
    except NatsUnreachableError:
        # Stopped before NATS was ever reachable: that is a normal end.
        if not scope.stopping.is_set():
            raise


@contextlib.asynccontextmanager
async def served(scope: Scope, settings: Settings, http: int | None) -> AsyncIterator[None]:
    """`/livez`, `/readyz` and `/metrics`, if a port is given."""
    if http is None:
        yield
        return
    async with serving(
        application(scope.health, settings.source.slot), settings.process.http_host, http
    ):
        yield


async def _show(scope: Scope, mirror: Mirror, to: str) -> None:
    """Bars and a status line, until the end."""
    with (
        Live(console=Console(), refresh_per_second=1 / VIEW_S) as live,
        _logged_above(scope.process),
    ):
        while not scope.stopping.is_set():
            live.update(_view(mirror, to))
            await scope.pause(VIEW_S)
        live.update(_line(mirror, to))


@contextlib.contextmanager
def _logged_above(process: ProcessSettings) -> Iterator[None]:
    """Lines go above the bars, which own the terminal; what only warns is in the status line
    anyway.
    """
    level = "error" if process.log_level == "warning" else process.log_level
    logs.configure(SERVICE, level=level, form=process.log_format)
    try:
        yield
    finally:
        # Rich's Live still redirects sys.stderr here.
        logs.configure(
            SERVICE, level=process.log_level, form=process.log_format, stream=sys.__stderr__
        )


def _view(mirror: Mirror, to: str) -> RenderableType:
    bars = Table.grid(padding=(0, 2))
    for token, progress in sorted(mirror.progress.items()):
        known = progress.rows_estimated or None
        loading = token in mirror.book.tables and mirror.book.tables[token].phase is Phase.LOADING
        done = "loaded" if loading else "copied at the source"
        if known:
            rows = f"{progress.rows:,} of {known:,} rows {done}"
        else:
            rows = "waiting for its snapshot"
        bar = ProgressBar(
            total=known,
            completed=min(progress.rows, known or 0),
            width=_BAR_CHARACTERS,
            pulse=known is None,
        )
        bars.add_row(Text(token, style="bold"), bar, Text(rows, style="dim"))
    return Group(bars, _line(mirror, to))


def _line(mirror: Mirror, to: str) -> Text:
    if reason := mirror.trouble or mirror.awaited:
        return Text(reason, style="yellow")
    scheme, _, place = to.partition("://")
    # The part before the @ may contain a password.
    shown = f"{scheme}://{place.rpartition('@')[2]}"
    count = len(mirror.following)
    line = Text.assemble(
        (f"{count} table{'' if count == 1 else 's'}", "bold"), f"in sync in {shown}"
    )
    if mirror.parked:
        line.append(f"   parked: {', '.join(sorted(mirror.parked))}", style="yellow")
    line.append(f"   {mirror.stats.number('mirror_events'):,} events")
    lsn = int(mirror.stats.number("mirror_lsn"))
    if lsn:
        return line.append(f"   up to {format_lsn(lsn)}", style="dim")
    return line
