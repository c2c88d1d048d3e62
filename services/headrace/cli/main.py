"""The commands for people: `headrace up`, `tail`, `init`, `doctor` and so on; see also
`cli.service`.

A command's module is imported only when the command runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Coroutine
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import outcome
from headrace.cli.archive import commands as archive_commands
from headrace.cli.audit import commands as audit_commands
from headrace.cli.backup import commands as backup_commands
from headrace.cli.lake import commands as lake_commands
from headrace.cli.mirror import commands as mirror_commands
from headrace.cli.outcome import fail
from headrace.cli.restore import commands as restore_commands
from headrace.cli.sinks import commands as sink_commands
from headrace.cli.sql import commands as sql_commands
from headrace.cli.standby import commands as standby_commands
from headrace.cli.usage import HELP_NAMES, readable
from headrace.errors import HeadraceError
from headrace.suite.services import SERVICES, SINK
from headrace.terminal.text import plain

if TYPE_CHECKING:
    from headrace.settings import Settings


class DeliveryChoice(StrEnum):
    """The values of `headrace.settings.DeliveryMode`: the settings are loaded by the commands that
    use them, not for a help text.
    """

    EVENT = "event"
    BATCH = "batch"
    TRANSACTION = "transaction"


app = typer.Typer(
    name="headrace",
    help="Stream PostgreSQL changes, schemas and snapshots to NATS JetStream.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    # Rich's tracebacks can show local variables, which may contain secrets.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": HELP_NAMES},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from headrace.cli.version import line

        typer.echo(line())
        raise typer.Exit


@app.callback()
def about(
    *,
    version: Annotated[  # its callback does the work
        bool,
        typer.Option(
            "--version",
            "-V",
            is_eager=True,
            callback=_show_version,
            help="Show the version and exit.",
        ),
    ] = False,
) -> None:
    """Stream PostgreSQL changes, schemas and snapshots to NATS JetStream."""


AsJson = Annotated[bool, typer.Option("--json", help="For programs.")]
Slot = Annotated[
    str | None,
    typer.Option("--slot", help="Replication slot; also the source's name. [HEADRACE_SLOT]"),
]
Pub = Annotated[str | None, typer.Option("--pub", help="Publication to read. [HEADRACE_PUB]")]
Json = Annotated[
    bool | None,
    typer.Option("--json", help="Use JSON instead of MessagePack. [HEADRACE_ENCODING=json]"),
]
Zstd = Annotated[
    bool | None, typer.Option("--zstd", help="Compress snapshot chunks. [HEADRACE_ZSTD]")
]


def settings_from(
    slot: str | None = None,
    pub: str | None = None,
    port: int | None = None,
    json: bool | None = None,
    zstd: bool | None = None,
    delivery: DeliveryChoice | None = None,
    telemetry: str | None = None,
) -> Settings:
    """Settings from flags and the environment; exits with one line if they are invalid."""
    from headrace.contract.values import Encoding
    from headrace.settings import DeliveryMode, load

    try:
        return load(
            os.environ,
            source__slot=slot,
            source__publication=pub,
            process__http_port=port,
            process__telemetry_url=telemetry,
            format__encoding=Encoding.JSON if json else None,
            format__zstd=zstd,
            delivery__mode=None if delivery is None else DeliveryMode(delivery),
        )
    except HeadraceError as error:
        fail(error)


def _add_service(name: str, explain: str) -> None:
    """For the list of commands, and for calls that bypass `headrace.cli.entry`."""

    def command(context: typer.Context) -> None:
        from headrace.cli import service

        if name == SINK.name:
            raise typer.Exit(service.run_sink(context.args))
        raise typer.Exit(service.run(name, context.args))

    passed_on = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
    panel = "Services (one process each)"
    app.command(name, help=explain, rich_help_panel=panel, context_settings=passed_on)(command)


Slots = Annotated[
    list[str] | None,
    typer.Option("--slot", metavar="NAME", help="Slot; repeat for each suite. [HEADRACE_SLOT]"),
]
Pubs = Annotated[
    list[str] | None,
    typer.Option(
        "--pub", metavar="NAME", help="Publication; repeat for each suite. [HEADRACE_PUB]"
    ),
]
UpPort = Annotated[
    int | None,
    typer.Option("--port", help="Port of telemetry. [9090 if free; +10 per further suite]"),
]
Delivery = Annotated[
    DeliveryChoice | None,
    typer.Option(
        "--delivery", help="Contents of a message, or of an atomic group. [HEADRACE_DELIVERY]"
    ),
]
ZstdEvents = Annotated[
    bool | None,
    typer.Option("--zstd-events", help="Compress single events. [HEADRACE_ZSTD_EVENTS]"),
]
PgPort = Annotated[
    int, typer.Option(min=0, max=65535, help="Port of the embedded PostgreSQL; 0: any.")
]
NatsPort = Annotated[int, typer.Option(min=0, max=65535, help="Port of the embedded NATS; 0: any.")]
Archive = Annotated[
    str | None,
    typer.Option(
        "--archive", help="Also keep an archive: file:///…, s3://… [HEADRACE_ARCHIVE_URL]"
    ),
]
Lake = Annotated[
    str | None,
    typer.Option(
        "--lake",
        help="Also keep Iceberg tables, and the archive that they come from: file:///…, s3://… "
        "[HEADRACE_LAKE_URL]",
    ),
]
LakeCatalog = Annotated[
    str | None,
    typer.Option(
        "--catalog",
        help="The lake's catalog: sqlite:///…, postgresql://… [HEADRACE_LAKE_CATALOG, or a file in "
        "the lake's folder]",
    ),
]
Sql = Annotated[
    bool,
    typer.Option("--sql", help="Also answer SQL over the lake for PostgreSQL's clients."),
]
Once = Annotated[bool, typer.Option("--once", help="Start, show the result, stop.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Show every log line of every service.")
]


@app.command("up", rich_help_panel="Trying it out")
def up(  # noqa: PLR0917  # typer turns them into options
    slot: Slots = None,
    pub: Pubs = None,
    port: UpPort = None,
    json: Json = None,
    delivery: Delivery = None,
    zstd: Zstd = None,
    zstd_events: ZstdEvents = None,
    pg_port: PgPort = 0,
    nats_port: NatsPort = 0,
    archive: Archive = None,
    lake: Lake = None,
    catalog: LakeCatalog = None,
    sql: Sql = False,
    once: Once = False,
    verbose: Verbose = False,
) -> None:
    """Run the whole suite on this machine and show changes flowing. Ctrl-C stops it.

    Without PG_HOST (or PGHOST, PGSERVICE) it starts a PostgreSQL, without NATS_URL (or NATS_HOST) a
    nats-server; their data stays in .headrace in the current folder.

    Several suites: --slot a --pub p1 --slot b --pub p2. They share the servers and streams; a table
    may be in only one of the publications.
    """
    from headrace.cli.up import run as command
    from headrace.cli.up.selection import paired

    try:
        suites = paired(slot or [], pub or [])
    except HeadraceError as error:
        fail(error)
    # Only to report an invalid value before anything starts.
    for suite in suites:
        settings_from(suite.slot, suite.pub, port, json, zstd, delivery)
    from headrace.settings import DeliveryMode

    options = command.Options(
        suites=suites,
        pg_port=pg_port,
        nats_port=nats_port,
        http_port=port,
        json=json,
        delivery=None if delivery is None else DeliveryMode(delivery),
        zstd=zstd,
        zstd_events=zstd_events,
        archive=archive,
        lake=lake,
        catalog=catalog,
        sql=sql,
        once=once,
        verbose=verbose,
    )
    finish(lambda: command.run(Path.cwd() / ".headrace", options))


@app.command("load", rich_help_panel="Trying it out")
def load_command(
    rate: Annotated[float, typer.Option("--rate", min=0.1, help="Changes per second.")] = 100,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="Duration in seconds.")] = 10,
    table: Annotated[
        str, typer.Option("--table", help="Name of the table; created if missing.")
    ] = "demo",
    pub: Pub = None,
) -> None:
    """Insert, update and delete rows of a demo table at a steady rate."""
    from headrace.cli import load as command

    settings = settings_from(pub=pub)
    finish(lambda: command.run(settings, rate=rate, seconds=seconds, table=table))


@app.command("tail", rich_help_panel="Following changes")
def tail(
    tables: Annotated[
        list[str] | None, typer.Argument(help="Tables, such as users or app.orders. [all]")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print payloads, one JSON document per line.")
    ] = False,
    from_start: Annotated[
        bool, typer.Option("--from-start", help="Start with the oldest event in the stream.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Stop after this many events.")
    ] = None,
) -> None:
    """Show change events as they arrive. Ctrl-C stops."""
    from headrace.cli.watch import tail as command

    settings = settings_from()
    finish(
        lambda: command.run(
            settings, tables or [], as_json=as_json, from_start=from_start, limit=limit
        )
    )


@app.command("snapshot", rich_help_panel="Following changes")
def snapshot(
    table: Annotated[str, typer.Argument(help="A published table, such as users or app.orders.")],
    columns: Annotated[
        str | None, typer.Option("--columns", help="Columns to copy, comma-separated. [all]")
    ] = None,
    conditions: Annotated[
        str | None,
        typer.Option("--filter", help="""Some rows, as data: '[["id", ">=", 100]]'. [all]"""),
    ] = None,
    text: Annotated[bool, typer.Option("--text", help="Copy values as COPY prints them.")] = False,
    cancel: Annotated[
        bool,
        typer.Option(
            "--cancel", help="Cancel the table's snapshots, including those of other clients."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Request a consistent copy of a table and wait until it is stored in JetStream.

    Ctrl-C stops waiting, not the snapshot.
    """
    from headrace.cli import snapshot as command

    settings = settings_from()
    if cancel:
        finish(lambda: command.cancel(settings, table, as_json=as_json))
        return
    try:
        payload = command.request(columns, conditions, text=text)
    except HeadraceError as error:
        fail(error)
    finish(lambda: command.run(settings, table, payload, as_json=as_json))


