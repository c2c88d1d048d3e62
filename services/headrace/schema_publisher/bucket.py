"""The KV bucket of schemas: its content, and the writes that bring it up to date.

Promises: a key is written only if its content, its version or its encoding differs; every write and
deletion replaces the revision that was compared, so that two publishers never undo each other; keys
of other sources are left alone. Detects that others wrote to the bucket, or that it was lost or
restored, and reads it again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import StreamState
from nats.js.errors import KeyWrongLastSequenceError, NoKeysError, NotFoundError
from nats.js.kv import KeyValue

from headrace import log as logs
from headrace.contract.events import decode, encode
from headrace.contract.values import Encoding
from headrace.errors import DecodeError
from headrace.jetstream.provisioning import ensure
from headrace.jetstream.state import LostRaceError
from headrace.jetstream.state import bucket as open_bucket
from headrace.metrics.counters import Counters
from headrace.process.failpoint import failpoint
from headrace.schema_publisher.schema import (
    ABSENT,
    StoredSchema,
    TableSchema,
    changed,
    is_of,
    value,
    version_of,
)
from headrace.settings import Settings

log = logs.logger("schema-publisher")

_DELETIONS = frozenset({"DEL", "PURGE"})


class SchemaBucket:
    def __init__(self, settings: Settings, client: Client, stats: Counters) -> None:
        self._settings = settings
        self._encoding = settings.format.encoding
        self._js: JetStreamContext = client.jetstream()
        self._stats = stats
        self._kv: KeyValue | None = None
        self._stored: dict[str, StoredSchema] = {}
        # The stream's last sequence and number of messages at the last reading: any write changes
        # them.
        self._seen: tuple[int | None, int | None] | None = None

    def forget(self) -> None:
        """Read the bucket again before the next comparison."""
        self._kv = None
        self._seen = None

    async def sync(self, tables: Iterable[TableSchema], told: Mapping[str, int]) -> None:
        """Bring the bucket up to date with the tables; `told` contains versions from schema events,
        by token.
        """
        kv = await self._current()
        by_token = {table.token: table for table in tables}
        gone = [
            token
            for token, stored in self._stored.items()
            if token not in by_token and is_of(stored, self._settings.source.slot)
        ]
        try:
            # Written before others are removed: a renamed table always has a key.
            for token, table in by_token.items():
                await self._put(kv, table, told.get(token))
            for token in gone:
                await self._delete(kv, token)
        except KeyWrongLastSequenceError as error:
            # The next attempt compares with what the other process wrote.
            self._seen = None
            raise LostRaceError("another process wrote the same schema first") from error

    async def _current(self) -> KeyValue:
        if self._kv is None:
            await ensure(self._js, self._settings.streams)
            self._kv = await open_bucket(self._js, self._settings.streams.schemas)
        try:
            state = (await self._js.stream_info(f"KV_{self._settings.streams.schemas}")).state
        except NotFoundError:
            self.forget()
            raise
        if _place(state) != self._seen:
            self._stored = await self._read(self._kv)
            self._seen = _place(state)
        return self._kv

    async def _read(self, kv: KeyValue) -> dict[str, StoredSchema]:
        watcher = await kv.watchall()
        stored: dict[str, StoredSchema] = {}
        try:
            # The watcher marks the end of the current content with None, and each of its waits has
            # a time-out.
            # nats-py's watcher has no types.
            while (entry := await watcher.updates()) is not None:  # type: ignore[no-untyped-call]
                stored[entry.key] = _stored(entry)
        finally:
            await watcher.stop()  # type: ignore[no-untyped-call]  # nats-py's
        return stored

    async def _put(self, kv: KeyValue, table: TableSchema, told: int | None) -> None:
        stored = self._stored.get(table.token, ABSENT)
        if stored.value is None and stored.revision:
            stored = await self._before_deletion(kv, table.token, stored)
        version = version_of(stored, table.content, told)
        if (
            not changed(stored, table.content)
            and version == stored.version
            and stored.encoding is self._encoding
        ):
            return
        written = value(table.content, version, int(time.time()))
        failpoint("schema_publisher.before_schema")
        revision = await kv.update(
            table.token, encode(written, self._encoding), last=stored.revision
        )
        failpoint("schema_publisher.after_schema")
        # The write changed the sequence, and others may have written in between: read again.
        self._seen = None
        self._stats.count("schemas_published")
        log.info(
            "schema_published", table=table.content["schema"], version=version, revision=revision
        )

    async def _before_deletion(
        self, kv: KeyValue, token: str, deleted: StoredSchema
    ) -> StoredSchema:
        """A table that comes back continues counting: its old version must not be reused for
        another shape.
        """
        try:
            versions = [_stored(entry).version for entry in await kv.history(token)]
        except NoKeysError:
            return deleted
        return StoredSchema(
            {"version": max(versions, default=0)}, deleted.encoding, deleted.revision
        )

    async def _delete(self, kv: KeyValue, token: str) -> None:
        failpoint("schema_publisher.before_deletion")
        await kv.delete(token, last=self._stored[token].revision)
        failpoint("schema_publisher.after_deletion")
        log.info("schema_deleted", token=token)
        self._seen = None


def _place(state: StreamState) -> tuple[int | None, int | None]:
    return state.last_seq, state.messages


def _stored(entry: KeyValue.Entry) -> StoredSchema:
    revision = entry.revision or 0
    if entry.operation in _DELETIONS or not entry.value:
        return StoredSchema(None, Encoding.MSGPACK, revision)
    # No map in MessagePack starts with this byte, which is a small integer there.
    encoding = Encoding.JSON if entry.value[:1] == b"{" else Encoding.MSGPACK
    try:
        decoded = decode(entry.value)
    except DecodeError:
        # Another program's bytes under our key: they differ from any schema.
        decoded = {}
    return StoredSchema(decoded if isinstance(decoded, dict) else {}, encoding, revision)
