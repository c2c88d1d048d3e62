"""The options of `headrace sql …`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.outcome import fail
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.settings import SqlSettings

app = typer.Typer(
    name="sql",
    help="The users of the SQL server, which answers SQL over the lake.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
users_app = typer.Typer(
    name="users",
    help="The users of the SQL server. It must be running, or its private PostgreSQL.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(users_app)

Name = Annotated[str, typer.Argument(help="The user's name.")]


def _finish(work: Callable[[], None]) -> None:
    """Run a command; an expected error is one line."""
    import psycopg

    try:
        work()
    except HeadraceError as error:
        fail(error)
    except psycopg.Error as error:
        fail(error, str(error).splitlines()[0])


@users_app.command("add")
def add(
    name: Name,
    password_file: Annotated[
        Path | None,
        typer.Option("--password-file", help="File with the password. [generated, and shown once]"),
    ] = None,
    no_tables: Annotated[
        bool,
        typer.Option(
            "--no-tables", help="Give the user no rights: GRANT single tables as superuser."
        ),
    ] = False,
) -> None:
    """Create a user who may read all tables of the lake, or change a user's password."""
    from headrace.cli.sql import users

    def work() -> None:
        password = None
        if password_file is not None:
            password = password_file.read_text().rstrip("\n")
        made = users.add(_settings(), name, password, all_tables=not no_tables)
        if made is not None:
            typer.echo(made)

    _finish(work)


@users_app.command("ls")
def ls(
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """List the users."""
    from headrace.cli.sql import users

    def work() -> None:
        found = users.users(_settings())
        if as_json:
            typer.echo(
                json.dumps([{"name": each.name, "reads_all": each.reads_all} for each in found])
            )
            return
        for each in found:
            rights = "all tables" if each.reads_all else "tables that were granted"
            typer.echo(f"{each.name}  {rights}")

    _finish(work)


@users_app.command("drop")
def drop(name: Name) -> None:
    """Remove a user and its rights. Sessions of the user end."""
    from headrace.cli.sql import users

    _finish(lambda: users.drop(_settings(), name))


def _settings() -> SqlSettings:
    from headrace.settings import load

    return load(os.environ).sql
