"""The options of `headrace audit …`."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli import outcome
from headrace.cli.audit.environment import in_their_words

app = typer.Typer(
    name="audit",
    help="The audit trail: every change as a row, with its author and reason.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Table = Annotated[str | None, typer.Option("--table", "-t", help="users, or app.users.")]
Key = Annotated[
    str | None,
    typer.Option("--key", "-k", help="The key's value; for several columns, their JSON array."),
]
Context = Annotated[
    str | None, typer.Option("--context", "-c", help='user_id=42, or {"user_id": 42}.')
]
Since = Annotated[
    str | None,
    typer.Option("--since", help="A time (ISO 8601, UTC by default), or 30m, 2h, 7d ago."),
]
Until = Annotated[str | None, typer.Option("--until", help="The same.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document per line.")]
Id = Annotated[str, typer.Argument(help="A change's id, as shown by `headrace audit log`.")]


def finish(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a command; its errors name the variables that the user set."""
    outcome.finish(work, lambda text: in_their_words(text, os.environ))


@app.command("up")
def up(
    once: Annotated[bool, typer.Option("--once", help="Start, wait until ready, stop.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show every log line of every service.")
    ] = False,
) -> None:
    """Start everything that an audit trail needs, using only Bemi's and Zemi's variables. Ctrl-C
    stops it.

    DB_HOST DB_PORT DB_NAME DB_USER DB_PASSWORD, DEST_DB_*, SLOT_NAME, PUBLICATION_NAME, TABLES and
    so on. A separate nats-server keeps its data in .headrace-audit in the current folder.
    """
    from headrace.cli.audit import up

    finish(lambda: up.run(Path.cwd() / ".headrace-audit", once=once, verbose=verbose))


@app.command("log")
def log(  # noqa: PLR0917  # typer turns them into options
    table: Table = None,
    key: Key = None,
    context: Context = None,
    since: Since = None,
    until: Until = None,
    operation: Annotated[
        str | None, typer.Option("--operation", help="CREATE, UPDATE, DELETE, TRUNCATE.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=1000, help="Show at most this many.")
    ] = 50,
    as_json: AsJson = False,
) -> None:
    """List changes, latest first."""
    from headrace.cli.audit import read

    # Its errors are reported within `finish`.
    search = read.searched(table, key, context, since, until, operation=operation, limit=limit)
    finish(lambda: read.log(search(), as_json=as_json))


@app.command("show")
def show(change: Id, as_json: AsJson = False) -> None:
    """Show everything about one change."""
    from headrace.cli.audit import read

    finish(lambda: read.show(change, as_json=as_json))


@app.command("diff")
def diff(change: Id) -> None:
    """Show what a change changed, column by column."""
    from headrace.cli.audit import read

    finish(lambda: read.diff(change))


@app.command("at")
def at(
    time: Annotated[
        str, typer.Argument(help="A time (ISO 8601, UTC by default), or 30m, 2h, 7d ago.")
    ],
    table: Annotated[str, typer.Option("--table", "-t", help="users, or app.users.")],
    key: Annotated[str, typer.Option("--key", "-k", help="The key's value.")],
) -> None:
    """Show a row as it was at a time."""
    from headrace.cli.audit import read

    finish(lambda: read.at(time, table, key))


@app.command("revert")
def revert(
    change: Annotated[str | None, typer.Option("--id", help="One change.")] = None,
    position: Annotated[
        int | None,
        typer.Option("--transaction", help="Revert a whole transaction, by its position."),
    ] = None,
    context: Context = None,
    since: Since = None,
    leave: Annotated[
        list[str] | None,
        typer.Option(
            "--leave",
            help="Leave this column as it is, because a trigger sets it; may be repeated.",
        ),
    ] = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Run the SQL in one transaction instead of printing it.")
    ] = False,
) -> None:
    """Print the SQL that reverts a change, a transaction, or everything of one context; with
    --apply, run it.
    """
    from headrace.cli.audit import read

    finish(lambda: read.revert(change, position, context, since, leave=leave or (), apply=apply))


@app.command("stats")
def stats(as_json: AsJson = False) -> None:
    """Count changes by table and operation; show the trail's position and its gaps."""
    from headrace.cli.audit import read

    finish(lambda: read.stats(as_json=as_json))


@app.command("sql")
def sql() -> None:
    """Print the SQL that creates the audit's tables, for an administrator."""
    from headrace.cli.audit import read

    finish(read.sql)
