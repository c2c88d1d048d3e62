"""A stream read as a stranger reads it: by nats-py, msgpack, json and zstandard, and
docs/contract.md.

Nothing here may come from what it judges: no import of `headrace`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass
from typing import Any

import msgpack
import nats
import zstandard
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.client import JetStreamContext

_FETCH = 500
READ_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Message:
    """One event, and the message that carried it."""

    seq: int
    subject: str
    msg_id: str
    payload: dict[str, Any]

    @property
    def operation(self) -> str:
        return str(self.payload["operation"])


class ForeignReader:
    """Reads all of a stream, and decodes it by nothing but the contract's page."""

    def __init__(
        self, js: JetStreamContext, stream: str = "CDC", state_bucket: str = "headrace_state"
    ) -> None:
        self._js = js
        self._stream = stream
        self._state_bucket = state_bucket
        self._dictionaries: dict[int, zstandard.ZstdCompressionDict] = {}

    async def read(self) -> list[Message]:
        """Every event in stream order; a batch's one by one."""
        left = (await self._js.stream_info(self._stream)).state.messages
        config = ConsumerConfig(
            ack_policy=AckPolicy.NONE,
            deliver_policy=DeliverPolicy.ALL,
            mem_storage=True,
            inactive_threshold=60.0,
        )
        consumer = await self._js.pull_subscribe("", stream=self._stream, config=config)
        found: list[Message] = []
        async with asyncio.timeout(READ_TIMEOUT_S):
            while left:
                messages: list[Any] = []
                with contextlib.suppress(TimeoutError):
                    messages = await consumer.fetch(min(_FETCH, left), timeout=5)
                left -= len(messages)
                for message in messages:
                    found += await self._events(message)
        await consumer.unsubscribe()
        return found

    async def _events(self, message: Any) -> list[Message]:
        headers = message.headers or {}
        decoded = await self._decoded(message.data, headers)
        payloads = decoded if isinstance(decoded, list) else [decoded]
        whole = [await self._whole(payload) for payload in payloads]
        seq, msg_id = message.metadata.sequence.stream, headers.get("Nats-Msg-Id", "")
        return [Message(seq, message.subject, msg_id, payload) for payload in whole]

    async def _whole(self, payload: dict[str, Any]) -> dict[str, Any]:
        reference = payload.get("reference")
        if reference is None:
            return payload
        store = await self._js.object_store(reference["bucket"])
        kept = await store.get(reference["name"])
        found: dict[str, Any] = _parsed(kept.data or b"")
        return found

    async def _decoded(self, data: bytes, headers: dict[str, str]) -> Any:
        if headers.get("Content-Encoding") != "zstd":
            return _parsed(data)
        wanted = zstandard.get_frame_parameters(data).dict_id
        if wanted and wanted not in self._dictionaries:
            bucket = await self._js.key_value(self._state_bucket)
            entry = await bucket.get(f"dictionary.{wanted}")
            self._dictionaries[wanted] = zstandard.ZstdCompressionDict(entry.value or b"")
        decompressor = zstandard.ZstdDecompressor(dict_data=self._dictionaries.get(wanted))
        return _parsed(decompressor.decompress(data))


def _parsed(data: bytes) -> Any:
    """JSON begins with a brace or a bracket, which no MessagePack map or array of this contract
    does.
    """
    if data[:1] in (b"{", b"["):
        return json.loads(data)
    return msgpack.unpackb(data, strict_map_key=False)


@contextlib.asynccontextmanager
async def foreign_reader(url: str, state_bucket: str = "headrace_state") -> Any:
    """A reader on a separate connection."""
    client = await nats.connect(url)
    try:
        yield ForeignReader(client.jetstream(), state_bucket=state_bucket)
    finally:
        await client.close()
