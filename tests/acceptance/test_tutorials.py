"""Every tutorial works as it is written: its commands in its order, and the outputs that it shows."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.shell import Shell
from tests.support.tutorial import Saved, Step, Stop, shows, steps, typed

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
PAGES = {page.stem: page.read_text() for page in sorted((ROOT / "docs/tutorials").glob("*.md"))}
INSTALLED = re.compile(r"pip install 'headrace\[([\w,]+)\]'")


class Reader:
    """Somebody who follows a page in terminals."""

    def __init__(self, folder: Path, terminals: contextlib.AsyncExitStack) -> None:
        self._folder = folder
        self._terminals = terminals
        self._shells: dict[int, Shell] = {}
        foreign = ("PG", "NATS", "HEADRACE_", "POSTGRES_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        # The page's own environment comes first once it is activated.
        self._environment = {**kept, "HEADRACE_SPARK_START_TIMEOUT_S": "250"}

    async def does(self, step: Step | Stop | Saved) -> None:
        """Do one thing, and compare what the page shows."""
        if isinstance(step, Saved):
            (self._folder / step.name).write_text(step.text)
            return
        shell = await self._shell(step.terminal)
        if isinstance(step, Stop):
            await shell.stop()
            return
        *commands, last = typed(step.lines)
        said = "".join([await shell.run(command) for command in commands])
        if step.until is None:
            said += await shell.run(last)
        else:
            said += await shell.follow(last, step.until)
        if step.output is not None:
            assert shows(said, step.output), f"the page shows\n{step.output}\nbut it was\n{said}"

    async def _shell(self, terminal: int) -> Shell:
        if terminal not in self._shells:
            opened = Shell(self._folder, self._environment)
            self._shells[terminal] = await self._terminals.enter_async_context(opened)
            if terminal == 1:
                # It was activated when Headrace was installed.
                await self._shells[1].run(". .venv/bin/activate")
        return self._shells[terminal]


@pytest.mark.parametrize("page", PAGES)
async def test_a_tutorial_works_as_it_is_written(page: str, empty_folder: Path) -> None:
    (empty_folder / ".venv").symlink_to(sys.prefix)
    async with contextlib.AsyncExitStack() as terminals:
        reader = Reader(empty_folder, terminals)
        for step in steps(PAGES[page]):
            await reader.does(step)


def test_every_tutorial_installs_extras_that_exist() -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for page, text in PAGES.items():
        extras = INSTALLED.findall(text)[0]
        assert {*extras.split(",")} <= {*known}, page
    assert len(PAGES) >= 5


def test_an_output_with_another_value_is_not_the_expected_one() -> None:
    assert shows("a  1 at 10:11:12.5\n", "a 1 at 09:00:00\n")
    assert not shows("a 2\n", "a 1\n")
    assert not shows("a 1\nb\n", "a 1\n")
    assert shows("a\nb\nc\n", "a\n…\nc\n")
