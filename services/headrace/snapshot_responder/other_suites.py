"""Other suites on the same NATS, and their tables.

All suites take requests from one work queue, because a subject can be in one stream only. The
schemas bucket says which source a table belongs to. Never answers for another suite: a request for
its table goes back to the queue, until that suite takes it.
"""

from __future__ import annotations

from dataclasses import dataclass

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.errors import BucketNotFoundError, KeyNotFoundError

from headrace import log as logs
from headrace.contract.events import decode
from headrace.errors import DecodeError
from headrace.settings import Settings

log = logs.logger("snapshot-responder")

# The first delay is short, because usually the other suite takes the request next.
HAND_ON_S = 0.02
HAND_ON_S_MAX = 5.0


@dataclass(eq=False)
class Neighbours:
    """The schemas bucket's knowledge of other suites' tables."""

    _client: Client
    _settings: Settings

    async def have(self, token: str) -> bool:
        """Whether a table belongs to another suite."""
        try:
            schemas = await self._client.jetstream().key_value(self._settings.streams.schemas)
            source = decode((await schemas.get(token)).value or b"").get("source")
        except (BucketNotFoundError, KeyNotFoundError, DecodeError):
            # Without an entry no other suite has announced the table, so this one judges it.
            return False
        return source is not None and source != self._settings.source.slot

    async def hand_on(self, message: Msg) -> None:
        """Return a request for another suite to the queue; with longer delays while that suite is
        away.
        """
        # Beyond ten doublings the maximum applies in any case; the exponent stays small.
        delay_s = min(HAND_ON_S * 2 ** min(message.metadata.num_delivered, 10), HAND_ON_S_MAX)
        log.debug("request_handed_on", subject=message.subject, delay_s=delay_s)
        await message.nak(delay_s)
