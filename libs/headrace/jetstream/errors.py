"""What JetStream can't do for the suite, as errors that say what to do; and which of nats-py's
errors pass.

Two kinds: NATS or JetStream is away, and the same may succeed later; or it refuses, and would
refuse it again. Whoever retries asks `is_away`: nats-py's `APIError`, a refusal, is one of its
`Error`s too, which a handler easily forgets.
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
    """A stream or bucket is missing, or our rights to it."""


class NoRoomError(MissingObjectError):
    """JetStream has no room for a stream now; it may have some when others free it."""

    retry = True


class ConnectionLostError(JetStreamError):
    """The connection ended before JetStream answered."""

    retry = True
    remedy = "It is asked again when NATS is back."


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
# JetStream is there and not ready yet; without a code nobody answered, which nats-py gives as
# unavailable too.
_NOT_READY_CODES = frozenset({None, 0, 10008})


def is_away(error: Exception) -> bool:
    """Whether the same may succeed later."""
    if isinstance(error, ServiceUnavailableError):
        return error.err_code in _NOT_READY_CODES
    return isinstance(error, _AWAY)
