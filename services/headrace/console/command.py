"""Commands of `headrace` whose findings the console shows, run as a process.

The commands own these checks. A process keeps their packages and their failures out of the service.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

from headrace.console.problem import ProblemError, unavailable

# Less than a request may take.
TIMEOUT_S = 13.0
OUTPUT_MAX = 4 << 20
# Each is a Python process of a hundred megabytes.
_TURNS = asyncio.Semaphore(4)


async def output_of(*arguments: str) -> tuple[int, str, str]:
    """The exit code, the output and the errors of a command; a few run at a time."""
    try:
        async with asyncio.timeout(TIMEOUT_S), _TURNS:
            return await _run(*arguments)
    except TimeoutError as error:
        raise unavailable(f"headrace {arguments[0]} took too long.") from error


async def _run(*arguments: str) -> tuple[int, str, str]:
    # A list of arguments, without a shell: nothing in them is interpreted.
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        "headrace.cli",
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await process.communicate()
    finally:
        # Also when the request was given up: nothing may outlive it.
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if len(out) > OUTPUT_MAX:
        raise ProblemError(
            413, "too_large", "The result is too large for a page.", "Use the command line."
        )
    return process.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace")
