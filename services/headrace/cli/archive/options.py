"""The options that the commands of an archive have in common, and how they end."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Annotated, Any

import typer

from headrace.cli.outcome import fail
from headrace.errors import HeadraceError

Url = Annotated[
    str | None, typer.Option("--url", help="The archive: file:///…, s3://… [HEADRACE_ARCHIVE_URL]")
]


def finish(work: Callable[[Any, str], None], url: str | None) -> None:
    """Run a function of `archive.read` on the selected archive; an expected error is one line."""
    try:
        from headrace.cli.archive import read
        from headrace.settings import load

        work(read, read.chosen_url(url, load(os.environ).archive.url))
    except HeadraceError as error:
        fail(error)
