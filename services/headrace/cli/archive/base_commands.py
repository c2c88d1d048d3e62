"""The options of `headrace archive base …`."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli import outcome
from headrace.cli.archive.options import Url, finish
from headrace.cli.outcome import fail
from headrace.errors import HeadraceError

app = typer.Typer(
    name="base",
    help="Base snapshots of tables, from which a replay can start: take, list, remove.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

AsJson = Annotated[bool, typer.Option("--json", help="For programs.")]


@app.command("now")
def now(
    tables: Annotated[
        list[str] | None,
        typer.Argument(help="Tables, such as orders or app.orders. [all published]"),
    ] = None,
    url: Url = None,
    due: Annotated[
        str | None,
        typer.Option(
            "--due", help="Copy only tables whose newest base is older than this: 12h, 7d."
        ),
    ] = None,
    archive_timeout: Annotated[
        float,
        typer.Option(
            "--archive-timeout",
            min=1,
            help="Seconds to wait until the archive has reached the LSN.",
        ),
    ] = 300,
    as_json: AsJson = False,
) -> None:
    """Copy tables into the archive, each at one LSN. The archiver must be running."""
    try:
        import os
        from dataclasses import replace

        from headrace.cli.archive import base
        from headrace.cli.archive.read import chosen_url, duration_s
        from headrace.settings import load

        settings = load(os.environ)
        chosen = chosen_url(url, settings.archive.url)
        settings = replace(settings, archive=replace(settings.archive, url=chosen))
        due_s = None if due is None else duration_s(due)
    except HeadraceError as error:
        fail(error)
    outcome.finish(
        lambda: base.now(
            settings, tables or [], due_s=due_s, timeout_s=archive_timeout, as_json=as_json
        )
    )


@app.command("ls")
def ls(url: Url = None, as_json: AsJson = False) -> None:
    """List the bases: tables, LSNs, times, sizes, and the file where each continues."""

    def work(where: str) -> None:
        from headrace.cli.archive import base

        base.ls(where, as_json=as_json)

    finish(lambda _, where: work(where), url)


@app.command("rm")
def rm(
    bases: Annotated[list[str], typer.Argument(metavar="BASE...", help="IDs, as `ls` shows them.")],
    url: Url = None,
) -> None:
    """Remove bases. Without the last base of a table, replays need its whole history."""

    def work(where: str) -> None:
        from headrace.cli.archive import base

        base.rm(where, bases)

    finish(lambda _, where: work(where), url)
