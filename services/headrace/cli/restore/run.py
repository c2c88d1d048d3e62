"""`headrace restore`: chooses between a cluster, a table, rows and a drill."""

from __future__ import annotations

from pathlib import Path

from headrace.backup.store import BackupStore
from headrace.cli.restore import cluster, drill, rows, table
from headrace.cli.restore.moment import target
from headrace.cli.restore.wanted import Wanted
from headrace.cli.terminal import Console
from headrace.errors import SettingError
from headrace.settings import Settings


def run(settings: Settings, store: BackupStore, wanted: Wanted) -> int:
    """Restore a cluster or a table, or hold a drill; returns the exit code."""
    # First: a drill takes none of the other options, and its exit code says whether it passed.
    if wanted.drill:
        if wanted.to is not None or wanted.table is not None or wanted.moment.given:
            raise SettingError(
                "--drill chooses its own moment and place",
                remedy="Leave --to, --table and the moment out.",
            )
        return drill.run(settings, store, wanted.work)
    _restore(settings, store, wanted)
    return 0


def _restore(settings: Settings, store: BackupStore, wanted: Wanted) -> None:
    if (wanted.to is None) == (wanted.table is None):
        raise SettingError(
            "name one of --to and --table",
            remedy="--to FOLDER restores the whole cluster, --table NAME one table.",
        )
    if wanted.table is not None and wanted.plan_only:
        table.planned(store, wanted.table, wanted.moment, Console(stderr=True, soft_wrap=True))
        return
    if wanted.rows.given:
        if wanted.table is None or wanted.name is not None:
            raise SettingError(
                "--replace and --where change rows of a live table",
                remedy="Name it with --table, and leave --as out.",
            )
        rows.run(
            settings,
            store,
            wanted.table,
            wanted.moment,
            wanted.rows,
            into=wanted.into,
            work=wanted.work,
        )
        return
    if wanted.table is not None:
        table.run(
            settings,
            store,
            wanted.table,
            wanted.moment,
            into=wanted.into,
            name=wanted.name,
            work=wanted.work,
        )
        return
    if wanted.moment.before_drop:
        raise SettingError("--before-drop needs --table", remedy="Name the dropped table.")
    assert wanted.to is not None, "checked"
    cluster.run(
        settings,
        store,
        target(wanted.moment),
        wanted.to,
        timeline=wanted.timeline,
        tablespaces=dict(_mapped(text) for text in wanted.tablespaces),
        plan_only=wanted.plan_only,
    )


def _mapped(text: str) -> tuple[str, Path]:
    old, equals, new = text.partition("=")
    if not (old and equals and new):
        raise SettingError(f"--tablespace {text!r} is not OLD=NEW", remedy="Write /old=/new.")
    # PostgreSQL refuses tablespaces with relative paths.
    return old, Path(new).absolute()
