"""JSON answers, and the bodies of requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from aiohttp import web

from headrace.console.access import Caller
from headrace.console.guard import CALLER
from headrace.console.problem import invalid


def answer(body: Mapping[str, Any], status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")


def caller_of(request: web.Request) -> Caller:
    """The caller, whom the guard has authenticated."""
    caller: Caller = request[CALLER]
    return caller


async def body_of(request: web.Request, *allowed: str) -> dict[str, Any]:
    """The request's object, which has no other keys than these."""
    try:
        body = orjson.loads(await request.read() or b"{}")
    except orjson.JSONDecodeError as error:
        raise invalid(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise invalid("the body is not an object")
    # Sorted, for an error that is the same each time.
    unknown = sorted(set(body) - set(allowed))
    # A misspelled dry_run must not act.
    if unknown:
        raise invalid(f"unknown keys: {', '.join(unknown)}", f"Use {', '.join(allowed)}.")
    return body
