"""`headrace up` with sinks: each on its own, one that fails delays nobody, commands instruct them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.testing.up import Up
from tests.support.sinks import events_of

# It starts and stops a whole suite.
pytestmark = pytest.mark.slow
PATIENCE_S = 60.0
EXAMPLES = Path(__file__).parents[2] / "examples/python"
OWN_SINK_LINES_MAX = 30

CONFIG = """\
[[sink]]
name = "files"
to = "{files}"
batch = {{wait_ms = 50}}

[[sink]]
name = "own"
to = "python:own_sink:SqliteSink"
tables = ["headrace_demo"]
options = {{file = "{database}"}}

[[sink]]
name = "away"
to = "python:away_sink:AwaySink"

[[sink]]
name = "picky"
to = "{picky}"
batch = {{wait_ms = 50}}
tables = ["headrace_demo"]
on_error = "park"
function = "picky:no_bargains"
"""
AWAY = """\
class AwaySink:
    promise = "exactly once"

    def __init__(self, options): ...

    async def open(self):
        raise OSError("nobody answers")

    async def close(self): ...
"""
PICKY = """\
import os


def no_bargains(event):
    if event.data.get("name") == "bargain" and not os.path.exists("{allowed}"):
        raise ValueError("too cheap")
    return event
"""


async def said(folder: Path, command: str, *, fails: bool = False) -> str:
    """The output of a command in another terminal."""
    shell = await asyncio.create_subprocess_shell(
        f". .headrace/env && {command}",
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await shell.communicate()
    assert (shell.returncode != 0) == fails, output.decode()
    return output.decode()


async def until(fulfilled: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not fulfilled():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.1)


def names(folder: Path) -> list[str]:
    """The names of inserted rows, in order."""
    rows = [event for event in events_of(folder) if event["operation"] == "INSERT"]
    return [row["data"]["name"] for row in rows if row["table"] == "headrace_demo"]


def own_rows(database: Path) -> list[dict[str, Any]]:
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as db:
        return [json.loads(text) for (text,) in db.execute("SELECT event FROM events")]


def test_a_sink_of_ones_own_is_short() -> None:
    text = (EXAMPLES / "own_sink.py").read_text()
    body = text[text.index("class SqliteSink") :]
    assert len([line for line in body.splitlines() if line.strip()]) <= OWN_SINK_LINES_MAX
    page = (EXAMPLES.parents[1] / "docs/sinks.md").read_text()
    assert body in page, "the page shows it"


async def test_up_starts_the_sinks_of_the_file_and_commands_instruct_them(
    empty_folder: Path, tmp_path: Path
) -> None:
    files = tmp_path / "files"
    picky = tmp_path / "picky"
    database = tmp_path / "events.db"
    code = tmp_path / "code"
    for folder in (files, picky, code):
        folder.mkdir()
    (code / "away_sink.py").write_text(AWAY)
    (code / "picky.py").write_text(PICKY.format(allowed=tmp_path / "allowed"))
    (empty_folder / "headrace.toml").write_text(
        CONFIG.format(files=files.as_uri(), picky=picky.as_uri(), database=database)
    )
    path = os.pathsep.join([str(code), str(EXAMPLES)])
    async with Up(empty_folder, PYTHONPATH=path) as up:
        await up.says("Up after")
        await until(lambda: names(files) == ["lamp", "chair"] or len(names(files)) >= 2, "files")
        before = len(names(files))

        async def insert(name: str) -> None:
            sql = f"INSERT INTO headrace_demo (name, price) VALUES ('{name}', 1)"
            await said(empty_folder, f'psql -qc "{sql}"')

        run = f"export PYTHONPATH={path}; headrace"
        listed = json.loads(await said(empty_folder, f"{run} sinks ls --json"))
        assert [one["sink"] for one in listed] == ["files", "own", "away", "picky"]
        assert {one["promise"] for one in listed} == {"exactly once"}
        planned = json.loads(await said(empty_folder, f"{run} sinks plan --json"))
        assert planned[1]["tables"] == ["public.headrace_demo"]

        await said(empty_folder, f"{run} sinks pause files --json")
        log = empty_folder / ".headrace/logs/sink-files.log"
        await until(lambda: "part=paused" in log.read_text(), "paused")
        await insert("bargain")
        await insert("sofa")
        await until(lambda: "sofa" in names(picky), "picky")
        assert len(names(files)) == before, "it is paused"
        await said(empty_folder, f"{run} sinks resume files")
        await until(lambda: names(files)[before:] == ["bargain", "sofa"], "resumed")

        assert "bargain" not in names(picky)
        (letter,) = json.loads(await said(empty_folder, f"{run} dead-letters ls --json"))
        assert (letter["sink"], letter["reason"]) == ("picky", "ValueError")
        shown = await said(empty_folder, f"{run} dead-letters show picky {letter['id']} --json")
        assert json.loads(shown)["event"]["data"]["name"] == "bargain"
        (tmp_path / "allowed").touch()
        await said(empty_folder, f"{run} dead-letters replay picky")
        await until(lambda: names(picky)[-2:] == ["sofa", "bargain"], "replayed")
        await insert("table")
        await until(lambda: names(picky)[-1:] == ["table"], "the next one")
        assert names(picky).count("bargain") == 1
        assert json.loads(await said(empty_folder, f"{run} dead-letters ls --json")) == []

        tried = json.loads(await said(empty_folder, f"{run} sinks test own --last 3 --json"))
        assert {one["destination"] for one in tried} == {"public.headrace_demo"}
        status = await said(empty_folder, "headrace status")
        assert "sink-files" in status
        assert "nobody answers" in status
        await said(empty_folder, f"{run} sinks pause nothing", fails=True)
    rows = own_rows(database)
    assert [row["data"]["name"] for row in rows if row["operation"] == "INSERT"][-3:] == [
        "bargain",
        "sofa",
        "table",
    ]
