"""The setup of a chaos run: one PostgreSQL, one nats-server, two of each service, a proxy in every
connection.

It also acts as an operator's supervisor: a service that ends on its own is started again and
counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from headrace.embedded.nats import EmbeddedNats
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.testing.clock import can_move_clocks
from headrace.testing.oracle import Change
from headrace.testing.proxy import Proxy
from headrace.testing.servers import POSTGRES_TEST_SETTINGS
from headrace.testing.suite import Suite
from tests.chaos.attached import Attached, attached
from tests.chaos.source import PUBLICATION

SERVICES = ("wal-reader", "publisher")
SETTINGS = {
    "HEADRACE_PUB": PUBLICATION,
    "HEADRACE_DEDUPE_WINDOW_S": "0.1",
    "HEADRACE_NATS_RECONNECT_WAIT_S": "0.2",
    "HEADRACE_PROGRESS_INTERVAL_S": "0.2",
    "HEADRACE_STATUS_INTERVAL_S": "0.2",
    "HEADRACE_ACK_TIMEOUT_S": "3",
    "HEADRACE_LEASE_TTL_S": "2",
    "HEADRACE_PG_CONNECT_TIMEOUT_S": "5",
    "HEADRACE_CDC_BYTES_MAX": str(1 << 31),
}
STORE_MIB = 3072
_RESTART_S = 0.3


@dataclass(eq=False)
class Instance:
    """One process of the suite, with separate proxies to both servers."""

    name: str
    service: str
    suite: Suite
    to_postgres: Proxy
    to_nats: Proxy
    # Held while its process is started or ended.
    verb: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def running(self) -> bool:
        return self.suite.running(self.service)


@dataclass(eq=False)
class World:
    folder: Path
    postgres: EmbeddedPostgres
    nats: EmbeddedNats
    store: Path | None
    own_network: bool = False
    movable_clocks: bool = False
    archive: Path | None = None
    damages: bool = False
    instances: list[Instance] = field(default_factory=list)
    # All that PostgreSQL's account has, where the stream is judged at the end only.
    committed: list[Change] = field(default_factory=list)
    exits: Counter[str] = field(default_factory=Counter)
    rss_max_mib: dict[str, float] = field(default_factory=dict)

    async def supervise(self) -> None:
        """Restart processes that ended on their own, until the run ends."""
        while True:
            for instance in self.instances:
                if instance.verb.locked():
                    continue
                async with instance.verb:
                    await self._attend(instance)
            await asyncio.sleep(_RESTART_S)

    async def _attend(self, instance: Instance) -> None:
        if instance.running:
            self._weigh(instance)
            return
        code = await instance.suite.exit_code(instance.service, 5)
        self.exits[f"{instance.service} {code}"] += 1
        await instance.suite.start(instance.service)

    def _weigh(self, instance: Instance) -> None:
        with contextlib.suppress(OSError):
            for line in (
                Path(f"/proc/{instance.suite.pid(instance.service)}/status")
                .read_text()
                .splitlines()
            ):
                if line.startswith("VmHWM:"):
                    held = int(line.split()[1]) / 1024
                    self.rss_max_mib[instance.service] = max(
                        held, self.rss_max_mib.get(instance.service, 0.0)
                    )

    def crashes(self) -> list[str]:
        """Tracebacks that the services left; there should be none."""
        return [
            f"{path.parent.name}: {line}"
            for path in self.folder.glob("*/*.log")
            for line in path.read_text(errors="replace").splitlines()
            if "event=service_crashed" in line
        ]


@contextlib.asynccontextmanager
async def world(
    delivery: str, *, own_network: bool, everything: bool = False, damages: bool = False
) -> AsyncIterator[World]:
    """Both servers, running, and the suite's instances to start; ended and removed with the block."""
    folder, store = _folders()
    postgres = EmbeddedPostgres(folder / "postgres", settings=POSTGRES_TEST_SETTINGS)
    server = EmbeddedNats(folder / "nats")
    made = World(folder, postgres, server, store, own_network, can_move_clocks(), damages=damages)
    try:
        await postgres.start()
        await server.start()
        async with contextlib.AsyncExitStack() as stack:
            if everything:
                made.archive = folder / "archive"
                made.archive.mkdir()
            for service in SERVICES:
                for letter in "ab":
                    made.instances.append(
                        await _instance(stack, made, f"{service}-{letter}", service, delivery)
                    )
            if everything:
                for one in attached(folder, postgres, delivery):
                    made.instances.append(
                        await _instance(stack, made, one.name, one.service, delivery, one)
                    )
            yield made
    finally:
        await server.kill()
        postgres.remove_blocking()
        _remove(folder, store)


async def _instance(
    stack: contextlib.AsyncExitStack,
    made: World,
    name: str,
    service: str,
    delivery: str,
    more: Attached | None = None,
) -> Instance:
    to_postgres = await stack.enter_async_context(Proxy(lambda: made.postgres.port))
    to_nats = await stack.enter_async_context(Proxy(lambda: made.nats.port))
    folder = made.folder / name
    folder.mkdir()
    environment = {
        **SETTINGS,
        **made.postgres.environment(),
        "PG_DB": "postgres",
        "PGPORT": str(to_postgres.port),
        "NATS_URL": f"nats://127.0.0.1:{to_nats.port}",
        "HEADRACE_DELIVERY": delivery,
    }
    if made.archive is not None:
        environment |= {
            "HEADRACE_ARCHIVE_URL": made.archive.as_uri(),
            "HEADRACE_ARCHIVE_REQUIRED": "true",
        }
    if more is not None:
        environment |= more.environment
        environment = {key: value for key, value in environment.items() if key not in more.without}
    suite = Suite(
        environment, folder, services=(service,), arguments=more.arguments if more else ()
    )
    return Instance(name, service, suite, to_postgres, to_nats)


def _folders() -> tuple[Path, Path | None]:
    """A folder for everything, and JetStream's own file system in it where this user may mount one.

    A full disk is a fault like any other.
    """
    folder = Path(tempfile.mkdtemp(prefix="headrace-chaos-"))
    folder.chmod(0o711)
    store = folder / "nats" / "jetstream"
    store.mkdir(parents=True)
    mount = shutil.which("mount")
    command = [mount or "", "-t", "tmpfs", "-o", f"size={STORE_MIB}m", "tmpfs", str(store)]
    mounted = (
        mount is not None
        and subprocess.run(command, check=False, capture_output=True).returncode == 0
    )
    return folder, store if mounted else None


def _remove(folder: Path, store: Path | None) -> None:
    umount = shutil.which("umount")
    if store is not None and umount is not None:
        subprocess.run([umount, "--lazy", str(store)], check=False)
    shutil.rmtree(folder, ignore_errors=True)
