"""Finds the line of each key of a TOML file, for messages. Pure."""

from __future__ import annotations

import re
from collections import defaultdict

Path = tuple[str | int, ...]

_HEADER = re.compile(r"^\s*(\[\[?)\s*([^\]]+?)\s*\]")
_KEY = re.compile(r"^\s*([A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')\s*=")


def lines_of(text: str) -> dict[Path, int]:
    """The line of every table and key, such as `("sink", 0, "to")`."""
    found: dict[Path, int] = {}
    counts: defaultdict[Path, int] = defaultdict(int)
    table: Path = ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            table = _table(header[2], counts, is_array=header[1] == "[[")
            found.setdefault(table, number)
        elif key := _KEY.match(line):
            found.setdefault((*table, key[1].strip("\"'")), number)
    return found


def _table(name: str, counts: defaultdict[Path, int], *, is_array: bool) -> Path:
    path: Path = ()
    parts = [part.strip().strip("\"'") for part in name.split(".")]
    for index, part in enumerate(parts):
        path = (*path, part)
        if is_array and index == len(parts) - 1:
            counts[path] += 1
        # The tables below an array belong to its last element.
        if counts[path]:
            path = (*path, counts[path] - 1)
    return path


def line_of(lines: dict[Path, int], path: Path) -> int:
    """The line of a key, or of the closest table that contains it."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 1)
