"""Every endpoint of the API, with the least role that may use it.

The table is the API: routes, roles and the description in openapi.yaml are compared by tests.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import resources

from aiohttp import web

from headrace.console.access import Role
from headrace.console.guard import API
from headrace.console.problem import not_found

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
# The stream of a tab has no end in time.
ENDLESS = f"{API}v1/live"


@dataclass(frozen=True, slots=True)
class ApiEndpoint:
    """`role` is None for what works without signing in."""

    method: str
    path: str
    role: Role | None
    handler: Handler

    @property
    def place(self) -> tuple[str, str]:
        return self.method, f"{API}v1{self.path}"


async def description(_: web.Request) -> web.Response:
    """The description of the API."""
    text = resources.files("headrace.console").joinpath("openapi.yaml").read_bytes()
    return web.Response(body=text, content_type="application/yaml")


async def nothing(_: web.Request) -> web.Response:
    raise not_found("There is nothing here.", "See /api/v1/openapi.yaml.")


def add_all(app: web.Application, endpoints: list[ApiEndpoint]) -> None:
    """Add the routes; a path of the API without one is a problem, not a page."""
    for endpoint in endpoints:
        app.router.add_route(*endpoint.place, endpoint.handler)
    # Last, so that a misspelled path is not answered with the document of the pages.
    app.router.add_route("*", API + "{rest:.*}", nothing)
