"""The options of `headrace mirror` and `headrace verify`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.outcome import fail, finish
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.settings import Settings
    from headrace.sinks.configuration import SinkConfiguration

app = typer.Typer()

_PANEL = "Mirrors"
_TO_HELP = (
    "The mirror: sqlite:///local.db, duckdb:///local.duckdb, postgresql://user@host/name, or "
    "mariadb://user@host/name."
)
To = Annotated[str, typer.Option("--to", help=_TO_HELP)]
Tables = Annotated[
    list[str] | None,
    typer.Option("--table", help="users, app.orders, …; may be repeated. [every published table]"),
]
Http = Annotated[
    int | None,
    typer.Option("--http", min=0, max=65535, help="Serve health and metrics on this port."),
]


def _settings() -> Settings:
    from headrace.settings import load

    try:
        return load(os.environ)
    except HeadraceError as error:
        fail(error)


def _sink(settings: Settings, name: str, config: str | None) -> SinkConfiguration:
    from headrace.sinks.configuration import ConfigurationError, load_sinks

    sinks = load_sinks(Path(config or settings.sinks.file), os.environ)
    if name not in sinks:
        raise ConfigurationError(f"there is no sink {name!r}; the sinks: {', '.join(sinks)}")
    return sinks[name]


@app.command("mirror", rich_help_panel=_PANEL)
def mirror(
    to: To,
    tables: Tables = None,
    http: Http = None,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh",
            help=(
                "While a table is copied again, let the other tables continue; "
                "headrace_mirror.stale_tables names it."
            ),
        ),
    ] = False,
) -> None:
    """Keep tables in sync in SQLite or another PostgreSQL, exactly once. Ctrl-C stops; start it
    again to resume.
    """
    from headrace.cli.mirror import run as command

    settings = _settings()
    try:
        code = command.run(settings, tables or [], to, http, fresh=fresh)
    except HeadraceError as error:
        fail(error)
    raise typer.Exit(code)


@app.command("verify", rich_help_panel=_PANEL)
def verify(
    *,
    to: Annotated[str | None, typer.Option("--to", help=_TO_HELP)] = None,
    sink: Annotated[
        str | None,
        typer.Option("--sink", help="A sink of headrace.toml in a database or OpenSearch."),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option("--config", help="The file that describes the sinks. [HEADRACE_CONFIG]"),
    ] = None,
    tables: Tables = None,
    wait: Annotated[
        float, typer.Option("--wait", min=1, help="Seconds a mirror may take to reach an LSN.")
    ] = 60,
    every: Annotated[
        float | None,
        typer.Option(
            "--every", min=1, help="Repeat the comparison, with this many seconds in between."
        ),
    ] = None,
    http: Http = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document per table.")
    ] = False,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Show the rows that differ, then write exactly these into the mirror or sink.",
        ),
    ] = False,
) -> None:
    """Compare a mirror or a sink with its source, both at one LSN, while both change. Exits with 3
    if they differ.
    """
    from headrace.cli.mirror import verify as command

    if (to is None) == (sink is None):
        raise typer.BadParameter("name the target by one of them", param_hint="--to or --sink")
    settings = _settings()
    if repair and every is not None:
        raise typer.BadParameter("can't be combined with --every", param_hint="--repair")
    options = command.VerifyOptions(wait, every, http, as_json=as_json, repairs=repair)
    try:
        target = to or _sink(settings, str(sink), config)
        code = command.run(settings, tables or [], target, options)
    except HeadraceError as error:
        fail(error)
    raise typer.Exit(code)


@app.command("wait-for", rich_help_panel=_PANEL)
def wait_for(
    lsn: Annotated[
        str, typer.Argument(metavar="LSN", help="SELECT pg_current_wal_lsn() after your COMMIT.")
    ],
    to: To,
    timeout: Annotated[float, typer.Option("--timeout", min=0, help="Seconds to wait.")] = 10,
    source: Annotated[
        str, typer.Option("--source", help="The slot, if the mirror has several sources.")
    ] = "",
) -> None:
    """Wait until readers of a mirror see everything that committed before an LSN. Exits with 1 if
    they don't in time.
    """
    from headrace.cli.mirror import wait_for as command

    finish(lambda: command.run(lsn, to, timeout_s=timeout, source=source))
