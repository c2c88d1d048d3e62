"""RabbitMQ's streams and queues as sinks, read by their clients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiormq
import pytest

from headrace.errors import SettingError
from headrace.sinks.port import RefusedError, SinkError, SinkOptions
from headrace.sinks.rabbitmq_queue import RabbitQueueSink
from headrace.sinks.rabbitmq_streams import RabbitStreamSink
from headrace.sinks.routing import Router
from headrace.testing.certificates import Authority
from headrace.testing.names import Names
from headrace.testing.rabbitmq import RabbitServer
from headrace.testing.servers import SessionServers
from tests.support.rabbitmq_reading import body, properties, queue_messages, stream_messages
from tests.support.sink_records import inserts, marks, transaction

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class Place:
    """A stream or queue, and the sinks that write to it."""

    def __init__(self, server: RabbitServer, names: Names) -> None:
        self.server = server
        self.name = names.other("sink")
        self.target = names.other("target")
        self.router = Router(destination=lambda _: self.target)

    def stream(self, stream: str = "one", **options: Any) -> RabbitStreamSink:
        to = f"rabbitmq-stream://localhost:{self.server.stream_port}"
        return RabbitStreamSink(SinkOptions(self.name, to, stream, options))

    def queue(self, **options: Any) -> RabbitQueueSink:
        to = f"rabbitmq://localhost:{self.server.port}"
        return RabbitQueueSink(SinkOptions(self.name, to, "one", options))

    async def positions(self, count: int) -> list[str]:
        found = await stream_messages(self.server, self.target, lambda some: len(some) >= count)
        return [properties(one)["headrace-position"] for one in found]


@pytest.fixture
def place(rabbitmq: RabbitServer, names: Names) -> Place:
    return Place(rabbitmq, names)


async def test_a_stream_has_each_record_with_its_key_and_position(place: Place) -> None:
    sink = place.stream()
    assert await sink.open() == {}
    one = transaction(10, ("INSERT", {"id": 7}), ("DELETE", {"id": 7}), router=place.router)
    await sink.write([one])
    await sink.commit(marks(one))
    await sink.close()
    found = await stream_messages(place.server, place.target, lambda some: len(some) >= 2)
    assert [properties(message)["headrace-operation"] for message in found] == ["INSERT", "DELETE"]
    assert properties(found[1])["headrace-key"] == "[7]"
    assert json.loads(body(found[1])) == one.records[1].event.payload
    again = place.stream()
    assert await again.open() == marks(one)
    await again.close()


async def test_what_is_sent_again_is_not_stored_again(place: Place) -> None:
    both = [inserts(10, 1, 2, 3, router=place.router), inserts(20, 4, router=place.router)]
    for _ in range(2):
        sink = place.stream()
        await sink.open()
        await sink.write(both)
        # As after a crash before the marks.
        await sink._publish()
        await sink.close()
    assert await place.positions(4) == ["10 0", "10 1", "10 2", "20 0"]


async def test_two_processes_at_the_same_time_store_each_record_once(place: Place) -> None:
    older, newer = place.stream(), place.stream()
    await older.open()
    await newer.open()
    many = [inserts(10 * one, *range(5), router=place.router) for one in range(1, 21)]
    for one in many:
        await older.write([one])
        await newer.write([one])
        await newer.commit(marks(one))
        await older.commit(marks(one))
    await older.close()
    await newer.close()
    assert await place.positions(100) == [
        f"{10 * one} {n}" for one in range(1, 21) for n in range(5)
    ]


async def test_another_change_stream_continues_with_the_next_number(place: Place) -> None:
    for stream, lsn in (("one", 1000), ("two", 10)):
        sink = place.stream(stream)
        await sink.open()
        await sink.write([inserts(lsn, 1, router=place.router)])
        await sink.commit(marks(inserts(lsn, 1)))
        await sink.close()
    assert await place.positions(2) == ["1000 0", "10 0"]


async def test_after_a_crash_records_are_left_out_by_their_id_in_any_order(place: Place) -> None:
    first = inserts(10, 1, 2, router=place.router)
    for more in ([inserts(20, 3, router=place.router), inserts(30, 4, router=place.router)], []):
        sink = place.stream()
        await sink.open()
        await sink.write([first] if more else [])
        await sink.commit(marks(first))
        await sink.write(more)
        await sink._publish()
        await sink.close()
    # Another configuration, or arrays that arrive in another order, give other records first.
    sink = place.stream()
    assert await sink.open() == marks(first)
    mixed = [inserts(lsn, 1, router=place.router) for lsn in (25, 30, 20, 35)]
    await sink.write(mixed[:2])
    # Watermarks between records that are stored already.
    await sink.commit(marks(mixed[1]))
    await sink.close()
    sink = place.stream()
    await sink.open()
    await sink.write(mixed[2:])
    await sink.commit(marks(mixed[-1]))
    await sink.close()
    assert await place.positions(6) == ["10 0", "10 1", "20 0", "30 0", "25 0", "35 0"]


async def test_a_reset_sends_everything_again(place: Place) -> None:
    one = inserts(10, 1, router=place.router)
    for _ in range(2):
        sink = place.stream()
        await sink.open()
        await sink.commit({})
        await sink.write([one])
        await sink.commit(marks(one))
        await sink.close()
    assert await place.positions(2) == ["10 0", "10 0"]


async def test_a_record_larger_than_a_frame_is_refused(place: Place) -> None:
    sink = place.stream()
    await sink.open()
    with pytest.raises(RefusedError, match="do not fit into a frame"):
        await sink.write([inserts(10, 1, note="x" * 1_048_576)])
    await sink.close()


async def test_a_missing_stream_or_queue_is_refused_if_none_may_be_created(place: Place) -> None:
    stream = place.stream(create=False)
    with pytest.raises(SinkError, match="has no stream"):
        await stream.open()
    await stream.close()
    queue = place.queue(create=False)
    await queue.open()
    with pytest.raises(SinkError, match="create = true"):
        await queue.write([inserts(10, 1, router=place.router)])
    await queue.close()


async def test_a_queue_has_persistent_messages_in_order(place: Place) -> None:
    sink = place.queue()
    assert await sink.open() == {}
    await sink.write([inserts(10, *range(700), router=place.router)])
    await sink.close()
    found = await queue_messages(place.server, place.target)
    assert [json.loads(message.body)["data"]["id"] for message in found] == list(range(700))
    first = found[0].header.properties
    assert (first.message_id, first.delivery_mode) == ("a-0", 2)
    assert first.headers["headrace-position"] == "10 0"
    assert first.headers["headrace-key"] == "[0]"


async def test_an_exchange_that_no_queue_is_bound_to_loses_nothing(place: Place) -> None:
    connection = await aiormq.connect(f"amqp://guest:guest@127.0.0.1:{place.server.port}/")
    channel = await connection.channel()
    await channel.exchange_declare(place.name, exchange_type="topic")
    sink = place.queue(exchange=place.name)
    await sink.open()
    with pytest.raises(RefusedError, match="no queue is bound"):
        await sink.write([inserts(10, 1, router=place.router)])
    await channel.queue_declare(place.target, durable=True)
    await channel.queue_bind(place.target, place.name, routing_key="#")
    await sink.write([inserts(10, 1, router=place.router)])
    await sink.close()
    assert len(await queue_messages(place.server, place.target)) == 1
    await connection.close()


@pytest.mark.parametrize("form", ["stream", "queue"])
async def test_a_wrong_password_is_an_error_with_a_remedy(place: Place, form: str) -> None:
    sink = getattr(place, form)(password="wrong")
    with pytest.raises(SinkError, match="Check username, password") as refused:
        await sink.open()
    assert not refused.value.retry
    await sink.close()


async def test_tls(session_servers: SessionServers, names: Names, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = session_servers.new(
        "rabbitmq", lambda folder: RabbitServer(folder, pair=authority.server())
    )
    await server.start()
    place = Place(server, names)
    ca_file = str(authority.certificate)
    one = inserts(10, 1, router=place.router)
    stream = RabbitStreamSink(
        SinkOptions(
            place.name,
            f"rabbitmq-stream://localhost:{server.stream_tls_port}",
            "one",
            {"ca_file": ca_file},
        )
    )
    await stream.open()
    await stream.write([one])
    await stream.commit(marks(one))
    await stream.close()
    assert await place.positions(1) == ["10 0"]
    queue_name = Router(destination=lambda _: "queue")
    to = f"rabbitmq://localhost:{server.tls_port}"
    queue = RabbitQueueSink(SinkOptions(place.name, to, "one", {"ca_file": ca_file}))
    await queue.open()
    await queue.write([inserts(10, 1, router=queue_name)])
    await queue.close()
    assert len(await queue_messages(server, "queue")) == 1
    for kind, address in ((RabbitStreamSink, stream._where), (RabbitQueueSink, queue._where)):
        untrusted = kind(
            SinkOptions(place.name, f"rabbitmq://localhost:{address.port}", "one", {"tls": True})
        )
        with pytest.raises(SinkError, match=r"(?i)certificate"):
            await untrusted.open()
        await untrusted.close()
    session_servers.discard(server)


def test_credentials_are_no_part_of_the_address() -> None:
    with pytest.raises(SettingError, match="username and password are options"):
        RabbitQueueSink(SinkOptions("shop", "rabbitmq://a:b@host"))
