"""The options of `headrace backup …`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import outcome
from headrace.cli.outcome import fail
from headrace.errors import HeadraceError

# For annotations only: the store's packages are an extra, and help works without them.
if TYPE_CHECKING:
    from headrace.backup.store import BackupStore
    from headrace.settings import Settings

app = typer.Typer(
    name="backup",
    help="The physical log and base backups in a folder or bucket: create, take, verify, expire.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Url = Annotated[
    str | None,
    typer.Option("--url", help="The backup store: file:///…, s3://… [HEADRACE_BACKUP_URL]"),
]
AsJson = Annotated[bool, typer.Option("--json", help="For programs.")]


def on_store(url: str | None, work: Callable[[Settings, BackupStore], None]) -> None:
    """Run a command on an open store; an expected error is one line."""
    try:
        from headrace.cli.backup.selection import chosen, opened

        settings = chosen(url)
        work(settings, opened(settings))
    except HeadraceError as error:
        fail(error)


def chosen_settings(url: str | None) -> Settings:
    """The settings with a store; exits with one line if there is none."""
    try:
        from headrace.cli.backup.selection import chosen

        return chosen(url)
    except HeadraceError as error:
        fail(error)


@app.command("init")
def init(url: Url = None) -> None:
    """Create the store and the physical replication slot. Safe to repeat."""
    settings = chosen_settings(url)
    from headrace.cli.backup import create

    outcome.finish(lambda: create.run(settings))


@app.command("now")
def now(  # noqa: PLR0917  # typer turns them into options
    url: Url = None,
    incremental: Annotated[
        bool,
        typer.Option(
            "--incremental",
            help="Store only changes since the newest backup. Needs PostgreSQL 17 and "
            "summarize_wal.",
        ),
    ] = False,
    due: Annotated[
        str | None,
        typer.Option("--due", help="Only if the newest backup is older than this: 12h, 1d."),
    ] = None,
    full_every: Annotated[
        str | None,
        typer.Option(
            "--full-every",
            help="Take incremental backups while the newest full one is younger than this, if the "
            "server supports it: 7d.",
        ),
    ] = None,
    spread: Annotated[
        bool, typer.Option("--spread", help="Wait for a checkpoint that spares the disks.")
    ] = False,
    tags: Annotated[
        list[str] | None, typer.Option("--keep", help="A tag that keeps this backup; repeatable.")
    ] = None,
    log_timeout: Annotated[
        float, typer.Option("--log-timeout", min=1, help="Seconds to wait for its log.")
    ] = 300,
    as_json: AsJson = False,
) -> None:
    """Take a backup, and wait until it can be restored. wal-archiver must be running."""
    settings = chosen_settings(url)
    from headrace.cli.archive.read import duration_s
    from headrace.cli.backup import now

    try:
        schedule = now.BackupSchedule(
            *(duration_s(text) if text is not None else None for text in (due, full_every))
        )
    except HeadraceError as error:
        fail(error)
    outcome.finish(
        lambda: now.run(
            settings,
            schedule=schedule,
            incremental=incremental,
            spread=spread,
            tags=tuple(tags or ()),
            log_timeout_s=log_timeout,
            as_json=as_json,
        )
    )


@app.command("ls")
def ls(url: Url = None, as_json: AsJson = False) -> None:
    """List the backups, and how far the log continues from each."""

    def work(_: Settings, store: BackupStore) -> None:
        from headrace.cli.backup import listing

        listing.ls(store, as_json=as_json)

    on_store(url, work)


@app.command("status")
def status(url: Url = None, as_json: AsJson = False) -> None:
    """Show how far the log is stored, and what is missing."""

    def work(settings: Settings, store: BackupStore) -> None:
        from headrace.cli.backup import listing

        listing.status(settings, store, as_json=as_json)

    on_store(url, work)


@app.command("drops")
def list_drops(url: Url = None, as_json: AsJson = False) -> None:
    """List the dropped tables that can be restored, newest drop first."""

    def work(_: Settings, store: BackupStore) -> None:
        from headrace.cli.backup import listing

        listing.list_drops(store, as_json=as_json)

    on_store(url, work)


@app.command("verify")
def verify(
    url: Url = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Don't ask the server how far its log is.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Read every byte of the store, and check that the log is complete up to now. Names
    damaged or missing objects, and then exits with 3.
    """
    code = 0

    def work(settings: Settings, store: BackupStore) -> None:
        nonlocal code
        import asyncio

        from headrace.cli.backup import check

        code = asyncio.run(check.run(settings, store, offline=offline, as_json=as_json))

    on_store(url, work)
    raise typer.Exit(code)


@app.command("expire")
def expire(
    url: Url = None,
    keep: Annotated[
        int | None,
        typer.Option("--keep", min=1, help="Backups to keep. [HEADRACE_BACKUP_KEEP_BACKUPS]"),
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than",
            help="Keep every moment of this time: 90, 30m, 12h, 7d. [HEADRACE_BACKUP_KEEP_S]",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove whole chains of old backups, the log that only they needed, and the remains of
    interrupted backups.
    """

    def work(settings: Settings, store: BackupStore) -> None:
        from headrace.cli.archive.read import duration_s
        from headrace.cli.backup import expire as command

        keep_s = duration_s(older_than) if older_than is not None else None
        command.expire(settings, store, keep, keep_s, dry_run=dry_run, as_json=as_json)

    on_store(url, work)
