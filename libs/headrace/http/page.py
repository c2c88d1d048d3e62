"""A page that is one file, with its own style and script.

Its Content-Security-Policy lets the browser run only the script and the style that are in it, by
their hashes, and send requests only to the port that served it.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib import resources

from aiohttp import web

_INLINE = re.compile(rb"<(script|style)>(.*?)</\1>", re.DOTALL)
HEADERS = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}


@cache
def _document(package: str) -> tuple[bytes, str]:
    """A package's page.html, and its policy."""
    text = resources.files(package).joinpath("page.html").read_bytes()
    hashes: dict[str, list[str]] = {"script": [], "style": []}
    for kind, body in _INLINE.findall(text):
        digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
        hashes[kind.decode()].append(f"'sha256-{digest}'")
    policy = (
        f"default-src 'none'; script-src {' '.join(hashes['script'])}; "
        f"style-src {' '.join(hashes['style'])}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return text, policy


def page(package: str, *, cached: str) -> web.Response:
    """The page of a package, with the `Cache-Control` that is given."""
    text, policy = _document(package)
    headers = {**HEADERS, "Content-Security-Policy": policy, "Cache-Control": cached}
    return web.Response(body=text, content_type="text/html", charset="utf-8", headers=headers)
