"""The options of `headrace standby …`."""

from __future__ import annotations

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
    help="A standby that needs only the backup store, not the primary.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Folder = Annotated[Path, typer.Argument(help="The standby's data directory.")]


@app.command("create")
def create(folder: Folder, url: Url = None) -> None:
    """Restore the newest backup into a new folder as a standby, and say how to start it."""

    def work(settings: Settings, store: BackupStore) -> None:
        from headrace.cli.standby import bucket

        bucket.create(settings, store, folder)

    on_store(url, work)


@app.command("feed")
def feed(folder: Folder, url: Url = None) -> None:
    """Keep a standby's log up to date, and show how far it is. Runs next to its server."""

    def work(_: Settings, store: BackupStore) -> None:
        from headrace.cli.standby import bucket

        outcome.finish(lambda: bucket.feed(store, folder))

    on_store(url, work)
