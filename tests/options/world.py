"""A suite with one combination of options, and all that can be attached to it: two mirrors, the
trail, the archive.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nats
from nats.js.api import StorageType, StreamConfig

from headrace.embedded.postgres_install import PostgresVersion
from headrace.postgres import ddl_trigger
from headrace.testing.database import Database, fresh_database
from headrace.testing.mirror_process import MirrorProcess
from headrace.testing.names import Names
from headrace.testing.servers import SessionServers
from headrace.testing.suite import Suite
from tests.options import script
from tests.options.covering import Combination, followed

# On a machine that does much else.
START_S = 120.0
SPARK_START_S = "300"
# An interval that no test waits for is its default; one that a test would wait for is short in some
# combinations only.
_VARIABLES: dict[str, dict[str, dict[str, str]]] = {
    "delivery": {
        value: {"HEADRACE_DELIVERY": value} for value in ("event", "transaction", "batch")
    },
    "archive": {"none": {}, "optional": {}, "required": {"HEADRACE_ARCHIVE_REQUIRED": "true"}},
    "encoding": {value: {"HEADRACE_ENCODING": value} for value in ("msgpack", "json")},
    "ingest": {value: {"HEADRACE_INGEST": value} for value in ("auto", "chain")},
    "msg_id": {"nats": {}, "headrace": {"HEADRACE_MSG_ID_HEADER": "Headrace-Msg-Id"}},
    "zstd_events": {"off": {}, "on": {"HEADRACE_ZSTD_EVENTS": "true"}},
    "zstd_snapshots": {"off": {}, "on": {"HEADRACE_ZSTD": "true"}},
    "arrays": {value: {"HEADRACE_ARRAYS": value} for value in ("literal", "list")},
    "json_values": {value: {"HEADRACE_JSON_VALUES": value} for value in ("native", "text")},
    "int8": {"number": {}, "string": {"HEADRACE_INT8_AS_STRING": "true"}},
    "compat": {"none": {}, "bridge": {"HEADRACE_COMPAT": "bridge"}},
    "exclude": {
        "none": {},
        "some": {
            "HEADRACE_EXCLUDE": script.EXCLUDED_TABLE,
            "HEADRACE_EXCLUDE_COLUMNS": script.EXCLUDED_COLUMN,
        },
    },
    "poison": {value: {"HEADRACE_POISON": value} for value in ("stop", "park")},
    "state_bucket": {"default": {}, "other": {"HEADRACE_STATE_BUCKET": "other_state"}},
    "retention": {value: {"HEADRACE_RETENTION": value} for value in ("relaxed", "strict")},
    # The shortest hides no double; JetStream's own shows what a wrong id would lose.
    "duplicate_window": {
        "shortest": {"HEADRACE_DEDUPE_WINDOW_S": "0.1"},
        "jetstream": {"HEADRACE_DEDUPE_WINDOW_S": "120"},
    },
    "progress": {"default": {}, "often": {"HEADRACE_PROGRESS_INTERVAL_S": "0.1"}},
    "catalog": {"default": {}, "often": {"HEADRACE_CATALOG_INTERVAL_S": "1"}},
    "postgres": {"18": {}, "16": {}},
    "sources": {"one": {}, "two": {}},
    "ddl_trigger": {"off": {}, "on": {}},
}


@dataclass
class World:
    """The running services, and the places where everything arrives."""

    combination: Combination
    source: Database
    mirrored: Database
    trail: Database
    folder: Path
    nats_url: str
    suites: dict[str, Suite]
    mirrors: dict[str, MirrorProcess]

    @property
    def sqlite(self) -> Path:
        return self.folder / "mirror.db"

    @property
    def archive(self) -> Path:
        return self.folder / "archive"

    @property
    def state_bucket(self) -> str:
        return "other_state" if self.combination["state_bucket"] == "other" else "headrace_state"

    @property
    def excluding(self) -> bool:
        return bool(self.combination["exclude"] == "some")

    @property
    def audited(self) -> bool:
        """The trail reads single events, with positions."""
        return bool(
            self.combination["delivery"] != "batch" and self.combination["compat"] == "none"
        )

    def logs(self) -> str:
        """The ends of all logs, for a message."""
        files = sorted(self.folder.rglob("*.log"))
        return "\n\n".join(f"== {file.name}\n{file.read_text()[-2500:]}" for file in files)


def settings(combination: Combination) -> dict[str, str]:
    """The environment that the options stand for."""
    found = {
        "HEADRACE_MESSAGE_PREFIXES": "note,_bemi",
        "HEADRACE_SPARK_START_TIMEOUT_S": SPARK_START_S,
    }
    for option, value in combination.items():
        found |= _VARIABLES[option][value]
    return found


@contextlib.asynccontextmanager
async def running(
    combination: Combination, session_servers: SessionServers, folder: Path
) -> AsyncIterator[World]:
    """Everything started; the tables exist, with rows that only a snapshot has."""
    version: PostgresVersion = 16 if combination["postgres"] == "16" else 18
    postgres, nats_server = session_servers.shared_postgres(version), session_servers.new_nats()
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(session_servers.discard, nats_server)
        await nats_server.start()
        source, mirrored, trail = [
            await stack.enter_async_context(fresh_database(postgres, Names.new().other(name)))
            for name in ("source", "mirrored", "trail")
        ]
        world = World(combination, source, mirrored, trail, folder, nats_server.url, {}, {})
        await _prepare(world)
        await _start(world, stack)
        yield world


async def _prepare(world: World) -> None:
    await script.Script(await world.source.connect()).prepare()
    second = "" if world.combination["sources"] == "two" else ", other"
    await world.source.execute(f"CREATE PUBLICATION headrace {script.PUBLISHED}{second}")
    await world.source.execute(f"CREATE PUBLICATION second {script.PUBLISHED_SECOND}")
    if world.combination["ddl_trigger"] == "on":
        await world.source.execute(ddl_trigger.INSTALL)
    if world.combination["duplicate_window"] == "jetstream":
        # The window of a stream that somebody else made, as JetStream makes them.
        client = await nats.connect(world.nats_url)
        config = StreamConfig(
            name="CDC", subjects=["cdc.>"], storage=StorageType.FILE, duplicate_window=120.0
        )
        await client.jetstream().add_stream(config, allow_batched=True, allow_atomic=True)
        await client.close()


async def _start(world: World, stack: contextlib.AsyncExitStack) -> None:
    can_follow = followed(world.combination)
    services = ["wal-reader", "publisher"]
    services += ["schema-publisher", "snapshot-responder"] if can_follow else []
    services += ["archiver"] if world.combination["archive"] != "none" else []
    services += ["audit-writer"] if world.audited else []
    await _suite(world, stack, "headrace", services)
    if world.combination["sources"] == "two":
        await _suite(
            world,
            stack,
            "second",
            ["wal-reader", "publisher", *(["audit-writer"] if world.audited else [])],
        )
    if can_follow:
        targets = {"postgres": world.mirrored.dsn, "sqlite": f"sqlite:///{world.sqlite}"}
        environment = _environment(world, "headrace")
        for name, to in targets.items():
            world.mirrors[name] = MirrorProcess(environment, world.folder, name, to)
            await world.mirrors[name].start()
            stack.push_async_callback(_stopped, world.mirrors[name])


async def _stopped(mirror: MirrorProcess) -> None:
    if mirror.runs:
        await mirror.kill()


async def _suite(
    world: World, stack: contextlib.AsyncExitStack, publication: str, services: list[str]
) -> None:
    folder = world.folder / publication
    folder.mkdir()
    suite = Suite(_environment(world, publication), folder, services)
    world.suites[publication] = await stack.enter_async_context(suite)
    await suite.logged("publisher", "epoch_joined", timeout_s=START_S)


def _environment(world: World, publication: str) -> dict[str, str]:
    server = world.source.server
    given: dict[str, Any] = {
        **server.environment(),
        "PG_DB": world.source.name,
        "NATS_URL": world.nats_url,
        "HEADRACE_PUB": publication,
        "HEADRACE_SLOT": f"{publication}_{world.source.name}",
        "DEST_DB_NAME": world.trail.name,
        **settings(world.combination),
    }
    if world.combination["archive"] != "none" and publication == "headrace":
        world.archive.mkdir(exist_ok=True)
        given["HEADRACE_ARCHIVE_URL"] = world.archive.as_uri()
    return given
