"""A command ends quietly, also if Ctrl-C comes when it has already done its work."""

from __future__ import annotations

import signal
import subprocess
import sys

# The interrupt hits while the event loop closes: it ends what a command left open.
CLOSING = """
import os, signal
from headrace.cli.outcome import finish

async def endless():
    try:
        yield
    finally:
        os.kill(os.getpid(), signal.SIGINT)

left_open = endless()

async def work():
    await anext(left_open)
    print("done", flush=True)

finish(work)
"""


def test_ctrl_c_after_the_work_prints_no_traceback() -> None:
    ended = subprocess.run(
        (sys.executable, "-c", CLOSING), capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.stdout, ended.stderr) == ("done\n", "")
    assert ended.returncode == -signal.SIGINT
