"""PostgreSQL's own record of what was committed: a second slot, read by SQL, with which the stream
is compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import nats
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from headrace.contract import events
from headrace.lsn import Position
from headrace.pgoutput.decoder import decode
from headrace.pgoutput.messages import Begin, Delete, Insert, Relation, Truncate, Update
from headrace.testing.database import Database

_FETCH = 2000
_PAGE = 20_000


@dataclass(frozen=True, slots=True)
class Change:
    """A change, by what both the stream and PostgreSQL's record contain of it."""

    # The position in the source.
    position: Position
    # INSERT, UPDATE, DELETE or TRUNCATE.
    operation: str
    # The name of the table, without its schema.
    table: str


class Oracle:
    """A second slot on the same publication, which must be created before the first change.

    oracle = Oracle(database, names.other("oracle"), names.publication)
    await oracle.begin()
    ...
    assert [message.change for message in await stored(url)] == await oracle.changes()
    """

    def __init__(
        self, database: Database, slot: str = "oracle", publication: str = "headrace"
    ) -> None:
        self._database = database
        self._slot = slot
        self._publication = publication
        self._tables: dict[int, str] = {}

    async def begin(self) -> None:
        """Create the slot."""
        await self._database.execute(
            f"SELECT pg_create_logical_replication_slot('{self._slot}', 'pgoutput')"
        )

    @classmethod
    async def begun(cls, database: Database, slot: str = "oracle") -> Oracle:
        """One that reads what is committed from now on."""
        oracle = cls(database, slot)
        await oracle.begin()
        return oracle

    async def changes(self) -> list[Change]:
        """Return every change that was committed since the last call, in commit order."""
        found: list[Change] = []
        while page := await self._page():
            position = Position(0, 0)
            for data in page:
                message = decode(data)
                match message:
                    case Begin():
                        position = Position(message.final_lsn, 0)
                    case Relation():
                        self._tables[message.relation_id] = message.name
                    case Insert() | Update() | Delete():
                        name = type(message).__name__.upper()
                        found.append(Change(position, name, self._tables[message.relation_id]))
                        position = Position(position.lsn, position.seq + 1)
                    case Truncate():
                        for relation_id in message.relation_ids:
                            found.append(Change(position, "TRUNCATE", self._tables[relation_id]))
                            position = Position(position.lsn, position.seq + 1)
        return found

    async def _page(self) -> list[bytes]:
        rows = await self._database.fetch(
            "SELECT data FROM pg_logical_slot_get_binary_changes($1, NULL, $2, "
            "'proto_version', '1', 'publication_names', $3)",
            self._slot,
            _PAGE,
            self._publication,
        )
        return [row["data"] for row in rows]


@dataclass(frozen=True, slots=True)
class Stored:
    """An event, as it is stored in the stream."""

    # The stream sequence of its message.
    seq: int
    # The subject of its message.
    subject: str
    # The ID of its message (Nats-Msg-Id).
    msg_id: str
    # The contract's complete map.
    payload: dict[str, Any]

    @property
    def change(self) -> Change:
        """The same change as the oracle reports it."""
        return Change(
            events.position_of(self.payload), self.payload["operation"], self.payload["table"]
        )


async def raw_messages(url: str, stream: str = "CDC") -> list[Msg]:
    """Every message of a stream, in stream order."""
    client = await nats.connect(url)
    try:
        js = client.jetstream()
        state = (await js.stream_info(stream)).state
        # Reading a page may take this long on a busy machine.
        config = ConsumerConfig(
            ack_policy=AckPolicy.NONE,
            deliver_policy=DeliverPolicy.ALL,
            mem_storage=True,
            inactive_threshold=60.0,
        )
        consumer = await js.pull_subscribe("", stream=stream, config=config)
        found: list[Msg] = []
        # A damaged file contains fewer messages than nats-server counts.
        at = 0 if state.messages else state.last_seq
        while at < state.last_seq:
            found += await consumer.fetch(min(_FETCH, state.last_seq - at), timeout=10)
            at = found[-1].metadata.sequence.stream
        return found
    finally:
        await client.close()


async def stored(url: str, stream: str = "CDC") -> list[Stored]:
    """Return every event of a stream, in stream order, including each event of a batch."""
    found: list[Stored] = []
    for message in await raw_messages(url, stream):
        decoded = events.decode(message.data)
        msg_id = (message.headers or {}).get("Nats-Msg-Id", "")
        seq = message.metadata.sequence.stream
        payloads = decoded if isinstance(decoded, list) else [decoded]
        found.extend(Stored(seq, message.subject, msg_id, payload) for payload in payloads)
    return found


async def assert_complete(url: str, stream: str = "CDC") -> None:
    """Assert that no row which committed before the LSN that an array names comes after the array,
    and that the last array's LSN covers all rows.
    """
    named, lsns = [0], [0]
    for message in await raw_messages(url, stream):
        payload = events.decode(message.data)
        rows = [
            row
            for row in (payload if isinstance(payload, list) else [payload])
            if row["operation"] != "SCHEMA"
        ]
        assert all(row["tx"]["lsn"] >= named[-1] for row in rows), (message.subject, named[-1])
        lsns += [row["tx"]["lsn"] for row in rows]
        named.append(int((message.headers or {}).get("Headrace-Complete", named[-1])))
    assert named == sorted(named)
    assert len(set(named)) > 2
    assert named[-1] > max(lsns)
