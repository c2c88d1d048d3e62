"""The commands whose findings the console shows."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from headrace.console.command import output_of

TOGETHER_MAX = 4


def running() -> int:
    """How many commands of this process run now."""
    found = 0
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    for child in children:
        try:
            found += b"headrace.cli" in Path(f"/proc/{child}/cmdline").read_bytes()
        except OSError:
            # It has ended meanwhile.
            continue
    return found


async def test_only_a_few_commands_run_together() -> None:
    tasks = [asyncio.create_task(output_of("--version")) for _ in range(2 * TOGETHER_MAX)]
    most = 0
    while not all(task.done() for task in tasks):
        most = max(most, running())
        await asyncio.wait(tasks, timeout=0.01)
    answers = [task.result() for task in tasks]
    assert all(code == 0 and out for code, out, _ in answers)
    assert most == TOGETHER_MAX
