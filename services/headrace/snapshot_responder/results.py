"""Errors of snapshots on the INIT stream, and the removal of an attempt's chunks.

Promises that an error message is stored, however long NATS is unavailable. If JetStream refuses it,
it would refuse it forever, so the error is logged instead, and nobody waits for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, Header
from nats.js.errors import NotFoundError

from headrace import log as logs
from headrace.contract.events import decode, encode
from headrace.contract.subjects_and_ids import chunk_subject, meta_subject, snapshot_error_subject
from headrace.contract.values import Encoding
from headrace.errors import DecodeError, describe
from headrace.jetstream.errors import is_away
from headrace.settings import Compat, Settings

log = logs.logger("snapshot-responder")

RETRY_S = 0.5
STRAGGLERS_S = 5.0
_POLL_S = 0.1
# If the responder dies before it deletes the consumer, the server does so.
_COUNT_CONSUMER_TTL_S = 10.0
_NOT_PUBLISHED = "table_not_in_publication"


def chunks_subject(token: str, snapshot_id: str) -> str:
    """The subject of every chunk of a snapshot."""
    return chunk_subject(token, snapshot_id, 0).rpartition(".")[0] + ".*"


@dataclass(frozen=True, slots=True)
class Results:
    """Publishes results."""

    client: Client
    settings: Settings

    async def fail(
        self,
        token: str,
        table: str,
        snapshot_id: str,
        error: str,
        available: Sequence[str] = (),
        suffix: str = "error",
    ) -> None:
        """Publish `init.error.{token}`; waits for an unavailable NATS as long as it takes."""
        log.warning("snapshot_failed", snapshot_id=snapshot_id, token=token, reason=error)
        payload = self._error(table, snapshot_id, error, available)
        # A repetition after a lost acknowledgement is a duplicate, which JetStream drops within its
        # window.
        headers: dict[str, Any] = {Header.MSG_ID: f"{snapshot_id}-{suffix}"}
        while True:
            try:
                await self.client.jetstream().publish(
                    snapshot_error_subject(token), payload, headers=headers
                )
            except (NatsError, TimeoutError) as reason:
                if not is_away(reason) or await self.stream_is_missing():
                    log.error(  # noqa: TRY400  # foreseen
                        "error_refused", snapshot_id=snapshot_id, token=token, reason=str(reason)
                    )
                    return
                log.warning("error_not_published", snapshot_id=snapshot_id, reason=str(reason))
                await asyncio.sleep(RETRY_S)
            else:
                return

    async def stream_is_missing(self) -> bool:
        """No answer to a publish may mean a server that is starting, or a stream that no longer
        exists.
        """
        try:
            await self.client.jsm().stream_info(self.settings.streams.init)
        except NotFoundError:
            return True
        except (NatsError, TimeoutError):
            return False
        return False

    def _error(self, table: str, snapshot_id: str, error: str, available: Sequence[str]) -> bytes:
        tables = list(available)
        if self.settings.delivery.compat is Compat.BRIDGE:
            # MessagePack for any encoding, and the same text for every unpublished table.
            body = {
                "error": _NOT_PUBLISHED if tables else error,
                "table": table,
                "available_tables": tables,
            }
            return encode(body, Encoding.MSGPACK)
        body = {
            "snapshot_id": snapshot_id,
            "table": table,
            "error": error,
            "available_tables": tables,
        }
        return encode(body, self.settings.format.encoding)

    async def purge(self, token: str, snapshot_id: str, begun: int = 0) -> None:
        """Remove the chunks of a failed attempt; if that fails they age out.

        Waits a little for chunks that were in flight when it ended: `begun` of them had permission
        to be published.
        """
        subject = chunks_subject(token, snapshot_id)
        deadline = time.monotonic() + STRAGGLERS_S
        try:
            while time.monotonic() < deadline:
                if await self.stored(token, snapshot_id) >= begun:
                    break
                await asyncio.sleep(_POLL_S)
            await self.client.jsm().purge_stream(self.settings.streams.init, subject=subject)
        except (NatsError, TimeoutError) as error:
            log.warning("chunks_left", snapshot_id=snapshot_id, reason=str(error))

    async def stored(self, token: str, snapshot_id: str) -> int:
        """The number of chunks in the stream. None can be there twice, so this number tells whether
        all are.
        """
        config = ConsumerConfig(
            filter_subject=chunks_subject(token, snapshot_id),
            deliver_policy=DeliverPolicy.ALL,
            ack_policy=AckPolicy.NONE,
            inactive_threshold=_COUNT_CONSUMER_TTL_S,
            mem_storage=True,
        )
        manager = self.client.jsm()
        info = await manager.add_consumer(self.settings.streams.init, config)
        await manager.delete_consumer(self.settings.streams.init, info.name)
        # A consumer that delivered nothing yet has every chunk pending.
        return info.num_pending or 0

    async def completed(self, token: str, snapshot_id: str) -> bool:
        """Whether the token's last meta message is this snapshot's."""
        try:
            last = await self.client.jsm().get_last_msg(
                self.settings.streams.init, meta_subject(token)
            )
        except NotFoundError:
            return False
        try:
            return bool(decode(last.data or b"").get("snapshot_id") == snapshot_id)
        except DecodeError:
            return False

    async def completed_patiently(self, token: str, snapshot_id: str) -> bool:
        """`completed`; waits for a NATS that is away. A stream that refuses shows no end."""
        while True:
            try:
                return await self.completed(token, snapshot_id)
            except (NatsError, TimeoutError) as error:
                log.warning("meta_not_read", snapshot_id=snapshot_id, reason=describe(error))
                if not is_away(error):
                    return False
                await asyncio.sleep(RETRY_S)
