"""The options of `headrace lake …`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.outcome import fail
from headrace.errors import HeadraceError

# Commands import what they need when they run: a help text must not load PyIceberg.
if TYPE_CHECKING:
    from headrace.cli.lake.selection import Lake

app = typer.Typer(
    name="lake",
    help="The source's tables as Iceberg tables: list, compact, copy again, verify.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Url = Annotated[
    str | None, typer.Option("--url", help="The lake: file:///…, s3://… [HEADRACE_LAKE_URL]")
]
CatalogUrl = Annotated[
    str | None,
    typer.Option(
        "--catalog", help="Its catalog: sqlite:///…, postgresql://… [HEADRACE_LAKE_CATALOG]"
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="For programs.")]
OlderThan = Annotated[
    str | None, typer.Option("--older-than", help="An age: 90, 30m, 12h, 7d. [from the settings]")
]


def _seconds(text: str | None) -> float | None:
    from headrace.cli.archive.read import duration_s

    return None if text is None else duration_s(text)


def _finish(work: Callable[[], None]) -> None:
    """Run a command; an expected error is one line."""
    try:
        work()
    except HeadraceError as error:
        fail(error)


def _on_lake(url: str | None, catalog: str | None, work: Callable[[Lake], None]) -> None:
    """Run a command on an open lake."""

    def opened_and_worked() -> None:
        from headrace.cli.lake.selection import opened

        with opened(url, catalog) as lake:
            work(lake)

    _finish(opened_and_worked)


@app.command("init")
def init(url: Url = None, catalog: CatalogUrl = None, as_json: AsJson = False) -> None:
    """Create the catalog and the folder, and check the permissions. Safe to repeat."""

    def work() -> None:
        from headrace.cli.lake import create

        create.init(url, catalog, as_json=as_json)

    _finish(work)


@app.command("ls")
def ls(url: Url = None, catalog: CatalogUrl = None, as_json: AsJson = False) -> None:
    """List the tables: rows, deleted rows, files, size, last change."""

    def work(lake: Lake) -> None:
        from headrace.cli.lake import listing

        listing.ls(lake, as_json=as_json)

    _on_lake(url, catalog, work)


@app.command("status")
def status(url: Url = None, catalog: CatalogUrl = None, as_json: AsJson = False) -> None:
    """Show the last cut, its lag behind the source, and the files and copies that wait."""

    def work(lake: Lake) -> None:
        import asyncio

        from headrace.cli.lake import listing

        asyncio.run(listing.status(lake, as_json=as_json))

    _on_lake(url, catalog, work)


@app.command("cuts")
def cuts(
    url: Url = None,
    catalog: CatalogUrl = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Show at most this many.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List the cuts that readers can go back to, newest first."""

    def work(lake: Lake) -> None:
        from headrace.cli.lake import listing

        listing.cuts(lake, limit, as_json=as_json)

    _on_lake(url, catalog, work)


@app.command("backfill")
def copy_again(  # typer turns them into options
    table: Annotated[str, typer.Argument(help="A published table, such as users or app.orders.")],
    url: Url = None,
    catalog: CatalogUrl = None,
    wait: Annotated[
        float | None, typer.Option("--wait", min=0, help="Seconds to wait. [until it is done]")
    ] = None,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Store the request, and don't wait.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Ask the lake-writer to copy a table again, and wait until a cut has the copy.

    The request is stored, and the lake-writer picks it up when it runs. Ctrl-C stops waiting, not
    the copy.
    """

    def work(lake: Lake) -> None:
        from headrace.cli.lake import copy_again as command

        command.copy_again(lake, table, wait, wait=not no_wait, as_json=as_json)

    _on_lake(url, catalog, work)


@app.command("compact")
def compact(url: Url = None, catalog: CatalogUrl = None, as_json: AsJson = False) -> None:
    """Join small files, and rewrite files without their deleted rows. The lake-writer does the
    same between cuts, in smaller steps.
    """

    def work(lake: Lake) -> None:
        from headrace.cli.lake import upkeep

        upkeep.compact_all(lake, as_json=as_json)

    _on_lake(url, catalog, work)


@app.command("expire")
def expire(
    url: Url = None,
    catalog: CatalogUrl = None,
    keep_cuts: Annotated[
        int | None,
        typer.Option("--keep-cuts", min=1, help="Cuts to keep. [HEADRACE_LAKE_KEEP_CUTS]"),
    ] = None,
    older_than: OlderThan = None,
    as_json: AsJson = False,
) -> None:
    """Drop snapshots that no kept cut shows; those of tags and branches are kept."""

    def work(lake: Lake) -> None:
        from headrace.cli.lake import upkeep

        upkeep.expire(lake, keep_cuts, _seconds(older_than), as_json=as_json)

    _on_lake(url, catalog, work)


@app.command("orphans")
def orphans(
    url: Url = None,
    catalog: CatalogUrl = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove them.")] = False,
    older_than: OlderThan = None,
    as_json: AsJson = False,
) -> None:
    """Show files that no kept snapshot refers to, and folders of dropped tables; --remove removes
    them. A query that still reads an expired cut loses its files.
    """

    def work(lake: Lake) -> None:
        from headrace.cli.lake import upkeep

        upkeep.orphans(lake, _seconds(older_than), remove=remove, as_json=as_json)

    _on_lake(url, catalog, work)


@app.command("gc")
def gc(url: Url = None, catalog: CatalogUrl = None, as_json: AsJson = False) -> None:
    """Compact, expire, and remove files that nothing refers to."""

    def work(lake: Lake) -> None:
        from headrace.cli.lake import upkeep

        upkeep.gc(lake, as_json=as_json)

    _on_lake(url, catalog, work)


@app.command("verify")
def verify(
    tables: Annotated[
        list[str] | None, typer.Argument(help="Tables, such as users or app.orders. [all]")
    ] = None,
    url: Url = None,
    catalog: CatalogUrl = None,
    wait: Annotated[
        float, typer.Option("--wait", min=1, help="Seconds the lake may take to reach an LSN.")
    ] = 60,
    as_json: AsJson = False,
) -> None:
    """Compare the lake with its source, both at one LSN, while both change. Exits with 3 if they
    differ.
    """
    code = 0

    def work(lake: Lake) -> None:
        nonlocal code
        import asyncio

        from headrace.cli.lake import verify as command

        code = asyncio.run(command.verify(lake, tables or [], wait, as_json=as_json))

    _on_lake(url, catalog, work)
    raise typer.Exit(code)
