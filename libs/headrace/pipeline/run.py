"""Runs `headrace up` as a child of the program, and follows its changes.

Promises: within the block every service is ready; at its end, and at the end of the program, they
stop. If the services end, `run` raises with their last lines.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import unquote, urlsplit

import nats

from headrace.consumer import FileWatermarks, Subscription, Transaction, Transactions, follow
from headrace.embedded.process import tied
from headrace.errors import HeadraceError
from headrace.pipeline.sinks import SinkKeys, configured

READY_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 30.0
# Of the output, for an error.
LINES_KEPT = 40
_READY = "Up after"


class PipelineError(HeadraceError):
    """The services could not start, or have ended."""

    remedy = "Their logs are in the folder .headrace/logs of the pipeline's folder."


@dataclass(slots=True)
class Pipeline:
    """Services that run; `pipeline` creates it."""

    # Keeps the data of NATS, the positions and the logs.
    folder: Path
    # Of the child; the program's own has no influence on it beyond that.
    environment: Mapping[str, str]
    _process: asyncio.subprocess.Process | None = None
    _reading: asyncio.Task[None] | None = None
    _ready: asyncio.Event = field(default_factory=asyncio.Event)
    _output: deque[str] = field(default_factory=lambda: deque(maxlen=LINES_KEPT))

    async def run(self) -> None:
        """Wait until the services end; raises `PipelineError` with what they printed last."""
        status = await self._child.wait()
        if self._reading is not None:
            await self._reading
        if status:
            raise PipelineError(f"headrace up ended with {status}: {self._last}")

    async def follow(self, *tables: str, name: str = "program") -> AsyncIterator[Transaction]:
        """Whole transactions, in commit order, with their changes of these tables (`orders`,
        `app.orders`; all without a name). The position is stored under the name when the next
        transaction is requested, so one that was interrupted comes again.
        """
        wanted = {_qualified(table) for table in tables}
        marks = FileWatermarks(self.folder / f"{name}.marks")
        subscription = Subscription(durable=f"pipeline-{name}")
        client = await nats.connect(**self._server())
        try:
            async with follow(client, subscription, marks) as consumer:
                transactions = Transactions(consumer)
                async for transaction in transactions:
                    # Chosen here: with a filter in NATS, a transaction whose last change is in
                    # another table would wait for the next transaction.
                    if chosen := _of_tables(transaction, wanted):
                        yield chosen
                    await transactions.done(transaction)
        finally:
            await client.close()

    def variables(self) -> dict[str, str]:
        """The servers' addresses, as in `.headrace/env`."""
        found = {}
        for line in (self.folder / ".headrace/env").read_text().splitlines():
            words = shlex.split(line)
            if words[:1] == ["export"]:
                variable, _, value = words[1].partition("=")
                found[variable] = value
        return found

    async def start(self) -> Self:
        """Start the services, and wait until they are ready."""
        self._process = await asyncio.create_subprocess_exec(
            *tied([sys.executable, "-P", "-m", "headrace.cli", "up"], signal.SIGTERM),
            cwd=self.folder,
            env=dict(self.environment),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            # A Ctrl-C of the terminal is the program's.
            start_new_session=True,
        )
        self._reading = asyncio.create_task(self._read(), name="pipeline output")
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                await self._ready.wait()
        except TimeoutError:
            await self.stop()
            raise PipelineError(f"the services did not start in time: {self._last}") from None
        if self._child.returncode is not None:
            raise PipelineError(f"the services did not start: {self._last}")
        return self

    async def stop(self) -> None:
        """Stop the services in order, then the servers."""
        with contextlib.suppress(ProcessLookupError):
            self._child.terminate()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._child.wait()
        except TimeoutError:
            # Everything survives SIGKILL: positions are committed with the data.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)
            await self._child.wait()

    @property
    def _child(self) -> asyncio.subprocess.Process:
        assert self._process is not None, "started"
        return self._process

    @property
    def _last(self) -> str:
        return "\n".join(self._output)

    async def _read(self) -> None:
        assert self._child.stdout is not None, "a pipe"
        async for line in self._child.stdout:
            text = line.decode(errors="replace").rstrip()
            # Always read: a full pipe would stop the services' output, and with it the services.
            self._output.append(text)
            if _READY in text:
                self._ready.set()
        # It has ended: nothing more is awaited.
        await self._child.wait()
        self._ready.set()

    def _server(self) -> dict[str, str]:
        found = self.variables()
        given = {"servers": found.get("NATS_URL", "")}
        if "NATS_TOKEN" in found:
            given["token"] = found["NATS_TOKEN"]
        return given


@contextlib.asynccontextmanager
async def pipeline(
    source: str = "",
    sinks: Sequence[SinkKeys] = (),
    *,
    folder: str | Path = ".",
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[Pipeline]:
    """Deliver the changes of a database to sinks, within the block.

    `source` is a PostgreSQL URL; without one, an embedded PostgreSQL is started. The folder keeps
    NATS's data, positions and logs from run to run. `environment` has further settings
    (docs/settings.md), such as NATS_URL for your own NATS.
    """
    text, secrets = configured(sinks)
    given = _inherited() | _of_source(source) | secrets | dict(environment or {})
    config = _written(Path(folder), text)
    made = Pipeline(config.parent, {**given, "HEADRACE_CONFIG": str(config)})
    try:
        yield await made.start()
    finally:
        await made.stop()


def _written(folder: Path, text: str) -> Path:
    config = folder.resolve() / "headrace.toml"
    config.write_text(text)
    return config


def _inherited() -> dict[str, str]:
    """The program's environment without servers and settings, which are arguments here. Modules
    that the program can import, the services can too.
    """
    foreign = ("PG", "POSTGRES_", "NATS_", "HEADRACE_")
    # The program's PGHOST or NATS_URL may be of another database than the source.
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def _of_source(source: str) -> dict[str, str]:
    if not source:
        return {}
    url = urlsplit(source)
    if url.scheme not in {"postgresql", "postgres"} or url.query:
        raise PipelineError(
            "the source is not of the form postgresql://user:password@host:5432/database",
            remedy="Set TLS and other settings with `environment` (docs/settings.md).",
        )
    found = {
        "PG_HOST": url.hostname or "",
        "PG_PORT": str(url.port or ""),
        "PG_DB": unquote(url.path.strip("/")),
        "POSTGRES_BRIDGE_USER": unquote(url.username or ""),
        "POSTGRES_BRIDGE_PASSWORD": unquote(url.password or ""),
    }
    return {name: value for name, value in found.items() if value}


def _qualified(table: str) -> tuple[str, str]:
    schema, dot, name = table.rpartition(".")
    if dot:
        return schema, name
    return "public", table


def _of_tables(transaction: Transaction, wanted: set[tuple[str, str]]) -> Transaction | None:
    """The transaction with the events of these tables; None without any."""
    if not wanted:
        return transaction
    events = tuple(one for one in transaction.events if (one.schema, one.table) in wanted)
    if not events:
        return None
    return Transaction(events, transaction.ends)
