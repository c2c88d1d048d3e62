"""`headrace top`: a live view of the running suite, from telemetry's `/status`, using only HTTP.

Promises: restores the terminal when it ends; if telemetry is unavailable, it shows that and waits.
If the output is not a terminal, one screen is printed.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator

from rich.live import Live

from headrace.cli.terminal import Console
from headrace.cli.watch.top_view import Past, screen
from headrace.settings import Settings
from headrace.suite.status import TelemetryAwayError, fetch, telemetry_address
from headrace.timing.waits import wait_for

MEASURE_S = 1.0


async def run(settings: Settings, *, interval_s: float, once: bool) -> None:
    """Refresh repeatedly, until Ctrl-C or q."""
    base = telemetry_address(settings)
    console = Console()
    past = Past()
    past.add(time.monotonic(), await fetch(base))
    if once or not console.is_terminal:
        # Rates need two samples.
        await asyncio.sleep(min(interval_s, MEASURE_S))
        past.add(time.monotonic(), await fetch(base))
        console.print(screen(past))
        return
    with (
        _leaving() as over,
        Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live,
    ):
        trouble = ""
        while not over.is_set():
            live.update(screen(past, trouble), refresh=True)
            await wait_for(over, interval_s)
            try:
                past.add(time.monotonic(), await fetch(base))
                trouble = ""
            except TelemetryAwayError as error:
                trouble = str(error)


@contextlib.contextmanager
def _leaving() -> Iterator[asyncio.Event]:
    """Set by Ctrl-C, SIGTERM, or the key q."""
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, over.set)
    if not sys.stdin.isatty():
        yield over
        return
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    # Not raw mode: Ctrl-C must stay a signal.
    tty.setcbreak(keyboard)
    loop.add_reader(keyboard, lambda: over.set() if sys.stdin.read(1) in ("q", "Q") else None)
    try:
        yield over
    finally:
        loop.remove_reader(keyboard)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
