"""The sinks of one database: files, Kafka, Valkey, a RabbitMQ stream, a webhook, OpenSearch and
databases, each in a process that starts again when it is killed; and the content of their targets,
read by the clients of others.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from valkey.asyncio import Valkey

from headrace.testing.database import Database
from headrace.testing.kafka import KafkaServer
from headrace.testing.opensearch import OpenSearchServer
from headrace.testing.rabbitmq import RabbitServer
from headrace.testing.valkey import ValkeyServer
from tests.support.database_copies import DatabaseCopy
from tests.support.kafka_reading import records
from tests.support.opensearch_reading import Reader
from tests.support.rabbitmq_reading import body, stream_messages
from tests.support.sinks import SinkProcess, events_of, sink_process
from tests.support.webhook_receiver import SECRET, Receiver

Row = tuple[tuple[str, str], ...]
START_AGAIN_S = 0.2
FOLLOW_S = 300.0
EVENTS = ("files", "kafka", "rabbitmq", "webhook")
ALL = ("files", "kafka", "valkey", "rabbitmq", "webhook", "opensearch")
WEBHOOK_OPTIONS = (
    '{secret = "env:WEBHOOK_SECRET", allow_networks = ["127.0.0.0/8"], allow_http = true, '
    "timeout_s = 5.0}"
)
_ROWS = """
local found = {}
for _, member in ipairs(redis.call('SMEMBERS', KEYS[1])) do
  found[#found + 1] = redis.call('HGETALL', KEYS[1] .. ':' .. member)
end
return found
"""


@dataclass
class Targets:
    """The servers and the folder that the sinks write to; those that are None have no sink."""

    folder: Path
    receiver: Receiver
    valkey: ValkeyServer
    kafka: KafkaServer | None = None
    rabbitmq: RabbitServer | None = None
    opensearch: OpenSearchServer | None = None
    databases: Sequence[DatabaseCopy] = ()
    # The webhook's address, if it is not the receiver's.
    webhook_port: int = 0

    @property
    def names(self) -> list[str]:
        servers = {
            "kafka": self.kafka,
            "rabbitmq": self.rabbitmq,
            "opensearch": self.opensearch,
        }
        there = [name for name in ALL if servers.get(name, self) is not None]
        return [*there, *(copy.kind for copy in self.databases)]

    @property
    def with_events(self) -> list[str]:
        """The sinks whose targets have every event, not only its effect."""
        return [name for name in self.names if name in EVENTS]

    def configuration(self) -> str:
        """The file of all sinks."""
        options = {
            "files": (self.folder.as_uri(), "{}"),
            "valkey": (f"valkey://127.0.0.1:{self.valkey.port}", "{}"),
            "webhook": (
                f"http://127.0.0.1:{self.webhook_port or self.receiver.port}/hook",
                WEBHOOK_OPTIONS,
            ),
        }
        if self.kafka is not None:
            options["kafka"] = (f"kafka://{self.kafka.bootstrap}", "{partitions = 1}")
        if self.rabbitmq is not None:
            options["rabbitmq"] = (f"rabbitmq-stream://localhost:{self.rabbitmq.stream_port}", "{}")
        if self.opensearch is not None:
            options["opensearch"] = (f"opensearch://127.0.0.1:{self.opensearch.port}", "{}")
        parts = [f'[[sink]]\nname = "{copy.kind}"\nto = "{copy.to}"\n' for copy in self.databases]
        for name, (to, given) in options.items():
            destination = "changes" if name in EVENTS else "{schema}.{table}"
            parts.append(
                f'[[sink]]\nname = "{name}"\nto = "{to}"\ndestination = "{destination}"\n'
                f"batch = {{events = 200, wait_ms = 50}}\noptions = {given}\n"
            )
        return "\n".join(parts)

    async def events(self, name: str) -> list[dict[str, Any]]:
        """The events that one of the targets has, in its order; a webhook's without repeats."""
        match name:
            case "files":
                return await asyncio.to_thread(events_of, self.folder)
            case "kafka":
                assert self.kafka is not None
                try:
                    found = await asyncio.to_thread(records, self.kafka.bootstrap, "changes")
                except KeyError:
                    return []
                return [json.loads(one.value() or b"") for one in found]
            case "rabbitmq":
                assert self.rabbitmq is not None
                messages = await stream_messages(self.rabbitmq, "changes", lambda _: True)
                return [json.loads(body(one)) for one in messages]
        first: dict[str, dict[str, Any]] = {}
        for event, headers in self.receiver.accepted:
            first.setdefault(headers["webhook-id"], event)
        # Lanes keep the order of each key; the position orders the rest.
        return sorted(first.values(), key=lambda one: (one["tx"]["lsn"], one["tx"]["seq"]))

    async def rows(self, name: str, table: str) -> set[Row]:
        """The rows of a table that a target has."""
        if name == "valkey":
            async with Valkey(port=self.valkey.port, socket_timeout=60) as client:
                script: Any = client.eval(_ROWS, 1, f"{{valkey}}:public.{table}")
                return {_hash_row(one) for one in await script}
        if name == "opensearch":
            assert self.opensearch is not None
            documents = Reader(self.opensearch).every
            found = await asyncio.to_thread(documents, f"public.{table}")
            return {_row(one.items()) for one in found}
        for copy in self.databases:
            if copy.kind == name:
                columns = await copy.columns(table)
                rows = await copy.rows(table, columns) if columns else []
                return {_row(zip(columns, one, strict=True)) for one in rows}
        return folded(await self.events(name), table)


def _row(fields: Iterable[tuple[str, Any]]) -> Row:
    """The fields that are not NULL, as texts."""
    return tuple(sorted((name, str(value)) for name, value in fields if value is not None))


def _hash_row(fields: Sequence[bytes]) -> Row:
    texts = [field.decode() for field in fields]
    return tuple(sorted(zip(texts[::2], texts[1::2], strict=True)))


def folded(events: Iterable[Mapping[str, Any]], table: str) -> set[Row]:
    """The rows that the events of one table leave, as docs/contract.md says; NULL has no field."""
    rows: dict[str, dict[str, Any]] = {}
    version = 0
    for event in events:
        if event["table"] != table:
            continue
        match event["operation"]:
            case "INSERT" | "UPDATE":
                rows.setdefault(str(event["data"]["id"]), {}).update(event["data"])
            case "DELETE":
                del rows[str(event["data"]["id"])]
            case "SCHEMA" if event["version"] != version:
                version = event["version"]
                assert not event.get("resync"), event
                for change in event["changes"]:
                    _change(rows.values(), change)
    return {_row(row.items()) for row in rows.values()}


def _change(rows: Iterable[dict[str, Any]], change: Mapping[str, Any]) -> None:
    for row in rows:
        if change["change"] == "column_dropped":
            row.pop(change["column"], None)
        elif change["change"] == "column_added" and "filled" in change:
            row.setdefault(change["column"], change["filled"])


async def source_rows(database: Database, table: str) -> set[Row]:
    """The same of the source, by SQL."""
    found = await database.fetch(f"SELECT to_jsonb(t)::text AS row FROM {table} t")
    rows = [json.loads(one["row"]) for one in found]
    return {_row(row.items()) for row in rows}


@dataclass
class Keeper:
    """Runs each sink as a process, and starts it again when it has ended."""

    environment: Mapping[str, str]
    config: Path
    names: Sequence[str]
    running: dict[str, SinkProcess] = field(default_factory=dict)
    kills: dict[str, int] = field(default_factory=dict)
    # Sinks that stay away.
    away: set[str] = field(default_factory=set)

    @contextlib.asynccontextmanager
    async def keeping(self) -> AsyncIterator[None]:
        """Keep all of them running within the block."""
        tasks = [asyncio.create_task(self._keep(name), name=f"keep {name}") for name in self.names]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep(self, name: str) -> None:
        while True:
            while name in self.away:  # noqa: ASYNC110  # set by the test, from time to time
                await asyncio.sleep(START_AGAIN_S)
            async with sink_process(
                self.environment, self.config, name, WEBHOOK_SECRET=SECRET
            ) as one:
                self.running[name] = one
                status = await one.exit_code(1e9)
                assert status == -signal.SIGKILL, one.output[-3000:]
            await asyncio.sleep(START_AGAIN_S)

    def kill(self, name: str) -> None:
        """Kill one's process."""
        if name in self.running and self.running[name].running:
            self.running[name].kill()
            self.kills[name] = self.kills.get(name, 0) + 1

    async def kill_in_turn(self, until: Callable[[], bool], chance: random.Random) -> None:
        """Kill one after the other, each while it works, and each at least once."""
        while not until() or len(self.kills) < len(self.names):
            for name in self.names:
                await self._follows(name)
                await asyncio.sleep(chance.uniform(0.1, 2.0))
                self.kill(name)

    async def _follows(self, name: str) -> None:
        """Wait until its present process reads the stream: one that starts can't lose anything."""
        try:
            async with asyncio.timeout(FOLLOW_S):
                while name not in self.running or not self.running[name].follows:  # noqa: ASYNC110  # another process
                    await asyncio.sleep(0.05)
        except TimeoutError:
            output = self.running[name].output if name in self.running else "it never ran"
            raise AssertionError(f"{name} does not follow: {output[-3000:]}") from None
