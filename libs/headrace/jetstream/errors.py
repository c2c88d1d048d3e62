"""What JetStream can't do for the suite, as errors that say what to do. Pure."""

from __future__ import annotations

from headrace.errors import HeadraceError

NO_JETSTREAM_REMEDY = "Start nats-server with JetStream (-js), or enable it for this account."


class JetStreamError(HeadraceError):
    """JetStream can't do what the suite needs."""


class MissingObjectError(JetStreamError):
    """A stream or bucket is missing, or our rights to it."""


class ConnectionLostError(JetStreamError):
    """The connection ended before JetStream answered."""

    retry = True
    remedy = "It is asked again when NATS is back."