_PANEL = "Setup and operation"
TelemetryPort = Annotated[
    int | None, typer.Option("--port", help="Telemetry's port on this machine. [9090]")
]
TelemetryUrl = Annotated[
    str | None, typer.Option("--url", help="Telemetry's address, such as http://host:9090.")
]


@app.command("init", rich_help_panel=_PANEL)
def init(
    slot: Slot = None,
    pub: Pub = None,
    tables: Annotated[
        str | None,
        typer.Option("--tables", help="Tables of the publication, comma-separated. [all tables]"),
    ] = None,
    ddl_trigger: Annotated[
        bool,
        typer.Option(
            "--ddl-trigger",
            help=(
                "Also install an event trigger, which reports drops, renames and rewrites in order."
            ),
        ),
    ] = False,
) -> None:
    """Create the missing publication, streams, buckets and replication slot. Safe to repeat."""
    from headrace.cli.setup import init as command
    from headrace.contract.table_patterns import listed

    settings = settings_from(slot, pub)
    wanted = list(listed(tables or ""))
    finish(lambda: command.run(settings, wanted, with_ddl_trigger=ddl_trigger))


@app.command("teardown", rich_help_panel=_PANEL)
def teardown(
    slot: Slot = None,
    pub: Pub = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
    streams: Annotated[
        bool, typer.Option("--streams", help="Also delete streams and buckets.")
    ] = False,
    ddl_trigger: Annotated[
        bool,
        typer.Option(
            "--ddl-trigger", help="Also remove the event trigger, which other suites here may use."
        ),
    ] = False,
) -> None:
    """Remove what init created: slot, publication and, with --streams, the streams."""
    from headrace.cli.setup import teardown as command

    settings = settings_from(slot, pub)
    finish(lambda: command.run(settings, yes=yes, streams=streams, with_ddl_trigger=ddl_trigger))


