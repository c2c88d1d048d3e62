"""Control messages from a confirmer to the wal-reader. Small MessagePack maps; pure.

`Join` announces a confirmer, `Confirm` returns credit and the confirmed LSN, `Restart` requests a
new epoch. Each may be lost or repeated: all of them are cumulative or idempotent.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgpack

from headrace.errors import DecodeError


@dataclass(frozen=True, slots=True)
class Join:
    """Announces a confirmer in this session; `epoch` is the highest it knows.

    `suite` is the suite's identity, if the confirmer knows it.
    """

    confirmer: str
    session: str
    epoch: int
    suite: str = ""


@dataclass(frozen=True, slots=True)
class Confirm:
    """Frames up to `consumed_seq` are processed; everything before `confirmed_lsn` is durable.

    `settled`: nothing in those frames is left to confirm.
    """

    confirmer: str
    session: str
    epoch: int
    consumed_seq: int
    confirmed_lsn: int
    settled: bool


@dataclass(frozen=True, slots=True)
class Restart:
    """Start a new epoch above `epoch`, from the last confirmed LSN."""

    confirmer: str
    session: str
    epoch: int
    reason: str
    suite: str = ""


Control = Join | Confirm | Restart
_KINDS: dict[str, type[Join | Confirm | Restart]] = {
    "join": Join,
    "confirm": Confirm,
    "restart": Restart,
}
_TYPES: dict[str, type] = {
    "confirmer": str,
    "session": str,
    "reason": str,
    "settled": bool,
    "suite": str,
}
# What older services don't send. They are upgraded one by one, so both versions share the bus.
_DEFAULTS = {"suite": ""}
_NAMES = {kind: name for name, kind in _KINDS.items()}
# A new epoch is above every epoch seen so far, and must fit into a frame's header.
_INT_MAX = (1 << 63) - 1


def encode(message: Control) -> bytes:
    body = {name: getattr(message, name) for name in message.__slots__}
    return bytes(msgpack.packb({"kind": _NAMES[type(message)], **body}))


def decode(data: bytes) -> Control:
    try:
        body = msgpack.unpackb(data)
        kind = _KINDS[body.pop("kind")]
        # Keys that this version does not know are left out below: a newer service may send them.
        body = _DEFAULTS | body
        message = kind(**{name: body[name] for name in kind.__slots__})
    except (ValueError, KeyError, TypeError, AttributeError, msgpack.UnpackException) as error:
        raise DecodeError(f"malformed control message: {error}") from error
    for name in message.__slots__:
        expected = _TYPES.get(name, int)
        value = getattr(message, name)
        # Not isinstance: a bool is an int, and True is no epoch.
        if type(value) is not expected:
            raise DecodeError(
                f"malformed control message: {name} is not of type {expected.__name__}"
            )
        if isinstance(value, int) and not 0 <= value <= _INT_MAX:
            raise DecodeError(f"malformed control message: {name} is out of range")
    return message
