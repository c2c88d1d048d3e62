"""The options of `headrace restore`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.backup.commands import Url, on_store
from headrace.cli.outcome import fail
from headrace.errors import HeadraceError

# As in `backup.commands`: help works without the packages of an archive.
if TYPE_CHECKING:
    from headrace.backup.store import BackupStore
    from headrace.cli.restore.wanted import Wanted
    from headrace.settings import Settings


Folder = Annotated[
    Path | None, typer.Option("--to", help="Restore the whole cluster into this new folder.")
]
Table = Annotated[
    str | None, typer.Option("--table", help="Restore one table, such as orders or app.orders.")
]
BeforeDrop = Annotated[
    bool, typer.Option("--before-drop", help="The moment before the table was dropped.")
]
At = Annotated[
    str | None, typer.Option("--at", help="A time, 2026-01-31T15:46+01:00, or an age, 30m or 2h.")
]
AtLsn = Annotated[str | None, typer.Option("--lsn", help="A position in the log: 0/191BFD0.")]
Xid = Annotated[
    int | None, typer.Option("--xid", min=3, help="After this transaction has committed.")
]
BeforeXid = Annotated[
    int | None, typer.Option("--before-xid", min=3, help="Before this transaction commits.")
]


class RestoreWay(StrEnum):
    """Where a table comes from."""

    # From the backup store: PostgreSQL replays the log in a temporary cluster.
    PHYSICAL = "physical"
    # From the archive: a base and the changes after it.
    LOGICAL = "logical"


# The options of the logical way.
_LOGICAL = frozenset(
    {
        *("table", "at", "lsn", "into", "way", "name", "work", "plan_only"),
        *("replace", "where", "discard_later", "yes"),
    }
)

Way = Annotated[
    RestoreWay,
    typer.Option(
        "--way",
        help="physical: from the backup store, with everything that PostgreSQL knows of a table. "
        "logical: from the archive, its rows and key, into any database; --at or --lsn, or the "
        "end of the archive.",
    ),
]
Into = Annotated[
    str,
    typer.Option(
        "--into",
        help="The table's destination: live (PG_HOST, PG_DB, …) or postgresql://…; with --way "
        "logical also sqlite:///file.db and other targets.",
    ),
]
NewName = Annotated[
    str | None, typer.Option("--as", help="The table's new name. [its name and _restored]")
]
Replace = Annotated[
    bool,
    typer.Option(
        "--replace", help="Restore rows of the live table, instead of creating a new table."
    ),
]
Where = Annotated[
    str | None,
    typer.Option("--where", help="Restore only these rows, as in SQL's WHERE: customer = 7."),
]
DiscardLater = Annotated[
    bool,
    typer.Option("--discard-later", help="Also delete rows that were inserted since the moment."),
]
Yes = Annotated[
    bool, typer.Option("--yes", help="Show the difference, then change the rows without asking.")
]
Timeline = Annotated[
    int | None, typer.Option("--timeline", min=1, help="The timeline to follow. [the newest]")
]
Tablespaces = Annotated[
    list[str] | None,
    typer.Option("--tablespace", help="A tablespace's new location: OLD=NEW; repeatable."),
]
Work = Annotated[
    Path | None,
    typer.Option("--work", help="Folder in which a table's cluster is restored. [temporary]"),
]
Drill = Annotated[
    bool,
    typer.Option(
        "--drill",
        help="Prove that the backups work: restore to a random recent moment, compare with the "
        "source, remove the copy. Exits with 3 if they differ.",
    ),
]
PlanOnly = Annotated[bool, typer.Option("--plan", help="Only show what the restore would do.")]


def _logical(context: typer.Context, wanted: Wanted) -> None:
    others = [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name not in _LOGICAL and _is_given(context, str(parameter.name))
    ]
    try:
        from headrace.cli.restore import logical

        logical.run(wanted, others)
    except HeadraceError as error:
        fail(error)


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def restore(  # noqa: PLR0917  # typer turns them into options
    context: typer.Context,
    url: Url = None,
    to: Folder = None,
    table: Table = None,
    before_drop: BeforeDrop = False,
    at: At = None,
    lsn: AtLsn = None,
    xid: Xid = None,
    before_xid: BeforeXid = None,
    into: Into = "live",
    name: NewName = None,
    replace: Replace = False,
    where: Where = None,
    discard_later: DiscardLater = False,
    yes: Yes = False,
    timeline: Timeline = None,
    tablespaces: Tablespaces = None,
    work: Work = None,
    plan_only: PlanOnly = False,
    drill: Drill = False,
    way: Way = RestoreWay.PHYSICAL,
) -> None:
    """Restore the cluster as of any moment into a new folder, or one table or some of its rows into
    a live database.

    Without a moment, --to restores up to the end of the log.
    """

    from headrace.cli.restore.wanted import RestoreMoment, RowsWanted, Wanted

    wanted = Wanted(
        to,
        table,
        RestoreMoment(at, lsn, xid, before_xid, before_drop),
        into,
        name,
        RowsWanted(replace, where, discard_later, yes),
        timeline,
        tuple(tablespaces or ()),
        work,
        plan_only,
        drill,
    )
    if way is RestoreWay.LOGICAL:
        _logical(context, wanted)
        return
    code = 0

    def restored(settings: Settings, store: BackupStore) -> None:
        from headrace.cli.restore import run as command

        nonlocal code
        code = command.run(settings, store, wanted)

    on_store(url, restored)
    raise typer.Exit(code)
