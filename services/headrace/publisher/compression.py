"""`--zstd-events`: compresses events of rows with a dictionary per table, trained from its first
events.

Promises that a dictionary is in the state bucket before the first message that needs it, and stays
there longer than the stream keeps messages; a dictionary that fits less well than before is
replaced. Until a table has one, and if it does not help, its events stay uncompressed.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from nats.js import JetStreamContext
from nats.js.errors import NoKeysError
from nats.js.kv import KeyValue

from headrace import log as logs
from headrace.contract import dictionaries
from headrace.contract.dictionaries import Compressor
from headrace.jetstream.dictionaries import DictionaryMissingError, DictionaryReader
from headrace.jetstream.provisioning import LARGE_MARGIN_S
from headrace.jetstream.state import Cell
from headrace.publisher.event_delivery import lane_of
from headrace.publisher.published_event import Assembled, PublishedEvent
from headrace.settings import DeliveryMode, Settings

log = logs.logger("publisher")

SAMPLES = 1000
PAYLOAD_BYTES_MAX = 4096
# This many events make a ratio; one that is worse than the first by this factor asks for another
# dictionary.
RATIO_EVENTS = 10_000
WORSE = 1.3
_HEADERS = {"Content-Encoding": "zstd"}


@dataclass(slots=True)
class _Table:
    """A table's dictionary, and how well it compresses."""

    compressor: Compressor | None = None
    samples: list[bytes] = field(default_factory=list)
    events: int = 0
    before: int = 0
    after: int = 0
    # The ratio of its first events; 0 until there were enough.
    ratio: float = 0.0
    hopeless: bool = False

    def sample(self, payload: bytes) -> bool:
        """Store an event for the training; returns whether there are enough."""
        self.samples.append(payload)
        return len(self.samples) >= SAMPLES

    def outgrown(self) -> bool:
        """Whether the last events compressed much worse than the first."""
        if self.events < RATIO_EVENTS:
            return False
        ratio = self.after / max(self.before, 1)
        self.events = 0
        self.before = 0
        self.after = 0
        if not self.ratio:
            self.ratio = ratio
        return ratio > WORSE * self.ratio


class Compression:
    def __init__(self, js: JetStreamContext, state: KeyValue, settings: Settings) -> None:
        source = settings.source.slot
        self._js = js
        self._stream = settings.streams.cdc
        self._reader = DictionaryReader(js, settings.streams.state)
        self._wanted = (
            settings.format.zstd_events and settings.delivery.mode is not DeliveryMode.BATCH
        )
        self._state = state
        self._age_max_s = 0.0
        self._cell = Cell(state, f"dictionaries.{source}")
        self._tables: dict[str, _Table] = {}
        self._kept: dict[str, Any] = {"tables": {}, "retired": []}

    async def open(self) -> None:
        """Load every dictionary that the stream may need, and continue with the newest."""
        # An operator may have given the stream another age than the settings.
        config = (await self._js.stream_info(self._stream)).config
        self._age_max_s = float(config.max_age or 0)
        for other in await self._cells():
            theirs = await other.read() or {"tables": {}, "retired": []}
            for dictionary_id in [
                *theirs["tables"].values(),
                *(retired for retired, _ in theirs["retired"]),
            ]:
                await self._learn(dictionary_id)
        kept = await self._cell.read()
        if kept is not None:
            self._kept = {"tables": dict(kept["tables"]), "retired": list(kept["retired"])}
        for token, dictionary_id in self._kept["tables"].items():
            dictionary = await self._learn(dictionary_id)
            if dictionary is not None:
                self._tables[token] = _Table(Compressor(dictionary))

    async def _cells(self) -> list[Cell]:
        """Dictionaries of every source: a stream may be shared."""
        try:
            keys = await self._state.keys(filters=["dictionaries.>"])
        except NoKeysError:
            return []
        return [Cell(self._state, name) for name in keys]

    async def _learn(self, dictionary_id: int) -> bytes | None:
        try:
            return await self._reader.learn(dictionary_id)
        except DictionaryMissingError as error:
            log.warning("dictionary_missing", id=dictionary_id, reason=str(error))
            return None

    async def of(self, items: list[Assembled]) -> list[Assembled]:
        """The same items, with row events compressed if that is wanted and helps."""
        if not self._wanted:
            return items
        found: list[Assembled] = []
        for item in items:
            if isinstance(item, PublishedEvent) and item.advances:
                found.append(await self._one(item))
            else:
                found.append(item)
        return found

    async def _one(self, event: PublishedEvent) -> PublishedEvent:
        if event.large is not None or len(event.payload) > PAYLOAD_BYTES_MAX:
            return event
        token = lane_of(event.subject)
        table = self._tables.setdefault(token, _Table())
        if table.compressor is None:
            if not table.hopeless and table.sample(event.payload):
                await self._train(token, table)
            return event
        payload = table.compressor.compress(event.payload)
        # Measured whether it helps or not: a dictionary that no longer helps must be noticed.
        table.events += 1
        table.before += len(event.payload)
        table.after += len(payload)
        if table.outgrown():
            log.info("dictionary_outgrown", token=token, id=table.compressor.dictionary_id)
            self._tables[token] = _Table()
        if len(payload) + sum(map(len, *_HEADERS.items())) >= len(event.payload):
            return event
        return event._replace(payload=payload, headers={**event.headers, **_HEADERS})

    async def _train(self, token: str, table: _Table) -> None:
        """Stored first, used after."""
        # Training takes a moment, in another thread; what comes meanwhile is not compressed.
        samples = table.samples
        table.samples = []
        dictionary = await asyncio.to_thread(dictionaries.train, samples)
        if dictionary is None:
            table.hopeless = True
            return
        compressor = Compressor(dictionary)
        # A consumer that meets a message before its dictionary could not read it.
        await self._state.put(dictionaries.key(compressor.dictionary_id), dictionary)
        dictionaries.learn(dictionary)
        await self._note(token, compressor.dictionary_id)
        table.compressor = compressor
        log.info(
            "dictionary_trained", token=token, id=compressor.dictionary_id, bytes=len(dictionary)
        )

    async def _note(self, token: str, dictionary_id: int) -> None:
        now = int(time.time())
        replaced = self._kept["tables"].get(token)
        self._kept["tables"][token] = dictionary_id
        if replaced is not None:
            self._kept["retired"].append([replaced, now])
        # Deleted after the record no longer names them: a crash in between leaves an unused value,
        # not a record of a missing one.
        over = [entry for entry in self._kept["retired"] if self._is_over(entry[1], now)]
        self._kept["retired"] = [entry for entry in self._kept["retired"] if entry not in over]
        await self._cell.write(self._kept)
        for old, _ in over:
            await self._state.delete(dictionaries.key(old))

    def _is_over(self, retired_at: int, now: int) -> bool:
        """Whether no message of the stream can need it any more."""
        # A stream without an age limit keeps its messages, and needs their dictionaries.
        return 0 < self._age_max_s < now - retired_at - LARGE_MARGIN_S
