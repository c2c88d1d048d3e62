"""A sink as a process, and the files that one writes, read by programs of others."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import zstandard

from headrace.embedded.process import tied
from headrace.lsn import Position
from headrace.testing.oracle import Change

HEADRACE = Path(sys.executable).with_name("headrace")


class SinkProcess:
    """One run of `headrace sink NAME`."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log
        # What earlier runs wrote.
        self._start = log.stat().st_size

    @property
    def output(self) -> str:
        return self._log.read_bytes()[self._start :].decode()

    @property
    def running(self) -> bool:
        return self._process.returncode is None

    @property
    def follows(self) -> bool:
        """Whether it runs and reads the stream."""
        # A sink in a database is a mirror.
        events = ("event=sink_follows", "event=following")
        return self.running and any(event in self.output for event in events)

    async def exit_code(self, timeout_s: float = 60.0) -> int:
        async with asyncio.timeout(timeout_s):
            return await self._process.wait()

    def kill(self) -> None:
        self._process.kill()

    async def stop(self, timeout_s: float = 30.0) -> int:
        self._process.send_signal(signal.SIGTERM)
        return await self.exit_code(timeout_s)

    async def logged(self, words: str, timeout_s: float = 60.0) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                while words not in self.output:  # noqa: ASYNC110  # a file gives no event
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"no {words!r}:\n{self.output[-4000:]}") from None


@contextlib.asynccontextmanager
async def sink_process(
    settings: Mapping[str, str], config: Path, name: str, **environment: str
) -> AsyncIterator[SinkProcess]:
    """The sink as a process; killed at the end."""
    shell = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("PG", "HEADRACE_", "NATS"))
    }
    log = config.with_name(f"sink-{name}.log")
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *tied([HEADRACE, "sink", name, "--config", config], signal.SIGKILL),
            env={**shell, **settings, "HEADRACE_HTTP_PORT": "0", **environment},
            stdout=output,
            stderr=output,
        )
    try:
        yield SinkProcess(process, log)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def commanded(
    settings: Mapping[str, str], config: Path, *words: str, **environment: str
) -> Any:
    """The JSON that a command prints."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    process = await asyncio.create_subprocess_exec(
        *(str(HEADRACE), *words, "--json"),
        env={**kept, **settings, "HEADRACE_CONFIG": str(config), **environment},
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, words
    return orjson.loads(output)


def events_of(folder: Path) -> list[dict[str, Any]]:
    """The events of a folder's files, in order, read without Headrace's code."""
    return [orjson.loads(line) for line in lines_of(folder)]


def lines_of(folder: Path) -> list[bytes]:
    """The values of a folder's files, in order, as they are."""
    return [line for file in sorted(folder.glob("[0-9]*")) for line in _values(file)]


def _values(file: Path) -> list[bytes]:
    if file.suffix == ".parquet":
        column: Any = pq.read_table(io.BytesIO(file.read_bytes()))["value"]
        return list(column.to_pylist())
    with (
        file.open("rb") as source,
        zstandard.ZstdDecompressor().stream_reader(source, read_across_frames=True) as reader,
    ):
        return reader.read().splitlines()


def changes_of(events: list[dict[str, Any]]) -> list[Change]:
    """The row changes, as the oracle returns them."""
    return [
        Change(Position(event["tx"]["lsn"], event["tx"]["seq"]), event["operation"], event["table"])
        for event in events
        if event["operation"] not in {"SCHEMA", "GAP", "MESSAGE"}
    ]
