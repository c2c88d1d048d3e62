"""The metrics of a process under test, from the port in its log."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable

import aiohttp

_PORT = re.compile(r"http_listening.*?port\W+(\d+)")
_SERIES = re.compile(r"^(headrace_\w+)(?:\{[^}]*\})? (\S+)$", re.MULTILINE)


async def figures(log: str) -> dict[str, float]:
    """All figures by name; for a figure with labels, the sum of its series."""
    port = _PORT.findall(log)[-1]
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"http://127.0.0.1:{port}/metrics") as answer,
    ):
        found = _SERIES.findall(await answer.text())
    sums: dict[str, float] = {}
    for name, value in found:
        sums[name] = sums.get(name, 0.0) + float(value)
    return sums


async def figures_when(
    log: str, condition: Callable[[dict[str, float]], bool], timeout_s: float = 60.0
) -> dict[str, float]:
    """Wait until the figures fulfil a condition, and return them."""
    found: dict[str, float] = {}
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                found = await figures(log)
                # A figure that is not there yet is not so.
                with contextlib.suppress(KeyError):
                    if condition(found):
                        return found
                await asyncio.sleep(0.2)
    except TimeoutError:
        raise AssertionError(f"the figures stayed {found}") from None
