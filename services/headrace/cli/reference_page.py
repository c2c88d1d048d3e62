"""Generates docs/cli.md, the reference page of the command line, from the commands.

Owns the page's form and none of its facts. Run as `python -m headrace.cli.reference_page PATH` it
writes the page; a test keeps the page up to date. No command imports it.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import typer.main
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from headrace.cli import service
from headrace.cli.main import app
from headrace.cli.usage import placeholder
from headrace.suite.services import SERVICES

_HEAD = """\
# Command line

`headrace COMMAND --help` shows the same. Options override the environment; [Settings](settings.md)
lists everything that has no option. A command that fails prints one line with the remedy on stderr
and exits with 1; incorrect usage exits with 2.

This page is generated from the commands; don't edit it.
"""
_SERVICES = """\
## Services

One process each. All accept the same options, so that one manifest line fits every service.

| command | what it does |
|---|---|
"""


def page() -> str:
    """The whole page."""
    group = typer.main.get_group(app)
    parts = [_HEAD, *_services()]
    for name, command in group.commands.items():
        if name not in SERVICES:
            parts.extend(_command(command, f"headrace {name}"))
    return "\n".join(parts)


def _services() -> Iterator[str]:
    rows = "".join(
        f"| `headrace {name}` | {_cell(facts.purpose)} |\n" for name, facts in SERVICES.items()
    )
    yield _SERVICES + rows
    # argparse has no public way to list its options.
    actions = service.parser("publisher")._actions  # noqa: SLF001
    options = (action for action in actions if action.dest != "help")
    yield _table((_flag(action), action.help or "") for action in options)


def _flag(action: argparse.Action) -> str:
    value = f" {action.metavar}" if isinstance(action.metavar, str) else ""
    return f"{', '.join(action.option_strings)}{value}"


def _command(command: object, name: str, level: int = 2) -> Iterator[str]:
    """One command's section; for a group, also those of its commands."""
    assert isinstance(command, TyperCommand | TyperGroup)
    yield f"{'#' * level} {name}\n"
    yield inspect.cleandoc(command.help or "") + "\n"
    if isinstance(command, TyperGroup):
        for part, inner in command.commands.items():
            yield from _command(inner, f"{name} {part}", level + 1)
        return
    if rows := [
        _parameter(one) for one in command.params if isinstance(one, TyperArgument | TyperOption)
    ]:
        yield _table(rows)


def _parameter(parameter: TyperArgument | TyperOption) -> tuple[str, str]:
    explain = parameter.help or ""
    if isinstance(parameter, TyperArgument):
        return str(parameter.name).upper(), explain
    return f"{', '.join(parameter.opts)} {placeholder(parameter)}".rstrip(), explain


def _table(rows: Iterable[tuple[str, str]]) -> str:
    body = "".join(f"| `{_cell(flag)}` | {_cell(explain)} |\n" for flag, explain in rows)
    return f"| option | what it does |\n|---|---|\n{body}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
