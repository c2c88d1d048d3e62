"""Signatures of the Standard Webhooks specification: HMAC-SHA256 with a shared secret.

Receivers check them with any of its libraries. A secret is never part of a message.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import quote

from headrace.errors import SettingError

_PREFIX = "whsec_"
# The specification's limits.
_SECRET_BYTES = range(24, 65)


@dataclass(frozen=True, slots=True)
class Signer:
    """Signs with each of its secrets."""

    keys: tuple[bytes, ...] = field(repr=False)

    @classmethod
    def of(cls, sink: str, secret: str, second_secret: str) -> Self:
        """Check the secrets of a sink."""
        keys = [_key(sink, secret)]
        if second_secret:
            # Receivers accept either signature, so secrets can change without a gap.
            keys.append(_key(sink, second_secret))
        return cls(tuple(keys))

    def headers(self, message_id: str, body: bytes) -> dict[str, str]:
        """The headers of one attempt, which contain its time."""
        safe_id = header_safe(message_id)
        timestamp = str(int(time.time()))
        signed = f"{safe_id}.{timestamp}.".encode() + body
        signatures = (hmac.digest(key, signed, hashlib.sha256) for key in self.keys)
        return {
            "webhook-id": safe_id,
            "webhook-timestamp": timestamp,
            "webhook-signature": " ".join(
                f"v1,{base64.b64encode(signature).decode()}" for signature in signatures
            ),
        }


def header_safe(text: str) -> str:
    """A text as a header's value. Without dots, which separate the parts of what is signed."""
    return quote(text, safe="").replace(".", "%2E")


def _key(sink: str, secret: str) -> bytes:
    try:
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except binascii.Error:
        key = b""
    if len(key) not in _SECRET_BYTES:
        raise SettingError(
            f"The secret of sink {sink} is not one of Standard Webhooks",
            remedy=f"It is {_PREFIX} and the Base64 of 24 to 64 random bytes.",
        )
    return key
