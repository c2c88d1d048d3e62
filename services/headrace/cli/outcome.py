"""Ends a command: an expected error becomes one line on stderr, and exit code 1."""

from __future__ import annotations

import signal
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

import typer

from headrace.cli import missing
from headrace.errors import HeadraceError
from headrace.extras import MissingPackageError
from headrace.terminal.text import plain


def fail(error: Exception, message: str = "") -> NoReturn:
    if isinstance(error, MissingPackageError):
        missing.end(error)
    typer.echo(plain(f"headrace: {message or error}"), err=True)
    raise typer.Exit(1) from error


def finish(
    work: Callable[[], Coroutine[Any, Any, None]], worded: Callable[[str], str] = str
) -> None:
    """Run a command to its end; `worded` gives an error's message in its user's words."""
    # Here, as each command's module: `--help` answers without loading them.
    import uvloop

    from headrace import log as logs

    logs.configure("cli", level="warning", form=logs.LogFormat.LOGFMT)
    try:
        uvloop.run(_worked(work))
    except HeadraceError as error:
        fail(error, worded(str(error)))


async def _worked(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    import asyncio

    try:
        await work()
    finally:
        # Ctrl-C now ends the process without more words: a KeyboardInterrupt while the event loop
        # closes would be a traceback.
        asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
