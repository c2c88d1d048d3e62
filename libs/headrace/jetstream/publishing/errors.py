"""Reasons why a stream doesn't store a message, and JetStream's error codes for them.

An `IngestError` leaves open which messages are stored: read the stream to find out. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.errors import HeadraceError

_WRONG_LAST_ID = 10070
_WRONG_LAST_SEQ = 10071
CHAIN_CODES = frozenset({_WRONG_LAST_ID, _WRONG_LAST_SEQ, 10164})
_ACCOUNT_LIMIT = 10002
_INSUFFICIENT_RESOURCES = 10023
_INSUFFICIENT_MEMORY = 10028
_INSUFFICIENT_STORAGE = 10047
_STORE_FAILED = 10077
_FULL_CODES = frozenset(
    {
        _INSUFFICIENT_RESOURCES,
        _INSUFFICIENT_STORAGE,
        _STORE_FAILED,
        _ACCOUNT_LIMIT,
        _INSUFFICIENT_MEMORY,
    }
)
_TOO_LARGE = 10054


class IngestError(HeadraceError):
    """Messages could not be published; which of them are stored must be read from the stream."""

    retry = True


class FencedError(IngestError):
    """Another publisher of the same source has written to the stream."""


class StreamFullError(IngestError):
    """The stream is full and refuses messages."""

    remedy = (
        "The slot retains undelivered changes. Give the stream more space (max_bytes), or "
        "shorten its retention."
    )


class TailLostError(IngestError):
    """The stream no longer contains messages that it acknowledged."""


class MessageTooLargeError(HeadraceError):
    """A message is larger than NATS or the stream allows, so it can never be stored."""

    remedy = (
        "Raise nats-server's max_payload (and the stream's max_msg_size), then restart. "
        "JetStream's file store takes "
        "up to 32 MB."
    )


def refusal(error: Mapping[str, object]) -> IngestError | MessageTooLargeError:
    """The suite's error for a message that JetStream refused for any reason but its position."""
    text = f"JetStream refused a message: {error.get('description')}"
    # A file store has its own limit (about 32 MB), which only the text distinguishes from a full
    # stream.
    if error.get("err_code") == _TOO_LARGE or "too large" in text:
        return MessageTooLargeError(text)
    if error.get("err_code") in _FULL_CODES:
        return StreamFullError(text)
    return IngestError(text)
