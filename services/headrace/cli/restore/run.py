"""`headrace restore`: what its options ask for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.backup.store import BackupStore
from headrace.cli.restore import cluster, table
from headrace.cli.restore.moment import RestoreMoment, target
from headrace.errors import SettingError
from headrace.settings import Settings


@dataclass(frozen=True, slots=True)
class Wanted:
    """The options."""

    to: Path | None
    table: str | None
    moment: RestoreMoment
    into: str
    name: str | None
    timeline: int | None
    tablespaces: tuple[str, ...]
    work: Path | None
    plan_only: bool


def run(settings: Settings, store: BackupStore, wanted: Wanted) -> None:
    """Restore a cluster or a table."""
    if (wanted.to is None) == (wanted.table is None):
        raise SettingError(
            "name one of --to and --table",
            remedy="--to FOLDER restores the whole cluster, --table NAME one table.",
        )
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
    return old, Path(new).absolute()
