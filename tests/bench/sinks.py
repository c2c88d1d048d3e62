"""Sinks compared with their clients without a sink, on the same server, in turns: Kafka with an
idempotent producer without transactions, Valkey with a pipeline of the same writes, and those of
`tests.bench.sink_stores`.

The transactions exist before, so the figures contain neither decoding nor routing.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from valkey.asyncio import Valkey

from headrace.sinks.kafka import KafkaSink
from headrace.sinks.port import Sink, SinkOptions
from headrace.sinks.routing import RoutedTransaction, Router
from headrace.sinks.valkey import ValkeySink
from headrace.testing.kafka import KafkaServer
from headrace.testing.valkey import ValkeyServer
from tests.bench import sink_stores
from tests.bench.in_turns import beside, events_in, through
from tests.bench.result import Figure, against, plain
from tests.support.sink_records import inserts

# As a session commits by default.
EVENTS = 2000
# Of a PostgreSQL transaction.
ROWS = 10
TOPIC, PARTITIONS = "events", 3
NOTE = "x" * 40


async def measure(rows: int) -> list[Figure]:
    """All of them, with a tenth as many events in each round."""
    batches = await asyncio.to_thread(_batches, rows // 10)
    with tempfile.TemporaryDirectory() as folder:
        async with KafkaServer(Path(folder) / "kafka") as kafka:
            found = await _kafka(kafka, batches)
        async with ValkeyServer(Path(folder) / "valkey") as valkey:
            found += await _valkey(valkey, batches)
    return found + await sink_stores.measure(rows // 10)


def _batches(events: int) -> list[list[RoutedTransaction]]:
    router = Router(destination=lambda _: TOPIC)
    made = [
        inserts(lsn * ROWS, *range(lsn * ROWS, lsn * ROWS + ROWS), note=NOTE, router=router)
        for lsn in range(1, events // ROWS + 1)
    ]
    size = EVENTS // ROWS
    return [made[start : start + size] for start in range(0, len(made), size)]


async def _kafka(
    kafka: KafkaServer, batches: Sequence[Sequence[RoutedTransaction]]
) -> list[Figure]:
    options = {"partitions": PARTITIONS}
    sink = KafkaSink(SinkOptions("bench", f"kafka://{kafka.bootstrap}", "", options))
    await sink.open()
    await through(sink, batches[:2])
    producer = Producer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "enable.idempotence": True,
            "compression.type": "zstd",
            "partitioner": "murmur2_random",
        }
    )

    async def bare() -> None:
        await asyncio.to_thread(_produce, producer, batches)

    rate, limit, cpu_us = await beside(lambda: through(sink, batches), bare, events_in(batches))
    await sink.close()
    return [
        against("Kafka sink", rate, "events/s", limit, "idempotent producer", 0.5),
        plain("Kafka sink, CPU for each event", cpu_us, "µs", 10),
    ]


def _produce(producer: Producer, batches: Sequence[Sequence[RoutedTransaction]]) -> None:
    for batch in batches:
        for transaction in batch:
            for record in transaction.records:
                while True:
                    try:
                        producer.produce(TOPIC, record.value, record.key)
                        break
                    except BufferError:
                        producer.poll(0.05)
        producer.poll(0)
    assert producer.flush(60) == 0


async def _valkey(
    valkey: ValkeyServer, batches: Sequence[Sequence[RoutedTransaction]]
) -> list[Figure]:
    found = []
    for form in ("state", "streams"):
        options = SinkOptions(form, f"valkey://127.0.0.1:{valkey.port}", "", {"form": form})
        sink = ValkeySink(options)
        await sink.open()
        client = Valkey(port=valkey.port)

        async def bare(client: Valkey = client, form: str = form) -> None:
            await _pipelines(client, form, batches)

        async def ours(sink: Sink = sink) -> None:
            await through(sink, batches)

        rate, limit, cpu_us = await beside(ours, bare, events_in(batches))
        found += [
            against(f"Valkey sink, {form}", rate, "events/s", limit, "bare pipeline", 0.5),
            plain(f"Valkey sink, {form}, CPU for each event", cpu_us, "µs"),
        ]
        await client.aclose()
        await sink.close()
    return found


async def _pipelines(
    client: Valkey, form: str, batches: Sequence[Sequence[RoutedTransaction]]
) -> None:
    """The same writes, without a position."""
    for batch in batches:
        pipeline = client.pipeline(transaction=False)
        for transaction in batch:
            for record in transaction.records:
                if form == "streams":
                    fields: dict[Any, Any] = {
                        "value": record.value,
                        "key": record.key or b"",
                        **record.headers,
                    }
                    pipeline.xadd("bare-stream", fields)
                else:
                    pipeline.hset(
                        f"bare:{record.event.data['id']}", mapping=dict(record.event.data)
                    )
                    pipeline.sadd("bare", record.event.data["id"])
        await pipeline.execute()
