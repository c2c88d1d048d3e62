"""`headrace doctor`: checks everything the suite needs, and shows a remedy for each problem.

Changes nothing. Exit code 1 if a check failed; a warning doesn't count.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict

import orjson
import typer
from rich.table import Table
from rich.text import Text

from headrace.cli.doctor import archive, backup, installation, lake, nats, postgres, sinks, sql
from headrace.cli.doctor.checks import Check, CheckState, Findings
from headrace.cli.terminal import Console
from headrace.settings import Settings

_MARKS = {
    CheckState.OK: ("✓", "green"),
    CheckState.WARN: ("!", "yellow"),
    CheckState.FAIL: ("✗", "red"),
}


async def run(settings: Settings, *, as_json: bool) -> None:
    """Run all checks, show them, and exit with the resulting code."""
    groups = await asyncio.gather(
        postgres.examine(settings), nats.examine(settings), _stores(settings)
    )
    findings = [installation.examine(), groups[0], groups[1], *groups[2]]
    checks = [check for group in findings for check in group.checks]
    failed = sum(check.state is CheckState.FAIL for check in checks)
    if as_json:
        body = {"ok": not failed, "checks": [asdict(check) for check in checks]}
        typer.echo(orjson.dumps(body, option=orjson.OPT_INDENT_2).decode())
    else:
        _show(checks, failed)
    if failed:
        raise typer.Exit(1)


async def _stores(settings: Settings) -> list[Findings]:
    """The groups that import extras, one after another: their threads would import parts of the
    same packages at the same time, and one of them would find a module half imported.
    """
    return [
        await archive.examine(settings),
        await lake.examine(settings),
        await sql.examine(settings),
        await sinks.examine(settings),
        await backup.examine(settings),
    ]


def _show(checks: list[Check], failed: int) -> None:
    console = Console()
    table = Table(box=None, show_header=False, padding=(0, 1), pad_edge=False)
    table.add_column(width=1)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    group = ""
    for check in checks:
        if check.group != group:
            table.add_row("", Text(check.group, style="bold"), "")
            group = check.group
        table.add_row(*_row(check))
    console.print(table)
    warned = sum(check.state is CheckState.WARN for check in checks)
    console.print(Text(_verdict(len(checks), failed, warned), style="red" if failed else "green"))


def _row(check: Check) -> tuple[Text, Text, Text]:
    mark, style = _MARKS[check.state]
    found = Text(check.found, style="" if check.state is CheckState.OK else style)
    if check.state is not CheckState.OK:
        found.append(f"\n→ {check.remedy}", style="default")
    return Text(mark, style=style), Text(check.name), found


def _verdict(made: int, failed: int, warned: int) -> str:
    if warned:
        warnings = f", {warned} warning{'' if warned == 1 else 's'}"
    else:
        warnings = ""
    if failed:
        return f"{failed} of {made} checks failed{warnings}."
    if warned:
        return f"{made - warned} checks passed{warnings}."
    return f"All {made} checks passed."
