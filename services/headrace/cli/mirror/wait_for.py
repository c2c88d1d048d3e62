"""`headrace wait-for`: returns once readers of a copy see everything before an LSN."""

from __future__ import annotations

import typer

from headrace.lsn import format_lsn, parse_lsn
from headrace.mirror import opened, wait_for


async def run(lsn: str, to: str, *, timeout_s: float, source: str) -> None:
    """Wait, and print the LSN before which readers see everything."""
    wanted = parse_lsn(lsn)
    async with opened(to) as target:
        typer.echo(format_lsn(await wait_for(target, wanted, timeout_s, source)))
