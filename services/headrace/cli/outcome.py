"""Ends a command: an expected error becomes one line on stderr, and exit code 1."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

import typer

from headrace import log as logs
from headrace.errors import HeadraceError
from headrace.terminal.text import plain


def fail(error: Exception, message: str = "") -> NoReturn:
    typer.echo(plain(f"headrace: {message or error}"), err=True)
    raise typer.Exit(1) from error


def finish(
    work: Callable[[], Coroutine[Any, Any, None]], worded: Callable[[str], str] = str
) -> None:
    """Run a command to its end; `worded` gives an error's message in its user's words."""
    # Here, as each command's module: `--help` answers without loading them.
    import uvloop

    logs.configure("cli", level="warning", form=logs.LogFormat.LOGFMT)
    try:
        uvloop.run(work())
    except HeadraceError as error:
        fail(error, worded(str(error)))
