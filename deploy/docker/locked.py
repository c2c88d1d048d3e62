"""Prints the part of requirements.lock that an image or `.venv` needs: the packages of the core and
of the chosen extras and dependency groups, with their hashes.

The lock's own comments name the dependents of each package, so this needs no package index. The
output is a part of the lock, line for line. Used by the Dockerfile's build stage and by `./taskw`
(so it uses only the standard library), by `./taskw sbom` and by `./taskw audit`. Run as `python
locked.py [EXTRA | GROUP]...`; the group `dev` needs the whole lock.
"""

from __future__ import annotations

import re
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# The group that includes all others, and whose tests need all extras.
EVERYTHING = "dev"
_NAME = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)")
_WANTED_BY = re.compile(r"^    #(?: via)?\s+([A-Za-z0-9][A-Za-z0-9._-]*)")


@dataclass(frozen=True, slots=True)
class Package:
    """An entry of the lock: its lines, and the packages that depend on it."""

    name: str
    version: str
    lines: tuple[str, ...]
    wanted_by: frozenset[str]

    @property
    def hashes(self) -> tuple[str, ...]:
        """The SHA-256 of each of its files."""
        return tuple(re.findall(r"--hash=sha256:([0-9a-f]{64})", "\n".join(self.lines)))


def canonical(name: str) -> str:
    """A package's name as every tool compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def packages(lock: str) -> list[Package]:
    """Every entry; one that differs by platform or Python is there several times."""
    blocks: list[list[str]] = []
    for line in lock.splitlines():
        if _NAME.match(line):
            blocks.append([line])
        elif blocks:
            blocks[-1].append(line)
    return [_package(block) for block in blocks]


def _package(block: list[str]) -> Package:
    name, _, rest = block[0].partition("==")
    wanted_by = {canonical(match[1]) for line in block if (match := _WANTED_BY.match(line))}
    return Package(
        canonical(name),
        re.split(r"[ ;\\]", rest, maxsplit=1)[0],
        tuple(block),
        frozenset(wanted_by),
    )


def needed(lock: str, project: str, extras: list[str]) -> list[Package]:
    """The entries that the core and these extras or groups need, in the lock's order."""
    there = packages(lock)
    if EVERYTHING in extras:
        return there
    document = tomllib.loads(project)
    declared = document["project"]
    parts = declared["optional-dependencies"] | document.get("dependency-groups", {})
    wishes = [*declared["dependencies"], *(wish for part in extras for wish in parts[part])]
    names = {canonical(match[1]) for wish in wishes if (match := _NAME.match(wish))}
    while more := {p.name for p in there if p.wanted_by & names} - names:
        names |= more
    return [package for package in there if package.name in names]


def main() -> None:
    lock, project = (ROOT / "requirements.lock").read_text(), (ROOT / "pyproject.toml").read_text()
    for package in needed(lock, project, sys.argv[1:]):
        sys.stdout.write("\n".join(package.lines) + "\n")


if __name__ == "__main__":
    main()
