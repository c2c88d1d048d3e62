"""`check` connects and logs in, writes nothing, and leaves a running process alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from aiormq.exceptions import ChannelNotFoundEntity
from confluent_kafka.admin import AdminClient
from valkey import Valkey

from headrace.embedded.ports import free_port
from headrace.sinks import SinkOptions
from headrace.sinks.files import FilesSink
from headrace.sinks.kafka import KafkaSink
from headrace.sinks.opensearch import OpenSearchSink
from headrace.sinks.port import CheckableSink, SinkAwayError, SinkError
from headrace.sinks.rabbitmq_queue import RabbitQueueSink
from headrace.sinks.rabbitmq_streams import RabbitStreamSink
from headrace.sinks.routing import Router
from headrace.sinks.valkey import ValkeySink
from headrace.sinks.webhook import WebhookSink
from headrace.testing.kafka import KafkaServer
from headrace.testing.names import Names
from headrace.testing.opensearch import OpenSearchServer
from headrace.testing.rabbitmq import RabbitServer
from headrace.testing.valkey import ValkeyServer
from tests.support.opensearch_reading import Reader
from tests.support.rabbitmq_reading import queue_messages
from tests.support.sink_records import inserts, marks
from tests.support.webhook_receiver import SECRET, Receiver, serve

LOCAL = {"secret": SECRET, "allow_networks": ["127.0.0.0/8"], "allow_http": True}


def names_in(folder: Path) -> list[str]:
    return [one.name for one in folder.iterdir()]


async def undisturbed(running: Any, checking: CheckableSink, target: str) -> None:
    """A session commits before and after a check."""
    router = Router(destination=lambda _: target)
    await running.open()
    for lsn in (10, 20):
        assert await checking.check()
        one = inserts(lsn, lsn, router=router)
        await running.write([one])
        await running.commit(marks(one))
    await running.close()
    await checking.close()  # type: ignore[attr-defined]


async def test_a_check_of_kafka_creates_no_topic_and_fences_nobody(
    kafka: KafkaServer, names: Names
) -> None:
    name, topic = names.other("sink"), names.other("topic")
    options = SinkOptions(name, f"kafka://{kafka.bootstrap}")
    checking = KafkaSink(options)
    await checking.check()
    topics = AdminClient({"bootstrap.servers": kafka.bootstrap}).list_topics(timeout=20).topics
    assert [one for one in topics if name in one or topic in one] == []
    await undisturbed(KafkaSink(options), checking, topic)


async def test_a_check_of_valkey_writes_no_key_and_fences_nobody(
    valkey: ValkeyServer, names: Names
) -> None:
    name = names.other("sink")
    options = SinkOptions(name, f"valkey://127.0.0.1:{valkey.port}")
    checking = ValkeySink(options)
    await checking.check()
    with Valkey(port=valkey.port) as client:
        assert list(client.scan_iter(f"*{name}*")) == []
    await undisturbed(ValkeySink(options), checking, "users")


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_check_of_rabbitmq_creates_nothing(rabbitmq: RabbitServer, names: Names) -> None:
    name, queue = names.other("sink"), names.other("queue")
    to = SinkOptions(name, f"rabbitmq://127.0.0.1:{rabbitmq.port}")
    checking = RabbitQueueSink(to)
    await checking.check()
    with pytest.raises(ChannelNotFoundEntity):
        await queue_messages(rabbitmq, queue)
    await undisturbed(RabbitQueueSink(to), checking, queue)
    stream = SinkOptions(name, f"rabbitmq-stream://localhost:{rabbitmq.stream_port}")
    await undisturbed(RabbitStreamSink(stream), RabbitStreamSink(stream), names.other("stream"))
    for kind, port in ((RabbitQueueSink, rabbitmq.port), (RabbitStreamSink, rabbitmq.stream_port)):
        scheme = "rabbitmq" if kind is RabbitQueueSink else "rabbitmq-stream"
        wrong: Any = kind(
            SinkOptions(name, f"{scheme}://localhost:{port}", options={"password": "wrong"})
        )
        with pytest.raises(SinkError, match="Check username, password"):
            await wrong.check()
        await wrong.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_check_of_opensearch_creates_nothing(
    opensearch: OpenSearchServer, names: Names
) -> None:
    name = names.other("sink").lower()
    options = SinkOptions(name, f"opensearch://127.0.0.1:{opensearch.port}")
    checking = OpenSearchSink(options)
    assert await checking.check() == "opensearch 3.8.0 accepts the login"
    assert Reader(opensearch).indices(f"*{name}*") == []
    await undisturbed(OpenSearchSink(options), checking, name)


async def test_a_check_of_files_creates_none(tmp_path: Path) -> None:
    options = SinkOptions("files", tmp_path.as_uri())
    checking = FilesSink(options)
    await checking.check()
    assert names_in(tmp_path) == []
    await undisturbed(FilesSink(options), checking, "users")
    missing = FilesSink(SinkOptions("files", (tmp_path / "missing").as_uri()))
    assert "does not exist yet" in await missing.check()
    assert "missing" not in names_in(tmp_path)


async def test_a_check_of_a_webhook_sends_no_request() -> None:
    receiver = Receiver()
    runner = await serve(receiver)
    options = SinkOptions("shop", f"http://127.0.0.1:{receiver.port}/hook", options=LOCAL)
    checking = WebhookSink(options)
    await checking.check()
    assert receiver.requests == []
    await runner.cleanup()
    with pytest.raises(SinkAwayError, match="can't be reached"):
        await checking.check()
    private = WebhookSink(SinkOptions("shop", "https://127.0.0.1", options={"secret": SECRET}))
    with pytest.raises(SinkError, match="allow_networks"):
        await private.check()


@pytest.mark.parametrize(
    ("kind", "scheme"),
    [
        (OpenSearchSink, "opensearch"),
        (ValkeySink, "valkey"),
        (RabbitQueueSink, "rabbitmq"),
        (RabbitStreamSink, "rabbitmq-stream"),
    ],
)
async def test_a_check_of_a_server_that_is_away_says_so(kind: Any, scheme: str) -> None:
    sink = kind(SinkOptions("shop", f"{scheme}://127.0.0.1:{free_port()}"))
    with pytest.raises(SinkAwayError, match=r"127\.0\.0\.1"):
        await sink.check()
    await sink.close()
