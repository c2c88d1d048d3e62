"""A service ends in time, even if a task or a thread hangs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headrace.process.lifecycle import EXIT_LATE

# A task that ignores its cancellation, or a thread that nothing ends, and a main that has returned
# or failed.
HANGING = """
import asyncio, contextlib, sys, threading
from headrace.process.lifecycle import run
from headrace.settings import load

async def hang():
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

async def main(scope):
    if "thread" in sys.argv:
        asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)
    else:
        scope.spawn("hanging", hang())
    await asyncio.sleep(0)
    if "fail" in sys.argv:
        raise RuntimeError("main failed")

settings = load({"HEADRACE_SHUTDOWN_TIMEOUT_S": "1"})
sys.exit(run("telemetry", settings.process, main))
"""


@pytest.mark.parametrize("ends", ["return", "fail"])
@pytest.mark.parametrize(("what", "named"), [("task", "tasks"), ("thread", "threads")])
def test_what_hangs_after_main_has_ended_is_ended_at_the_deadline(
    ends: str, what: str, named: str
) -> None:
    ended = subprocess.run(
        (sys.executable, "-c", HANGING, ends, what),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == EXIT_LATE, ended.stderr
    assert "shutdown_deadline" in ended.stderr
    assert f"{named} to end" in ended.stderr
