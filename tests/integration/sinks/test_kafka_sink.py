"""A sink in Kafka, read by Kafka's own client: what readers see, and what is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from headrace.consumer import Watermark
from headrace.errors import SettingError
from headrace.lsn import Position
from headrace.sinks.kafka import KafkaSink
from headrace.sinks.port import (
    SEEN,
    RefusedError,
    SinkAwayError,
    SinkError,
    SinkFencedError,
    SinkOptions,
)
from headrace.sinks.routing import Router
from headrace.testing.certificates import Authority
from headrace.testing.kafka import KafkaServer, Security
from headrace.testing.names import Names
from headrace.testing.servers import SessionServers
from tests.support.kafka_reading import UNCOMMITTED, header, records
from tests.support.sink_records import SOURCE, event, inserts, marks, of_events, transaction


class Place:
    """One topic, and the sinks of one name that write to it."""

    def __init__(self, kafka: KafkaServer, names: Names) -> None:
        self.kafka = kafka
        self.topic = names.other("topic")
        self.name = names.other("sink")
        self.router = Router(destination=lambda _: self.topic)

    def sink(self, stream: str = "one", to: str = "", **options: Any) -> KafkaSink:
        address = to or f"kafka://{self.kafka.bootstrap}"
        return KafkaSink(SinkOptions(self.name, address, stream, options))

    async def read(self, isolation: str = "read_committed") -> list[dict[str, Any] | None]:
        found = await asyncio.to_thread(records, self.kafka.bootstrap, self.topic, isolation)
        values = [one.value() for one in found]
        return [None if value is None else json.loads(value) for value in values]

    async def ids(self, isolation: str = "read_committed") -> list[int]:
        return [row["data"]["id"] for row in await self.read(isolation) if row]


@pytest.fixture
def place(kafka: KafkaServer, names: Names) -> Place:
    return Place(kafka, names)


async def test_readers_see_a_commit_and_nothing_before_it(place: Place) -> None:
    sink = place.sink()
    assert await sink.open() == {}
    first = inserts(10, 1, 2, router=place.router)
    await sink.write([first])
    await sink.commit(marks(first))
    await sink.write([inserts(20, 3, router=place.router)])
    await asyncio.to_thread(sink._begun.flush, 10)
    assert await place.ids() == [1, 2]
    assert await place.ids(UNCOMMITTED) == [1, 2, 3]
    await sink.close()
    again = place.sink()
    assert await again.open() == marks(first)
    await again.close()


async def test_a_record_has_its_key_and_says_what_it_is(place: Place) -> None:
    sink = place.sink(tombstones=True)
    await sink.open()
    one = transaction(10, ("INSERT", {"id": 7}), ("DELETE", {"id": 7}), router=place.router)
    await sink.write([one])
    await sink.commit(marks(one))
    await sink.close()
    found = await asyncio.to_thread(records, place.kafka.bootstrap, place.topic)
    assert [message.key() for message in found] == [b"[7]"] * 3
    assert [message.value() is None for message in found] == [False, False, True]
    assert header(found[1], "headrace-operation") == "DELETE"
    assert header(found[1], "headrace-position") == "10 1"
    assert header(found[1], "headrace-id") == "a-1"


async def test_an_older_process_is_refused_at_its_commit(place: Place) -> None:
    older, newer = place.sink(), place.sink()
    await older.open()
    lost = inserts(10, 1, router=place.router)
    await older.write([lost])
    assert await newer.open() == {}
    with pytest.raises(SinkFencedError):
        await older.commit(marks(lost))
    again = inserts(10, 1, router=place.router)
    await newer.write([again])
    await newer.commit(marks(again))
    await older.close()
    await newer.close()
    assert await place.ids() == [1]


async def test_marks_are_found_behind_aborted_transactions(place: Place) -> None:
    sink = place.sink()
    await sink.open()
    one = inserts(10, 1, router=place.router)
    await sink.write([one])
    await sink.commit(marks(one))
    for _ in range(80):
        await asyncio.to_thread(_abort_marks, sink)
    await sink.close()
    again = place.sink()
    assert await again.open() == marks(one)
    await again.close()


def _abort_marks(sink: KafkaSink) -> None:
    producer = sink._begin()
    producer.produce(sink._settings.position_topic, b"never", b"position")
    producer.flush(10)
    producer.abort_transaction(10)
    sink._in_transaction = False


async def test_another_stream_keeps_positions_and_no_sequences(place: Place) -> None:
    sink = place.sink()
    await sink.open()
    await sink.commit({SOURCE: Watermark(Position(10, 1), 5), SEEN: Watermark(Position(0, 0), 9)})
    await sink.close()
    other = place.sink(stream="two")
    assert await other.open() == {SOURCE: Watermark(Position(10, 1), 0)}
    await other.close()


async def test_a_missing_topic_is_refused_with_the_command_that_creates_it(place: Place) -> None:
    with pytest.raises(SinkError, match=r"--create --topic .*--config cleanup.policy=compact"):
        await place.sink(create_topics=False).open()
    creating = place.sink()
    await creating.open()
    await creating.close()
    sink = place.sink(create_topics=False)
    await sink.open()
    with pytest.raises(SinkError, match=f"--create --topic {place.topic}"):
        await sink.write([inserts(10, 1, router=place.router)])
    await sink.close()


async def test_marks_are_not_kept_where_kafka_deletes_old_records(place: Place) -> None:
    admin = AdminClient({"bootstrap.servers": place.kafka.bootstrap})
    topic = NewTopic(f"headrace-{place.name}-position", 1, 1, config={"cleanup.policy": "delete"})
    await asyncio.to_thread(admin.create_topics([topic])[topic.topic].result)
    with pytest.raises(SinkError, match=r"Set its cleanup\.policy to compact"):
        await place.sink().open()


async def test_a_record_that_is_too_large_is_the_one_that_is_named(place: Place) -> None:
    admin = AdminClient({"bootstrap.servers": place.kafka.bootstrap})
    topic = NewTopic(place.topic, 1, 1, config={"max.message.bytes": "20000"})
    await asyncio.to_thread(admin.create_topics([topic])[topic.topic].result)
    sink = place.sink(compression="none", client={"batch.size": 15_000})
    await sink.open()
    large = event(10, 1, "INSERT", {"id": 2, "note": "x" * 30_000}, last=True)
    small = event(10, 0, "INSERT", {"id": 1}, last=False)
    both = of_events(small, large, router=place.router)
    await sink.write([both])
    with pytest.raises(RefusedError) as refused:
        await sink.commit(marks(both))
    assert refused.value.record.id == "a-1"
    await sink.close()
    sink = place.sink()
    await sink.open()
    with pytest.raises(RefusedError) as refused:
        await sink.write([inserts(10, 1, note="x" * 2_000_000, router=place.router)])
    assert refused.value.record.id == "a-0"
    await sink.close()
    assert await place.ids() == []


async def test_a_name_that_kafka_has_not_is_refused(place: Place) -> None:
    sink = place.sink()
    await sink.open()
    with pytest.raises(RefusedError, match="letters, digits"):
        await sink.write([inserts(10, 1, router=Router(destination=lambda _: "public.Größe"))])
    await sink.close()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tombstone": True}, "Did you mean tombstones"),
        ({"partitions": "3"}, "must be a whole number"),
        ({"client": {"acks": 1}}, "can't set acks"),
        ({"password": 5}, "must be a text"),
    ],
)
def test_a_wrong_option_is_named_before_a_connection_is_opened(
    options: dict[str, Any], says: str
) -> None:
    with pytest.raises(SettingError, match=says):
        KafkaSink(SinkOptions("shop", "kafka://nowhere:1", "", options))


@pytest.fixture
async def secure(session_servers: SessionServers, tmp_path: Path) -> Any:
    pair = Authority(tmp_path).server()
    users = {"writer": "right", "stranger": "right"}
    server = session_servers.new(
        "kafka", lambda folder: KafkaServer(folder, security=Security(pair, users))
    )
    await server.start()
    yield server
    session_servers.discard(server)


@pytest.mark.slow
async def opened(made: Callable[[], KafkaSink]) -> KafkaSink:
    """An open sink; as the process does, again while the broker doesn't know its new topics."""
    async with asyncio.timeout(60):
        while True:
            sink = made()
            try:
                await sink.open()
            except SinkAwayError:
                await sink.close()
            else:
                return sink


