"""`--help` says all that was written for it."""

from __future__ import annotations

import re

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from headrace.cli.main import app

COMMANDS = ("up", "init", "snapshot", "tail", "mirror", "load", "teardown")


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_every_word_of_an_option_brackets_included(name: str) -> None:
    """Markup swallows what looks like a tag: `[all]` did."""
    shown = (
        CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "160", "NO_COLOR": "1"}).output
    )
    words = " ".join(re.sub(r"[│╭╮╰╯─]", " ", shown).split())
    command = get_command(app).commands[name]  # type: ignore[attr-defined]  # the app is a group
    for parameter in command.params:
        for hint in re.findall(r"\[[^\]\"]+\]", getattr(parameter, "help", None) or ""):
            assert hint in words, (parameter.name, hint)


def test_a_newcomer_finds_up_first() -> None:
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "120"}).output
    assert shown.index(" up ") < shown.index(" tail ") < shown.index(" wal-reader ")
