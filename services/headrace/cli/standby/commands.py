"""The options of `headrace standby …`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import outcome
from headrace.cli.backup.commands import Url, on_store

if TYPE_CHECKING:
    from headrace.backup.store import BackupStore
    from headrace.settings import Settings

app = typer.Typer(
    name="standby",
    help="Standbys, from the backup store or from the primary, and their promotion.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Folder = Annotated[Path, typer.Argument(help="The standby's data directory.")]


class StandbySource(StrEnum):
    """The source of a standby's files and log."""

    STORE = "store"
    PRIMARY = "primary"


Source = Annotated[
    StandbySource,
    typer.Option(
        "--from",
        help="store: the newest backup, then `standby feed`. primary: a copy that streams, with a "
        "slot.",
    ),
]


@app.command("create")
def create(folder: Folder, url: Url = None, source: Source = StandbySource.STORE) -> None:
    """Create a standby in a new folder, and show how to start it."""

    def work(settings: Settings, store: BackupStore) -> None:
        from headrace.cli.standby import bucket, primary

        if source is StandbySource.PRIMARY:
            primary.create(settings, store, folder)
        else:
            bucket.create(settings, store, folder)

    on_store(url, work)


@app.command("feed")
def feed(folder: Folder, url: Url = None) -> None:
    """Keep a standby's log up to date, and show how far it is. Runs next to its server."""

    def work(_: Settings, store: BackupStore) -> None:
        from headrace.cli.standby import bucket

        outcome.finish(lambda: bucket.feed(store, folder))

    on_store(url, work)


@app.command("promote")
def promote(folder: Folder, url: Url = None) -> None:
    """Promote a running standby to a primary, and show where its own backups go."""

    def work(settings: Settings, store: BackupStore) -> None:
        from headrace.cli.standby import promote as command

        command.promote(settings, store, folder)

    on_store(url, work)
