"""Follows the stream during the faults, and compares each message with PostgreSQL's record.

The invariants: every committed change is in the stream exactly once, in commit order, as PostgreSQL
records it; positions strictly increase; no ID occurs twice; no gap is reported; applying the events
gives the table's rows. In batches, the order is checked for each table separately.
"""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict, deque
from typing import Any

import nats
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import Error as JetStreamError

from headrace.contract import events
from headrace.lsn import ORIGIN, Position
from headrace.testing.oracle import Change
from tests.chaos.source import SOURCE, TABLES

STREAM = "CDC"
_FETCH = 1000
_TROUBLE = (NatsError, JetStreamError, OSError, TimeoutError)


class BrokenPromiseError(AssertionError):
    """An invariant does not hold."""


class Checker:
    def __init__(self, delivery: str) -> None:
        self._by_table = delivery == "batch"
        self.checked = 0
        self.rows: dict[str, dict[int, tuple[int, str]]] = {table: {} for table in TABLES}
        # Of another suite that shares the stream.
        self.of_others: list[dict[str, Any]] = []
        self.counted: Counter[tuple[str, str]] = Counter()
        self._next_seq = 1
        # By what is ordered: a table, or all of them.
        self._positions: defaultdict[str, Position] = defaultdict(lambda: ORIGIN)
        self._delivered: defaultdict[str, deque[tuple[Change, dict[str, Any]]]] = defaultdict(deque)
        self._committed: defaultdict[str, deque[Change]] = defaultdict(deque)
        self._schemas: set[str] = set()

    @property
    def waiting(self) -> int:
        """Changes that are committed and not in the stream."""
        return sum(map(len, self._committed.values()))

    @property
    def settled(self) -> bool:
        return not any(self._committed.values()) and not any(self._delivered.values())

    def committed(self, changes: list[Change]) -> None:
        for change in changes:
            self._committed[self._order(change.table)].append(change)
        self._compare()

    def _order(self, table: str) -> str:
        return table if self._by_table else ""

    async def follow(self, url: str) -> None:
        """Take what is new in the stream, as far as the server can be asked now."""
        client: Client | None = None
        try:
            client = await nats.connect(
                url, allow_reconnect=False, connect_timeout=3, error_cb=_unheard
            )
            await self._take(client)
        except _TROUBLE:
            return
        finally:
            if client is not None:
                with contextlib.suppress(*_TROUBLE):
                    await client.close()

    async def _take(self, client: Client) -> None:
        js = client.jetstream()
        last = (await js.stream_info(STREAM)).state.last_seq
        if last < self._next_seq:
            return
        config = ConsumerConfig(
            ack_policy=AckPolicy.NONE,
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=self._next_seq,
            mem_storage=True,
            inactive_threshold=5.0,
        )
        consumer = await js.pull_subscribe("", stream=STREAM, config=config)
        while self._next_seq <= last:
            for message in await consumer.fetch(min(_FETCH, last - self._next_seq + 1), timeout=5):
                self._see(message.metadata.sequence.stream, events.decode(message.data))
        self._compare()

    def _see(self, seq: int, payload: Any) -> None:
        if seq != self._next_seq:
            self._jump(seq)
        self._next_seq = seq + 1
        for event in payload if isinstance(payload, list) else [payload]:
            self._event(event)

    def _event(self, event: dict[str, Any]) -> None:
        if event["operation"] == events.SCHEMA:
            if event["msg_id"] in self._schemas:
                raise BrokenPromiseError(f"{event['msg_id']} is in the stream twice")
            self._schemas.add(event["msg_id"])
            return
        if event["operation"] == events.GAP:
            self._gap(event)
            return
        if event["source"] != SOURCE:
            self.of_others.append(event)
            return
        position, order = events.position_of(event), self._order(event["table"])
        if position <= self._positions[order]:
            raise BrokenPromiseError(f"position {position} stands behind {self._positions[order]}")
        self._positions[order] = position
        change = Change(position, event["operation"], event["table"])
        self._deliver(order, change, event.get("data") or {})

    def _jump(self, seq: int) -> None:
        raise BrokenPromiseError(f"message {seq} of the stream came where {self._next_seq} was due")

    def _gap(self, event: dict[str, Any]) -> None:
        raise BrokenPromiseError(f"a gap was reported where nothing is missing: {event}")

    def _deliver(self, order: str, change: Change, data: dict[str, Any]) -> None:
        self._delivered[order].append((change, data))

    def _apply(self, change: Change, data: dict[str, Any]) -> None:
        self.counted[change.table, change.operation] += 1
        if change.table not in self.rows:
            return
        table = self.rows[change.table]
        if change.operation == "TRUNCATE":
            table.clear()
        elif change.operation == "DELETE":
            del table[data["id"]]
        else:
            table[data["id"]] = (data["n"], data["note"])

    def _compare(self) -> None:
        for order, committed in self._committed.items():
            delivered = self._delivered[order]
            while committed and delivered:
                want, (have, data) = committed.popleft(), delivered.popleft()
                if want != have:
                    raise BrokenPromiseError(
                        f"the stream has {have} where PostgreSQL committed {want}"
                    )
                self._apply(have, data)
                self.checked += 1

    @property
    def position(self) -> Position:
        return max(self._positions.values(), default=ORIGIN)


async def _unheard(_: Exception) -> None:
    """A failure is seen where it is awaited."""
