"""`headrace sinks test`: whether the target can be reached, what a database would do with each
table, and the records that a sink would write for the stream's last events.

Never writes to the target, and never moves a sink's position.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

from headrace.cli.session import nats
from headrace.cli.sinks.look import shown, tables_described
from headrace.consumer import MemoryWatermarks, Subscription, follow
from headrace.contract.subjects_and_ids import split_table_token
from headrace.errors import HeadraceError, SettingError
from headrace.mirror.checking import REFUSED
from headrace.mirror.event_steps import shape
from headrace.mirror.published import Published
from headrace.settings import Settings
from headrace.sinks.building import router_of
from headrace.sinks.configuration import SinkConfiguration
from headrace.sinks.operating import promise_text
from headrace.sinks.targets import is_database
from headrace.sinks.trying import tried, tried_with

WAIT_S = 2.0


class TablesRefusedError(HeadraceError):
    """A database would not accept some of a sink's tables."""

    remedy = (
        "Do what the column `why` says for each of them, or leave them out of the sink's `tables`."
    )


async def run(settings: Settings, sink: SinkConfiguration, last: int, *, as_json: bool) -> None:
    """Try the connection; then route the last events, and show the records."""
    if is_database(sink.address(os.environ)):
        if last:
            raise SettingError(
                f"--last shows records, and {sink.name} keeps tables in a database",
                remedy="Leave out --last.",
            )
        await _database(settings, sink, as_json=as_json)
        return
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
        # Without a durable name, and with marks in memory: the sink's own position doesn't move.
        subscription = Subscription(streams.cdc, start_seq=start, state_bucket=streams.state)
        async with follow(client, subscription, MemoryWatermarks()) as consumer:
            while consumer.seen_seq < end:
                events = await consumer.take(WAIT_S)
                # The last message may have been discarded meanwhile, and would be awaited forever.
                if not events:
                    break
                for event in events:
                    if event.source != settings.source.slot:
                        continue
                    try:
                        records = list(router.records(event))
                    # A record that can't be made is a result of the test, and no end of it.
                    except HeadraceError as error:
                        rows.append(_row(str(event.payload.get("msg_id")), "", None, str(error)))
                        continue
                    rows += [
                        _row(one.id, one.destination, one.key, one.event.operation)
                        for one in records
                    ]
    shown(rows, as_json=as_json)


async def _database(settings: Settings, sink: SinkConfiguration, *, as_json: bool) -> None:
    """Show what the target would do with each of the sink's tables; raise if it refuses one."""
    async with nats(settings, "sinks") as (client, _):
        known = Published(client, settings.streams.schemas)
        tokens = await known.tokens(lambda token: sink.takes(*split_table_token(token)))
        described = await tables_described(client.jetstream(), settings, tokens)
    found = await tried_with(sink, os.environ, map(shape, described.values()))
    row = {"sink": sink.name, "promise": promise_text(sink), "outcome": found.server}
    tables = [asdict(table) for table in sorted(found.tables, key=lambda one: one.source)]
    if as_json:
        shown([{**row, "tables": tables}], as_json=True)
    else:
        shown([row], as_json=False)
        shown(tables, as_json=False)
    refused = [table.source for table in found.tables if table.outcome == REFUSED]
    if refused:
        raise TablesRefusedError(f"the target of {sink.name} refuses {', '.join(refused)}")


def _row(record_id: str, destination: str, key: bytes | None, outcome: str) -> dict[str, Any]:
    return {
        "id": record_id,
        "destination": destination,
        "key": None if key is None else key.decode(),
        "operation": outcome,
    }
