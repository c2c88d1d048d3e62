"""Commands on the bus and in the state bucket, signed where a token is set. Pure.

Who may write on the suite's NATS subjects is NATS's to say. With a token (HEADRACE_SHUTDOWN_TOKEN)
in the environment of the services, that is not enough: they obey only what was signed with it, for
this slot, and lately. Without one, whatever is a command of now.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Any

import msgpack

SKEW_S_MAX = 60.0


def signature(token: str, *parts: object) -> str:
    """Of these parts, whatever they hold: each is told from the next."""
    text = bytes(msgpack.packb([str(part) for part in parts]))
    return hmac.new(token.encode(), text, "sha256").hexdigest()


def command(token: str | None, what: str, slot: str, now: float) -> bytes:
    """The payload of a command that takes effect at once, such as a stop."""
    body: dict[str, object] = {"at": now}
    if token is not None:
        body["signature"] = signature(token, what, slot, now)
    return bytes(msgpack.packb(body))


def is_obeyed(token: str | None, what: str, slot: str, data: bytes, now: float) -> bool:
    """Whether a service with this token does what the payload says."""
    try:
        body = msgpack.unpackb(data)
        at = body["at"]
        given = body.get("signature", "")
    except (ValueError, KeyError, TypeError, AttributeError, msgpack.UnpackException):
        # An answer of the server that somebody sent astray is no command.
        return False
    if not isinstance(at, int | float) or abs(now - at) > SKEW_S_MAX:
        return False
    return token is None or hmac.compare_digest(str(given), signature(token, what, slot, at))


def signed(token: str | None, record: Mapping[str, Any]) -> dict[str, Any]:
    """A record that is kept, with its signature."""
    plain = dict(record)
    if token is None:
        return plain
    return {**plain, "signature": signature(token, *sorted(plain.items()))}


def is_signed(token: str | None, record: Mapping[str, Any]) -> bool:
    """Whether a record was signed with this token; any is, without one."""
    if token is None:
        return True
    plain = {key: value for key, value in record.items() if key != "signature"}
    return hmac.compare_digest(
        str(record.get("signature", "")), signature(token, *sorted(plain.items()))
    )
