"""What ends a snapshot on the INIT stream, apart from its meta: errors, and the removal of what an attempt left.

Promises that an error message gets there or the caller hears of it: NATS is waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.api import Header
from nats.js.errors import APIError, NotFoundError

from headrace import log as logs
from headrace.contract.events import decode, encode
from headrace.contract.naming import chunk_subject, meta_subject, snapshot_error_subject
from headrace.contract.values import Encoding
from headrace.errors import DecodeError
from headrace.settings import Compat, Settings

log = logs.logger("snapshot-responder")

RETRY_S = 0.5
_NOT_PUBLISHED = "table_not_in_publication"


@dataclass(frozen=True, slots=True)
class Results:
    """Where results go."""

    client: Client
    settings: Settings

    async def fail(
        self, token: str, table: str, snapshot_id: str, error: str, available: Sequence[str] = (), suffix: str = "error"
    ) -> None:
        """Publish `init.error.{token}`; waits for NATS as long as it takes."""
        log.warning("snapshot_failed", snapshot_id=snapshot_id, token=token, reason=error)
        payload = self._error(table, snapshot_id, error, available)
        headers: dict[str, Any] = {Header.MSG_ID: f"{snapshot_id}-{suffix}"}
        while True:
            try:
                await self.client.jetstream().publish(snapshot_error_subject(token), payload, headers=headers)
            except (NatsError, TimeoutError) as reason:
                log.warning("error_not_published", snapshot_id=snapshot_id, reason=str(reason))
                await asyncio.sleep(RETRY_S)
            else:
                return

    def _error(self, table: str, snapshot_id: str, error: str, available: Sequence[str]) -> bytes:
        tables = list(available)
        if self.settings.delivery.compat is Compat.BRIDGE:
            # MessagePack whatever the rest is in, and one word for a table that isn't published.
            body = {"error": _NOT_PUBLISHED if tables else error, "table": table, "available_tables": tables}
            return encode(body, Encoding.MSGPACK)
        body = {"snapshot_id": snapshot_id, "table": table, "error": error, "available_tables": tables}
        return encode(body, self.settings.format.encoding)

    async def purge(self, token: str, snapshot_id: str) -> None:
        """Remove the chunks of an attempt that came to nothing; where that fails they age out."""
        subject = chunk_subject(token, snapshot_id, 0).rpartition(".")[0] + ".*"
        try:
            await self.client.jsm().purge_stream(self.settings.streams.init, subject=subject)
        except (NatsError, APIError, TimeoutError) as error:
            log.warning("chunks_left", snapshot_id=snapshot_id, reason=str(error))

    async def completed(self, token: str, snapshot_id: str) -> bool:
        """Whether the token's last meta message is this snapshot's."""
        try:
            last = await self.client.jsm().get_last_msg(self.settings.streams.init, meta_subject(token))
        except NotFoundError:
            return False
        try:
            return bool(decode(last.data or b"").get("snapshot_id") == snapshot_id)
        except DecodeError:
            return False
