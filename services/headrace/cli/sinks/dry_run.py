"""`headrace sinks test`: whether the target can be reached, and the records that a sink would write
for the stream's last events.

Never writes to the target, and never moves a sink's position.
"""

from __future__ import annotations

import os
from typing import Any

from headrace.cli.session import nats
from headrace.cli.sinks.look import shown
from headrace.consumer import MemoryWatermarks, Subscription, follow
from headrace.errors import HeadraceError
from headrace.settings import Settings
from headrace.sinks.building import router_of
from headrace.sinks.configuration import SinkConfiguration
from headrace.sinks.operating import promise_text
from headrace.sinks.trying import tried

WAIT_S = 2.0


async def run(settings: Settings, sink: SinkConfiguration, last: int, *, as_json: bool) -> None:
    """Try the connection; then route the last events, and show the records."""
    outcome = await tried(sink, os.environ)
    if not last:
        row = {"sink": sink.name, "promise": promise_text(sink), "outcome": outcome}
        shown([row], as_json=as_json)
        return
    rows: list[dict[str, Any]] = []
    router = router_of(sink)
    streams = settings.streams
    async with nats(settings, "sinks") as (client, _):
        info = await client.jetstream().stream_info(streams.cdc)
        end = int(info.state.last_seq)
        start = max(int(info.state.first_seq), end - last + 1)
        subscription = Subscription(streams.cdc, start_seq=start, state_bucket=streams.state)
        async with follow(client, subscription, MemoryWatermarks()) as consumer:
            while consumer.seen_seq < end:
                events = await consumer.take(WAIT_S)
                if not events:
                    break
                for event in events:
                    if event.source != settings.source.slot:
                        continue
                    try:
                        records = list(router.records(event))
                    except HeadraceError as error:
                        rows.append(_row(str(event.payload.get("msg_id")), "", None, str(error)))
                        continue
                    rows += [
                        _row(one.id, one.destination, one.key, one.event.operation)
                        for one in records
                    ]
    shown(rows, as_json=as_json)


def _row(record_id: str, destination: str, key: bytes | None, outcome: str) -> dict[str, Any]:
    return {
        "id": record_id,
        "destination": destination,
        "key": None if key is None else key.decode(),
        "operation": outcome,
    }