@app.command("doctor", rich_help_panel=_PANEL)
def doctor(slot: Slot = None, pub: Pub = None, as_json: AsJson = False) -> None:
    """Check everything the suite needs, and show a remedy for each problem."""
    from headrace.cli.doctor import run as command

    settings = settings_from(slot, pub)
    finish(lambda: command.run(settings, as_json=as_json))


def _telemetry(port: int | None, url: str | None) -> str | None:
    """Telemetry's address by flags; without one, the environment names it."""
    if url is None and port is not None:
        return f"http://127.0.0.1:{port}"
    return url


@app.command("status", rich_help_panel=_PANEL)
def status(port: TelemetryPort = None, url: TelemetryUrl = None, as_json: AsJson = False) -> None:
    """Show the state of the running suite."""
    from headrace.cli.watch import status as command

    settings = settings_from(telemetry=_telemetry(port, url))
    finish(lambda: command.run(settings, as_json=as_json))


@app.command("top", rich_help_panel=_PANEL)
def top(
    port: TelemetryPort = None,
    url: TelemetryUrl = None,
    interval: Annotated[
        float, typer.Option("--interval", min=0.2, help="Seconds between updates.")
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one screen, then exit.")] = False,
) -> None:
    """Watch the running suite: rates, lag, slot, snapshots, consumers, errors. Press q to quit."""
    from headrace.cli.watch import top as command

    settings = settings_from(telemetry=_telemetry(port, url))
    finish(lambda: command.run(settings, interval_s=interval, once=once))


@app.command("pause", rich_help_panel=_PANEL)
def pause(
    slot: Slot = None,
    reason: Annotated[str, typer.Option("--reason", help="Shown in the status.")] = "",
) -> None:
    """Stop publishing until `headrace resume`, even across restarts. PostgreSQL's slot retains the
    changes.
    """
    from headrace.cli import pause as command

    settings = settings_from(slot)
    finish(lambda: command.run(settings, paused=True, reason=reason))


@app.command("resume", rich_help_panel=_PANEL)
def resume(slot: Slot = None) -> None:
    """Resume publishing where `headrace pause` stopped it."""
    from headrace.cli import pause as command

    settings = settings_from(slot)
    finish(lambda: command.run(settings, paused=False))


# In the order of the page: what newcomers need comes first, what containers run comes last.
app.add_typer(mirror_commands.app)
app.add_typer(archive_commands.app, rich_help_panel="The archive")
app.add_typer(lake_commands.app, rich_help_panel="The lake")
app.add_typer(sql_commands.app, rich_help_panel="The lake")
app.add_typer(audit_commands.app, rich_help_panel="The audit trail")
app.add_typer(backup_commands.app, rich_help_panel="Backups")
app.add_typer(standby_commands.app, rich_help_panel="Backups")
app.command("restore", rich_help_panel="Backups")(restore_commands.restore)
app.add_typer(sink_commands.app, rich_help_panel="The sinks")
app.add_typer(sink_commands.letters, rich_help_panel="The sinks")
app.command("replay", rich_help_panel="The archive")(archive_commands.replay)

for _service in (*SERVICES.values(), SINK):
    _add_service(_service.name, _service.purpose)


def finish(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a command to its end; an expected error is one line."""
    from nats.errors import Error as NatsError

    from headrace.cli.session import refused

    try:
        outcome.finish(work)
    except NatsError as error:
        fail(refused(error))


def main() -> None:
    # The entry point of the console script; typer needs the program's name, independent of how it
    # was started.
    # A help text and a shell's completion need no settings, and have no place for a warning.
    if not {*HELP_NAMES} & {*sys.argv} and "_HEADRACE_COMPLETE" not in os.environ:
        from headrace.settings.typos import misspelled

        for warning in misspelled(os.environ):
            typer.echo(plain(f"headrace: {warning}"), err=True)
    readable(typer.main.get_command(app))(prog_name="headrace", args=sys.argv[1:])
