"""Sinks compared with their clients without a sink, on the same server, in turns: Kafka with an
idempotent producer without transactions, Valkey with a pipeline of the same writes.

The transactions exist before, so the figures contain neither decoding nor routing.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from valkey.asyncio import Valkey

from headrace.consumer import Watermark
from headrace.sinks.kafka import KafkaSink
from headrace.sinks.port import Sink, SinkOptions
from headrace.sinks.routing import RoutedTransaction, Router
from headrace.sinks.valkey import ValkeySink
from headrace.testing.kafka import KafkaServer
from headrace.testing.valkey import ValkeyServer
from tests.bench.result import Figure, against, plain
from tests.support.sink_records import inserts

# As a session commits by default.
EVENTS = 2000
ROUNDS = 5
# Of a PostgreSQL transaction.
ROWS = 10
TOPIC, PARTITIONS = "events", 3
NOTE = "x" * 40


async def measure(rows: int) -> list[Figure]:
    """Both sinks, with this many events in each round."""
    batches = await asyncio.to_thread(_batches, rows // 10)
    with tempfile.TemporaryDirectory() as folder:
        async with KafkaServer(Path(folder) / "kafka") as kafka:
            found = await _kafka(kafka, batches)
        async with ValkeyServer(Path(folder) / "valkey") as valkey:
            found += await _valkey(valkey, batches)
    return found


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
    await _through(sink, batches[:2])
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

    rate, limit, cpu_us = await _beside(lambda: _through(sink, batches), bare, batches)
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

        async def through(sink: Sink = sink) -> None:
            await _through(sink, batches)

        rate, limit, cpu_us = await _beside(through, bare, batches)
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


async def _through(sink: Sink, batches: Sequence[Sequence[RoutedTransaction]]) -> None:
    for batch in batches:
        await sink.write(batch)
        last = batch[-1]
        await sink.commit({last.source: Watermark(last.position, last.stream_seq)})


async def _beside(
    through: Callable[[], Awaitable[None]],
    bare: Callable[[], Awaitable[None]],
    batches: Sequence[Sequence[RoutedTransaction]],
) -> tuple[float, float, float]:
    """The medians of both rates, measured in turns, and the sink's processor time for an event."""
    events = sum(len(one.records) for batch in batches for one in batch)
    rates: dict[str, list[float]] = {"through": [], "bare": []}
    cpu_us = []
    for _ in range(ROUNDS):
        for name, work in (("bare", bare), ("through", through)):
            began, busy = time.perf_counter(), time.process_time()
            await work()
            rates[name].append(events / (time.perf_counter() - began))
            if name == "through":
                cpu_us.append((time.process_time() - busy) / events * 1e6)
    medians = {name: statistics.median(found) for name, found in rates.items()}
    return medians["through"], medians["bare"], statistics.median(cpu_us)
