"""Chooses how messages are published: fast ingest, a chain, or atomic batches."""

from __future__ import annotations

from functools import partial

from nats.aio.client import Client

from headrace import log as logs
from headrace.jetstream.publishing.fast import (
    FastIngestUnsupportedError,
    FastPipe,
    offers_fast_ingest,
)
from headrace.jetstream.publishing.pipe import Pipe, Window
from headrace.jetstream.publishing.stream_tail import StreamTail
from headrace.jetstream.publishing.turns import Turns
from headrace.metrics.counters import Counters, one_of
from headrace.metrics.figure import INGEST_MODES
from headrace.publisher.atomic_pipe import AtomicPipe
from headrace.publisher.chain_pipe import ChainPipe
from headrace.publisher.tally import tally
from headrace.settings import DeliveryMode, IngestMode, Settings

log = logs.logger("publisher")


async def chosen_pipe(
    client: Client, settings: Settings, stats: Counters, tail: StreamTail
) -> Pipe:
    """Groups for whole transactions; else the fast way, if it is offered and wanted."""
    limits = settings.publishing
    delivery = settings.delivery
    # Counted when JetStream has acknowledged them, so that no event counts twice after a restart.
    stored = partial(tally, stats)
    if delivery.mode is DeliveryMode.TRANSACTION:
        stats.set_series("ingest_mode", one_of(INGEST_MODES, "atomic"))
        window = Window(
            delivery.atomic_messages_max, delivery.atomic_bytes_max, limits.ack_timeout_s
        )
        return AtomicPipe(client, tail, stats, window, stored, delivery.msg_id_header)
    fast = await _is_fast(client, settings)
    mode = "fast" if fast else "chain"
    stats.set_series("ingest_mode", one_of(INGEST_MODES, mode))
    log.info("ingest_chosen", kind=mode)
    window = Window(limits.window_messages_max, limits.window_bytes_max, limits.ack_timeout_s)
    if not fast:
        # A chain names the id of its predecessor, which the server compares with those in its own
        # header.
        return ChainPipe(client, tail, stats, window, stored)
    # Only batches need turns: a chain that another source breaks repeats a few messages.
    turns = Turns(client, settings.streams.cdc, settings.source.slot, stats)
    return FastPipe(client, tail, stats, window, turns, stored, delivery.msg_id_header)


async def _is_fast(client: Client, settings: Settings) -> bool:
    wanted = settings.delivery.ingest
    stream = settings.streams.cdc
    if wanted is IngestMode.CHAIN:
        return False
    offered = await offers_fast_ingest(client.jetstream(), client, stream)
    # Falling back silently would hide that the server is not the one that was planned for.
    if wanted is IngestMode.FAST and not offered:
        raise FastIngestUnsupportedError(
            f"the NATS server, or its stream {stream}, doesn't offer fast ingest"
        )
    return offered
