"""The options of `headrace archive …` and `headrace replay`."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from headrace.cli.archive import base_commands
from headrace.cli.archive.options import Url, finish

app = typer.Typer(
    name="archive",
    help="The log as files in object storage: list, print, verify, collect garbage.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(base_commands.app)

Limit = Annotated[int | None, typer.Option("--limit", min=1, help="Show at most this many.")]
From = Annotated[
    str | None,
    typer.Option(
        "--from", help="Start at a file's id, an LSN (0/191BFD0) or a time. [the first file]"
    ),
]


@app.command("ls")
def ls(
    url: Url = None,
    limit: Limit = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """List the files: ids, rows, positions, times, tables, gaps."""
    finish(lambda read, where: read.ls(where, as_json=as_json, limit=limit), url)


@app.command("cat")
def cat(
    tables: Annotated[
        list[str] | None, typer.Argument(help="Tables, such as public.users. [all]")
    ] = None,
    url: Url = None,
    begin: From = None,
    limit: Limit = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for more changes at the end.")
    ] = False,
) -> None:
    """Print changes, one JSON document per line."""
    finish(
        lambda read, where: read.cat(where, begin, tables or [], limit=limit, follow=follow),
        url,
    )


@app.command("verify")
def verify(url: Url = None) -> None:
    """Verify checksums, order and consecutive ids of all files; report the gaps that the archive
    records.
    """
    finish(lambda read, where: read.verify(where), url)


@app.command("gc")
def gc(
    older_than: Annotated[
        str, typer.Option("--older-than", help="Remove files older than this: 90, 30m, 12h, 7d.")
    ],
    url: Url = None,
    past_readers: Annotated[
        bool,
        typer.Option(
            "--past-readers", help="Remove files that registered readers have not read, too."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be removed.")
    ] = False,
) -> None:
    """Remove old files and bases. The last file, files that a remaining base needs and, by default,
    files that a registered reader still needs are kept.
    """
    finish(
        lambda read, where: read.gc(where, older_than, past_readers=past_readers, dry_run=dry_run),
        url,
    )


@app.command("readers")
def readers(url: Url = None) -> None:
    """Show the registered readers and their positions."""
    finish(lambda read, where: read.readers(where), url)


def replay(  # noqa: PLR0917  # typer turns them into options
    into: Annotated[
        str, typer.Option("--into", help="Target: jetstream, sqlite:///file.db or postgresql://…")
    ],
    begin: From = None,
    end: Annotated[
        str | None,
        typer.Option(
            "--to", "--until", help="Stop before a file's id, an LSN or a time. [the end]"
        ),
    ] = None,
    tables: Annotated[
        list[str] | None,
        typer.Option("--table", help="Only this table, such as public.users; may be repeated."),
    ] = None,
    url: Url = None,
    stream: Annotated[
        str, typer.Option("--stream", help="With jetstream: the stream; created if missing.")
    ] = "REPLAY",
    prefix: Annotated[
        str, typer.Option("--prefix", help="With jetstream: prefix of subjects.")
    ] = "replay",
    past_gaps: Annotated[
        bool, typer.Option("--past-gaps", help="Continue at gaps that the archive records.")
    ] = False,
) -> None:
    """Replay a range of the archive with the original positions. Run it again to resume."""
    import asyncio

    def work(_: Any, where: str) -> None:
        from headrace.cli.archive import replay as command
        from headrace.cli.archive.replay_range import ReplayRange, ReplayRun
        from headrace.settings import load

        run = ReplayRun(ReplayRange(where, begin, end, tuple(tables or ()), past_gaps))
        try:
            if into == "jetstream":
                asyncio.run(command.into_jetstream(load(os.environ), run, stream, prefix))
            else:
                asyncio.run(command.into_database(run, into))
        finally:
            # After an error too: it shows how far the replay came.
            typer.echo(run.summary())

    finish(work, url)
