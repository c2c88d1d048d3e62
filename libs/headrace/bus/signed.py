"""Commands on the bus and in the state bucket, signed if a token is set. Pure.

NATS permissions decide which clients may write to the suite's subjects. If the services'
environment sets a token (HEADRACE_SHUTDOWN_TOKEN), that is not enough: services accept only
commands that were signed with it recently, for this slot. Without a token, they accept any
well-formed command.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Any

import msgpack

# A recorded command can be repeated for this long; clocks of the machines may differ by as much.
SKEW_S_MAX = 60.0


def signature(token: str, *parts: object) -> str:
    """The signature of these parts; their boundaries are part of it."""
    text = bytes(msgpack.packb([str(part) for part in parts]))
    return hmac.new(token.encode(), text, "sha256").hexdigest()


def command(token: str | None, what: str, slot: str, now: float) -> bytes:
    """The payload of a command that takes effect immediately, such as a stop."""
    body: dict[str, object] = {"at": now}
    if token is not None:
        body["signature"] = signature(token, what, slot, now)
    return bytes(msgpack.packb(body))


def is_obeyed(token: str | None, what: str, slot: str, data: bytes, now: float) -> bool:
    """Whether a service with this token accepts the payload."""
    try:
        body = msgpack.unpackb(data)
        at = body["at"]
        given = body.get("signature", "")
    except (ValueError, KeyError, TypeError, AttributeError, msgpack.UnpackException):
        # A reply of the server that was sent here by mistake is not a command.
        return False
    if not isinstance(at, int | float) or abs(now - at) > SKEW_S_MAX:
        return False
    return token is None or hmac.compare_digest(str(given), signature(token, what, slot, at))


def signed(token: str | None, record: Mapping[str, Any]) -> dict[str, Any]:
    """A record to store, with its signature."""
    plain = dict(record)
    if token is None:
        return plain
    return {**plain, "signature": signature(token, *sorted(plain.items()))}


def is_signed(token: str | None, record: Mapping[str, Any]) -> bool:
    """Whether a record was signed with this token; without a token, any record passes."""
    if token is None:
        return True
    plain = {key: value for key, value in record.items() if key != "signature"}
    # In constant time: how long a comparison takes must not tell how much of a guess is right.
    return hmac.compare_digest(
        str(record.get("signature", "")), signature(token, *sorted(plain.items()))
    )