async def test_tls_passwords_and_access_rules(
    secure: KafkaServer, names: Names, tmp_path: Path
) -> None:
    place = Place(secure, names)
    place_options: dict[str, Any] = {
        "to": f"kafka://{secure.secure_bootstrap}",
        "username": "writer",
        "password": "right",
        "mechanism": "PLAIN",
        "ca_file": str(tmp_path / "authority.pem"),
    }
    admin = AdminClient({"bootstrap.servers": secure.bootstrap})
    allow = AclPermissionType.ALLOW
    rules = [
        AclBinding(kind, name, ResourcePatternType.LITERAL, "User:writer", "*", operation, allow)
        for kind, name, operation in [
            (ResourceType.TOPIC, "*", AclOperation.WRITE),
            (ResourceType.TOPIC, "*", AclOperation.CREATE),
            (ResourceType.TOPIC, "*", AclOperation.DESCRIBE_CONFIGS),
            (ResourceType.TOPIC, f"headrace-{place.name}-position", AclOperation.READ),
            (ResourceType.GROUP, f"headrace-{place.name}", AclOperation.READ),
            (ResourceType.TRANSACTIONAL_ID, f"headrace-{place.name}", AclOperation.WRITE),
        ]
    ]
    for done in admin.create_acls(rules).values():
        await asyncio.to_thread(done.result)
    sink = await opened(lambda: place.sink(**place_options))
    one = inserts(10, 1, router=place.router)
    await sink.write([one])
    await sink.commit(marks(one))
    await sink.close()
    assert await place.ids() == [1]
    refusals: list[tuple[dict[str, Any], str]] = [
        ({"password": "wrong"}, "did not accept the connection"),
        ({"ca_file": "", "tls": True}, "did not accept the connection"),
        ({"username": "stranger"}, "does not allow"),
    ]
    for wrong, says in refusals:
        refused = place.sink(**{**place_options, **wrong})
        with pytest.raises(SinkError, match=says) as error:
            await refused.open()
        assert not error.value.retry
        assert "right" not in str(error.value)
        await refused.close()
