"""The status page of `GET /`: one document, with its own style and script, and nothing from
anywhere else.

Its policy lets the browser run only the script that is in it and ask only this port. It acts on
nothing.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from pathlib import Path

from aiohttp import web

_FILE = Path(__file__).with_name("page.html")
_INLINE = re.compile(rb"<(script|style)>(.*?)</\1>", re.DOTALL)


@cache
def _document() -> tuple[bytes, str]:
    """The page, and the policy that names its script and style by their hashes."""
    text = _FILE.read_bytes()
    hashes: dict[str, list[str]] = {"script": [], "style": []}
    for kind, body in _INLINE.findall(text):
        digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
        hashes[kind.decode()].append(f"'sha256-{digest}'")
    policy = (
        f"default-src 'none'; script-src {' '.join(hashes['script'])}; style-src "
        f"{' '.join(hashes['style'])}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors "
        "'none'"
    )
    return text, policy


async def page(_: web.Request) -> web.Response:
    text, policy = _document()
    headers = {
        "Content-Security-Policy": policy,
        "Cache-Control": "no-cache",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
    }
    return web.Response(body=text, content_type="text/html", charset="utf-8", headers=headers)
