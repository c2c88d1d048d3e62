"""Authorization of HTTP requests: this machine, or clients with the bearer token. Pure."""

from __future__ import annotations

import hmac
import ipaddress


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a port that listens on this address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        # Other names are not resolved: the address may be another one when the port is opened.
        return host == "localhost"


def bears(authorization: str, token: str | None) -> bool:
    """Whether an `Authorization` header carries the token, compared in constant time."""
    scheme, _, given = authorization.partition(" ")
    if not token or scheme.lower() != "bearer":
        return False
    # As bytes: it refuses texts with characters beyond ASCII.
    return hmac.compare_digest(given.strip().encode(), token.encode())
