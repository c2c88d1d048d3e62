"""The conformance kit's claims, for each built-in sink that writes to a server."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from rstream.exceptions import ServerError
from valkey import Valkey

from headrace.embedded.ports import free_port
from headrace.embedded.server import EmbeddedServer
from headrace.sinks import Promise, SinkOptions
from headrace.sinks.kafka import KafkaSink
from headrace.sinks.opensearch import OpenSearchSink
from headrace.sinks.rabbitmq_queue import RabbitQueueSink
from headrace.sinks.rabbitmq_streams import RabbitStreamSink
from headrace.sinks.valkey import ValkeySink
from headrace.sinks.webhook import WebhookSink
from headrace.testing.kafka import KafkaServer
from headrace.testing.names import Names
from headrace.testing.opensearch import OpenSearchServer
from headrace.testing.rabbitmq import RabbitServer
from headrace.testing.servers import SessionServers
from headrace.testing.sinks import conformance
from headrace.testing.sinks.records import MARK
from headrace.testing.valkey import ValkeyServer
from tests.support.kafka_reading import header, records
from tests.support.opensearch_reading import Reader
from tests.support.rabbitmq_reading import IDLE_S, body, consumed, properties, stream_messages
from tests.support.webhook_receiver import SECRET, Receiver, serve

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
TOO_LARGE = 2 * 1024 * 1024


def all_claims(promise: Promise) -> list[str]:
    return [claim.name for claim in conformance.claims_of(promise)]


# A state has the rows that changes leave, and not the changes.
ONLY_CHANGES = {"order_within_a_key", "values_arrive", "every_operation_arrives"}


def folder_backup(server: EmbeddedServer, kept: Path) -> conformance.Backup:
    """Keeps a server's folder of data while the server is away."""
    data = server.folder / "data"

    async def save() -> None:
        await server.kill()
        shutil.copytree(data, kept)
        await server.start()

    async def restore() -> None:
        await server.kill()
        shutil.rmtree(data)
        shutil.move(kept, data)
        await server.start()

    return conformance.Backup(save, restore)


async def test_kafka_keeps_every_claim(session_servers: SessionServers, tmp_path: Path) -> None:
    listen = free_port()
    server = session_servers.new("kafka", lambda folder: KafkaServer(folder, proxy_port=listen))
    await server.start()
    options = SinkOptions("kit", f"kafka://{server.bootstrap}", "one", {"partitions": 1})

    def found() -> Mapping[str, bytes]:
        try:
            messages = records(server.bootstrap, "kit")
        except KeyError:
            # The topic does not exist yet.
            return {}
        ids = [header(one, "headrace-id") for one in messages]
        assert len(ids) == len(set(ids)), "no record is there twice"
        return {
            one: bytes(message.value() or b"") for one, message in zip(ids, messages, strict=True)
        }

    def at(port: int) -> KafkaSink:
        return KafkaSink(SinkOptions("kit", f"kafka://127.0.0.1:{port}", "one", {"partitions": 1}))

    checked = await conformance.check(
        lambda: KafkaSink(options),
        lambda: [*found()],
        values=found,
        process=conformance.Process(
            "kafka:", options, ("sink.half_written", "sink.half_committed")
        ),
        proxied=conformance.Proxied(server.behind_proxy_port, at, listen),
        backup=folder_backup(server, tmp_path / "kept"),
        refused_bytes=TOO_LARGE,
        destination="kit",
    )
    assert checked == all_claims(Promise.EXACTLY_ONCE)
    session_servers.discard(server)


def valkey_backup(client: Valkey, pattern: str) -> conformance.Backup:
    """Keeps the keys of one sink, by the server's own dump of each."""
    kept: dict[bytes, Any] = {}

    async def save() -> None:
        kept.update({key: client.dump(key) for key in client.scan_iter(pattern)})

    async def restore() -> None:
        client.delete(*client.scan_iter(pattern))
        for key, dump in kept.items():
            client.restore(key, 0, dump)

    return conformance.Backup(save, restore)


@pytest.fixture
def client(valkey: ValkeyServer) -> Iterator[Valkey]:
    with Valkey(port=valkey.port) as found:
        yield found


@pytest.mark.parametrize("form", ["streams", "state"])
async def test_valkey_keeps_every_claim(
    valkey: ValkeyServer, client: Valkey, names: Names, form: str
) -> None:
    name = names.other("sink")
    target = f"{{{name}}}:public.conformance"

    def at(port: int) -> ValkeySink:
        return ValkeySink(SinkOptions(name, f"valkey://127.0.0.1:{port}", "one", {"form": form}))

    def entries() -> dict[str, bytes]:
        found: Any = client.xrange(target)
        ids = [fields[b"headrace-id"].decode() for _, fields in found]
        assert len(ids) == len(set(ids)), "no record is there twice"
        return {one: fields[b"value"] for one, (_, fields) in zip(ids, found, strict=True)}

    def rows() -> list[str]:
        keys: Any = client.smembers(target)
        ordered = sorted(keys, key=int)
        notes: list[Any] = [client.hget(f"{target}:{key.decode()}", "note") for key in ordered]
        return [note.decode() for note in notes]

    options = SinkOptions(name, f"valkey://127.0.0.1:{valkey.port}", "one", {"form": form})
    changes = form == "streams"
    checked = await conformance.check(
        lambda: at(valkey.port),
        (lambda: [*entries()]) if changes else rows,
        values=entries if changes else None,
        process=conformance.Process(
            "valkey:", options, ("sink.half_written", "sink.half_committed")
        ),
        proxied=conformance.Proxied(valkey.port, at),
        backup=valkey_backup(client, f"{{{name}}}:*"),
    )
    missing = set(all_claims(Promise.EXACTLY_ONCE)) - set(checked)
    assert missing == (set() if changes else ONLY_CHANGES)


