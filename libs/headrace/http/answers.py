"""The JSON answers of the HTTP ports."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web


def refusal(
    status: int, error: str, remedy: str, headers: Mapping[str, str] | None = None
) -> web.Response:
    """A response that states what was wrong with a request, and what to do about it."""
    return web.json_response({"error": error, "remedy": remedy}, status=status, headers=headers)
