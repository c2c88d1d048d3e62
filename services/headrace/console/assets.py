"""The built pages: files with hashed names, kept forever by browsers, and the document that loads
them.

An address of a page is resolved in the browser, so every path without a file is the document.
Without built pages, the answer is a text.
"""

from __future__ import annotations

import mimetypes
import re
from importlib import resources

from aiohttp import web

from headrace.console.problem import not_found

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,150}")
_STATIC = resources.files("headrace.console").joinpath("static")
_MISSING = (
    "The console's pages are not built. The API answers below /api/v1; "
    "telemetry's status page is on port 9090.\n"
)


async def document(_: web.Request) -> web.Response:
    """The document of every page."""
    page = _STATIC.joinpath("index.html")
    headers = {"Cache-Control": "no-cache"}
    if not page.is_file():
        return web.Response(text=_MISSING, status=503, headers=headers)
    return web.Response(
        body=page.read_bytes(), content_type="text/html", charset="utf-8", headers=headers
    )


async def asset(request: web.Request) -> web.Response:
    """A file that the document loads."""
    # Read for each request: the files are small, browsers keep them, and memory is worth more.
    name = request.match_info["name"]
    file = _STATIC.joinpath("assets", name)
    # Names without slashes: nothing outside the folder has such a path.
    if not _NAME.fullmatch(name) or not file.is_file():
        raise not_found("There is no such file.", "Reload the page.")
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    headers = {"Cache-Control": "public, max-age=31536000, immutable", "Content-Type": kind}
    return web.Response(body=file.read_bytes(), headers=headers)
