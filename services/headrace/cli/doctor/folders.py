"""Whether a service can write to a folder that may not exist yet."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.cli.doctor.checks import Findings


def judge_folder(findings: Findings, name: str, folder: Path, remedy: str) -> None:
    """Whether the folder can be written. A missing one is created by its service."""
    # A relative folder is one of this command's, which may run elsewhere than its service.
    folder = folder.absolute()
    blocked = blocking_part(folder)
    if blocked is None:
        findings.ok(name, f"{folder} is writable")
    else:
        findings.fail(name, f"{blocked} is not writable", remedy)


def blocking_part(folder: Path) -> Path | None:
    """The path that prevents writing to the folder, or creating it; None if nothing does."""
    # `exists` needs the right to look, so a folder that can't be entered counts as missing, and
    # its parent is judged.
    there = next(each for each in (folder, *folder.parents) if each.exists())
    if os.access(there, os.W_OK | os.X_OK) and there.is_dir():
        return None
    return there