async def test_opensearch_keeps_every_claim(opensearch: OpenSearchServer, names: Names) -> None:
    name = names.other("sink").lower()
    reader = Reader(opensearch)

    def options(port: int) -> SinkOptions:
        return SinkOptions(name, f"opensearch://127.0.0.1:{port}", "one", {"replicas": 0})

    def notes() -> list[str]:
        rows = reader.rows(name).values()
        return [row["note"] for row in sorted(rows, key=lambda row: row["id"])]

    checked = await conformance.check(
        lambda: OpenSearchSink(options(opensearch.port)),
        notes,
        process=conformance.Process(
            "opensearch:", options(opensearch.port), ("sink.half_written", "sink.half_committed")
        ),
        proxied=conformance.Proxied(opensearch.port, lambda port: OpenSearchSink(options(port))),
        destination=name,
    )
    assert checked == all_claims(Promise.RIGHT_STATE)


def in_stream(server: RabbitServer, stream: str) -> list[tuple[str, bytes]]:
    """The records of a stream, by RabbitMQ's client."""
    try:
        found = asyncio.run(stream_messages(server, stream, lambda _: True))
    except (ServerError, OSError, ExceptionGroup):
        # It does not exist yet.
        return []
    return [(properties(one)["headrace-id"], body(one)) for one in found]


# rstream leaves the sockets of connections that the server has ended to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_rabbitmq_streams_keep_every_claim(
    session_servers: SessionServers, tmp_path: Path
) -> None:
    server = session_servers.new("rabbitmq", RabbitServer)
    await server.start()
    options = SinkOptions("kit", f"rabbitmq-stream://localhost:{server.stream_port}", "one")

    def at(port: int) -> RabbitStreamSink:
        to = f"rabbitmq-stream://127.0.0.1:{port}"
        return RabbitStreamSink(SinkOptions("kit", to, "one", {"load_balancer": True}))

    checked = await conformance.check(
        lambda: RabbitStreamSink(options),
        lambda: [one for one, _ in in_stream(server, "kit")],
        values=lambda: dict(in_stream(server, "kit")),
        process=conformance.Process("rabbitmq-stream:", options, ("sink.half_committed",)),
        proxied=conformance.Proxied(server.stream_port, at),
        backup=folder_backup(server, tmp_path / "kept"),
        refused_bytes=TOO_LARGE,
        destination="kit",
    )
    assert checked == all_claims(Promise.EXACTLY_ONCE)
    session_servers.discard(server)


# aiormq does not await its own tasks of a connection that was reset.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_rabbitmq_queues_keep_every_claim(rabbitmq: RabbitServer, names: Names) -> None:
    name = names.other("sink")
    queue = names.other("queue")

    def at(port: int) -> RabbitQueueSink:
        return RabbitQueueSink(SinkOptions(name, f"rabbitmq://127.0.0.1:{port}", "one"))

    options = SinkOptions(name, f"rabbitmq://127.0.0.1:{rabbitmq.port}", "one")
    async with consumed(rabbitmq, queue) as messages:

        def found() -> list[tuple[str, bytes]]:
            """The records of the consumer, once nothing more comes."""
            before = -1
            while before != len(messages):
                before = len(messages)
                time.sleep(IDLE_S)
            return [(one.header.properties.message_id, bytes(one.body)) for one in messages]

        checked = await conformance.check(
            lambda: at(rabbitmq.port),
            lambda: [one for one, _ in found()],
            values=lambda: dict(found()),
            process=conformance.Process("rabbitmq:", options, ("sink.half_written",)),
            proxied=conformance.Proxied(rabbitmq.port, at),
            destination=queue,
        )
    assert checked == all_claims(Promise.AT_LEAST_ONCE)


async def test_a_webhook_keeps_every_claim() -> None:
    receiver = Receiver()
    runner = await serve(receiver)
    given = {"secret": SECRET, "allow_networks": ["127.0.0.0/8"], "allow_http": True}

    def options(port: int) -> SinkOptions:
        return SinkOptions("kit", f"http://127.0.0.1:{port}/hook", "one", given)

    def ids() -> list[str]:
        found = (headers["headrace-id"] for _, headers in receiver.requests)
        return list(itertools.filterfalse(lambda one: MARK not in one, found))

    checked = await conformance.check(
        lambda: WebhookSink(options(receiver.port)),
        ids,
        values=lambda: dict(receiver.bodies),
        process=conformance.Process("http:", options(receiver.port), ("sink.half_written",)),
        proxied=conformance.Proxied(receiver.port, lambda port: WebhookSink(options(port))),
        refused_bytes=TOO_LARGE,
    )
    assert checked == all_claims(Promise.AT_LEAST_ONCE)
    await runner.cleanup()
