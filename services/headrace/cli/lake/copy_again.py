"""`headrace lake backfill`: asks the lake-writer to copy a table again, and waits until a cut has
the copy. The request is stored, so the lake-writer may also start later.
"""

from __future__ import annotations

import sys
import time

from headrace.cli.lake.listing import show
from headrace.cli.lake.selection import Lake
from headrace.cli.terminal import Console
from headrace.contract.table_patterns import table_of
from headrace.lake import requests
from headrace.lake.catalog import TableName
from headrace.lake.errors import LakeError
from headrace.lake.requests import CopyRequest, RequestState

LOOK_S = 0.5


class CopyRefusedError(LakeError):
    """The lake-writer could not copy the table."""

    remedy = "Add the table to the publication, or see the lake-writer's log (table_parked)."


class CopyWaitsError(LakeError):
    """The copy was not made in time; the request stays."""

    remedy = "Start the lake-writer (`headrace lake-writer`); it takes the request when it runs."


def copy_again(lake: Lake, table: str, wait_s: float | None, *, wait: bool, as_json: bool) -> None:
    """Ask for a copy, and wait for it."""
    name = TableName(*table_of(table))
    # A lake of an older version may lack the table of requests.
    lake.catalog.prepare()
    request = requests.ask(lake.catalog, lake.slot, name)
    if wait:
        request = _awaited(lake, request, wait_s)
    if as_json:
        show(
            {
                "table": str(name),
                "state": request.state,
                "rows": request.rows,
                "cut": request.cut or None,
            }
        )
    elif request.state is RequestState.DONE:
        _say(f"{name} was copied: {request.rows:,} rows, in cut {request.cut}")
    else:
        _say(f"{name} will be copied by the lake-writer")


def _awaited(lake: Lake, asked: CopyRequest, wait_s: float | None) -> CopyRequest:
    """The request when it is done; raises if it is refused, or late."""
    deadline = None if wait_s is None else time.monotonic() + wait_s
    reported = ""
    while True:
        known = requests.requests(lake.catalog, lake.slot).get(asked.table)
        # Somebody else's later request: its copy is one for us as well.
        request = asked if known is None else known
        if request.state is RequestState.DONE:
            return request
        if request.state is RequestState.REFUSED:
            raise CopyRefusedError(f"{asked.table} was not copied: {request.reason}")
        line = f"{asked.table}: {request.state}"
        if request.rows:
            line += f", {request.rows:,} rows"
        if line != reported and sys.stderr.isatty():
            Console(stderr=True, soft_wrap=True).print(line, style="dim")
            reported = line
        if deadline is not None and time.monotonic() > deadline:
            raise CopyWaitsError(f"{asked.table} is {request.state} after {wait_s:g} s")
        time.sleep(LOOK_S)


def _say(text: str) -> None:
    Console(soft_wrap=True).print(text)
