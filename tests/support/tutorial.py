"""A page that a reader follows in several terminals, and its commands and outputs. Pure.

Comments in the page say where a block runs:

    <!-- terminal 1, until "Up after" -->   the next block, whose last command keeps following
    <!-- terminal 2 -->                     all blocks from here on
    <!-- terminal 1, Ctrl-C -->             stop that command
    <!-- file totals.py -->                 the reader saves the next block

A block without a language is the output of the one before. Blocks before the first terminal install
what the page needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_PART = re.compile(
    r"^(?:<!-- (?P<comment>.*?) -->|```(?P<language>\w*)\n(?P<text>.*?)^```)$",
    re.MULTILINE | re.DOTALL,
)
_TERMINAL = re.compile(r'terminal (\d)(?:, (?:until "(.+)"|(Ctrl-C)))?')
# Values that differ from run to run, in the order in which they are replaced.
_VARYING = (
    (r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "UUID"),
    (r"\b\d{8}T\d{6}Z-[0-9a-f]{6}\b", "LABEL"),
    (r"\b\d{4}-\d\d-\d\dT[\d:]+Z", "MOMENT"),
    (r"\b\d{4}-\d\d-\d\d\b", "DATE"),
    (r"\b\d\d:\d\d:\d\d(\.\d+)?", "TIME"),
    (r"\b[0-9A-F]+/[0-9A-F]+\b", "LSN"),
    (r"\b\d+(\.\d+)? (MiB|KiB|s)\b", "SIZE"),
    (r"transaction(_id)? \d+", "transaction N"),
    (r"-{3,}", "---"),
    (r" +", " "),
    # A transaction's number, or the bytes of a table.
    (r"[\d,]+ (DATE|MOMENT)", r"N \1"),
    (r"file:///.*", "FOLDER"),
)
# In an output: any number of lines.
ANYTHING = "…"


@dataclass(frozen=True, slots=True)
class Step:
    """Lines of one terminal, the output that the page shows, and the output that ends waiting."""

    terminal: int
    lines: str
    output: str | None = None
    until: str | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """Ctrl-C in a terminal."""

    terminal: int


@dataclass(frozen=True, slots=True)
class Saved:
    """A file of the reader's."""

    name: str
    text: str


def steps(page: str) -> Iterator[Step | Stop | Saved]:
    """Each thing to do, in order."""
    terminal, until, name = 0, None, None
    waiting: Step | None = None
    for part in _PART.finditer(page):
        comment, language, text = part["comment"], part["language"], part["text"]
        if waiting is not None and text is not None and not language:
            yield Step(waiting.terminal, waiting.lines, text, waiting.until)
            waiting = None
            continue
        if waiting is not None:
            yield waiting
            waiting = None
        if comment is not None and comment.startswith("file "):
            name = comment.removeprefix("file ")
        elif comment is not None and (found := _TERMINAL.fullmatch(comment)):
            if found[3]:
                yield Stop(int(found[1]))
            else:
                terminal, until = int(found[1]), found[2]
        elif name is not None:
            yield Saved(name, text)
            name = None
        elif language == "sh" and terminal:
            waiting = Step(terminal, text, until=until)
            until = None
    if waiting is not None:
        yield waiting


def typed(lines: str) -> Iterator[str]:
    """Commands that a reader enters one after the other."""
    command = ""
    ends: str | None = None
    for line in lines.splitlines():
        command = f"{command}\n{line}" if command else line
        if ends is None and (found := re.search(r"<<'?(\w+)'?", line)):
            ends = found[1]
        elif line == ends:
            ends = None
        if ends is None and not line.endswith("\\") and command.count('"') % 2 == 0:
            yield command
            command = ""


def without_varying(output: str) -> list[str]:
    """Lines of an output, in which only those values are left that each run shows."""
    for pattern, name in _VARYING:
        output = re.sub(pattern, name, output)
    return [line.strip() for line in output.splitlines() if line.strip()]


def shows(output: str, expected: str) -> bool:
    """Whether an output is the expected one, except for values that vary."""
    lines = without_varying(output)
    pattern = "".join(
        "(?:.*\n)*" if line == ANYTHING else f"{re.escape(line)}\n"
        for line in without_varying(expected)
    )
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in lines)) is not None
