"""Errors of JetStream that say what to do, and which of nats-py's errors are temporary.

There are two kinds: NATS or JetStream is unavailable, and a retry may succeed; or it refuses, and
would refuse again. Code that retries calls `is_away`: nats-py's `APIError`, a refusal, is also one
of its `Error`s, which is easy to forget in a handler.
"""

from __future__ import annotations

from nats.errors import (
    ConnectionClosedError,
    ConnectionDrainingError,
    ConnectionReconnectingError,
    NoRespondersError,
    NoServersError,
    OutboundBufferLimitError,
    StaleConnectionError,
)
from nats.js.errors import NoStreamResponseError, ServiceUnavailableError

from headrace.errors import HeadraceError

NO_JETSTREAM_REMEDY = "Start nats-server with JetStream (-js), or enable it for this account."


class JetStreamError(HeadraceError):
    """JetStream can't do what the suite needs."""


class MissingObjectError(JetStreamError):
    """A stream or bucket is missing, or the permissions for it are."""


class NoRoomError(MissingObjectError):
    """JetStream has no room for a stream now; it may have some when others free it."""

    retry = True


class ConnectionLostError(JetStreamError):
    """The connection ended before JetStream answered."""

    retry = True
    remedy = "The request is repeated when NATS is back."


# nats-py's time-outs are TimeoutErrors too.
_AWAY = (
    TimeoutError,
    NoRespondersError,
    NoStreamResponseError,
    NoServersError,
    StaleConnectionError,
    ConnectionClosedError,
    ConnectionDrainingError,
    ConnectionReconnectingError,
    OutboundBufferLimitError,
)
# JetStream is starting and not ready yet. Without a code there was no answer, which nats-py also
# reports as unavailable.
_NOT_READY_CODES = frozenset({None, 0, 10008})


def is_away(error: Exception) -> bool:
    """Whether a retry may succeed later."""
    if isinstance(error, ServiceUnavailableError):
        return error.err_code in _NOT_READY_CODES
    return isinstance(error, _AWAY)
