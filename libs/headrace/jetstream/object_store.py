"""Stores large events and parked changes in an object store of JetStream, each under its id."""

from __future__ import annotations

import io

from nats.js import JetStreamContext
from nats.js.api import ObjectMeta, ObjectMetaOptions
from nats.js.errors import APIError, BucketNotFoundError, ObjectNotFoundError
from nats.js.object_store import ObjectStore as NatsObjectStore

from headrace import log as logs
from headrace.errors import HeadraceError
from headrace.jetstream.errors import MissingObjectError

log = logs.logger("large")

# The bytes that the protocol may add to a piece in a message.
_OVERHEAD_BYTES = 1024
# nats-py's own time-out; each piece waits for its acknowledgement, which takes long behind a full
# pipe.
_PIECE_BYTES = 128 * 1024


class LargeMissingError(HeadraceError):
    """The object that a message refers to is no longer in the object store."""

    remedy = "The message outlived the object store's retention: bootstrap the table again."


class LargeRefusedError(HeadraceError):
    """The object store is full."""

    retry = True
    remedy = (
        "The slot retains undelivered changes. Give the object store more space (max_bytes, "
        "or the server's limits)."
    )


class ObjectStore:
    """`payload_max` is the server's limit, used for writing: pieces are as large as it allows."""

    def __init__(self, js: JetStreamContext, bucket: str, payload_max: int = _PIECE_BYTES) -> None:
        self._js = js
        self._bucket = bucket
        self._piece_bytes = payload_max - _OVERHEAD_BYTES
        self._store: NatsObjectStore | None = None

    async def put(self, name: str, data: bytes) -> None:
        """Store it; a replay overwrites it with the same content."""
        store = await self._open()
        try:
            await store.put(
                name, data, ObjectMeta(options=ObjectMetaOptions(max_chunk_size=self._piece_bytes))
            )
        except APIError as error:
            raise LargeRefusedError(
                f"the object store refused {name} of {len(data)} bytes: {error}"
            ) from error
        log.info("large_kept", name=name, bytes=len(data))

    async def get(self, name: str) -> bytes:
        store = await self._open()
        # Without a writable buffer nats-py copies everything received so far for each piece:
        # minutes for 100 MB.
        found = io.BytesIO()
        try:
            await store.get(name, writeinto=found)
        except ObjectNotFoundError as error:
            raise LargeMissingError(f"{name} is not in the object store {self._bucket}") from error
        return found.getvalue()

    async def _open(self) -> NatsObjectStore:
        if self._store is None:
            try:
                self._store = await self._js.object_store(self._bucket)
            except BucketNotFoundError as error:
                raise MissingObjectError(
                    f"the object store {self._bucket} is missing", remedy="Run `headrace init`."
                ) from error
        return self._store
