"""A real Prometheus for tests, from the PATH or from the folder into which `tests/tools` unpacks
Debian's, with the given targets.

Promises that it listens only on loopback and ends with its block. If there is no Prometheus,
`binary` raises an error with the reason, and the tests that need it are skipped.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from headrace.embedded.ports import free_port
from headrace.embedded.process import tied
from headrace.errors import HeadraceError
from headrace.testing.up import ready


class PrometheusMissingError(HeadraceError):
    """There is no Prometheus on this machine."""

    remedy = "Run tests/tools, which unpacks Debian's, or install it (Debian: apt-get install prometheus)."


_UNPACKED = Path(__file__).parents[2] / "build/prometheus/usr/bin"


def binary(name: str = "prometheus") -> Path:
    """Where `prometheus` or `promtool` is."""
    found = shutil.which(name, path=os.pathsep.join([os.environ["PATH"], str(_UNPACKED)]))
    if found is None:
        raise PrometheusMissingError(f"{name} was not found")
    return Path(found)


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A running one."""

    url: str

    async def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that an expression has now."""
        address, parameters = f"{self.url}/api/v1/query", {"query": expression}
        async with aiohttp.ClientSession() as http, http.get(address, params=parameters) as answer:
            body = await answer.json()
        assert body["status"] == "success", f"{expression}: {body.get('error')}"
        found: list[dict[str, Any]] = body["data"]["result"]
        return found

    async def firing(self) -> set[str]:
        """The names of the alerts that fire."""
        return {
            series["metric"]["alertname"]
            for series in await self.query('ALERTS{alertstate="firing"}')
        }


@contextlib.asynccontextmanager
async def running_prometheus(
    folder: Path, targets: Mapping[str, str], rules: Mapping[str, Any] | None = None
) -> AsyncIterator[Prometheus]:
    """Scrape each job's target every half second, and evaluate the rules as often."""
    port = free_port()
    jobs = [
        {"job_name": job, "static_configs": [{"targets": [target]}]}
        for job, target in targets.items()
    ]
    configuration = {
        "global": {
            "scrape_interval": "500ms",
            "scrape_timeout": "500ms",
            "evaluation_interval": "500ms",
        },
        "rule_files": ["rules.yaml"],
        "scrape_configs": jobs,
    }
    (folder / "rules.yaml").write_text(json.dumps(rules or {"groups": []}))
    (folder / "prometheus.yaml").write_text(json.dumps(configuration))
    options = [
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
    ]
    with (folder / "prometheus.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *tied([binary(), *options, f"--web.listen-address=127.0.0.1:{port}"], signal.SIGKILL),
            stdout=log,
            stderr=log,
            cwd=folder,
        )
    try:
        await ready(f"http://127.0.0.1:{port}", "/-/ready")
        yield Prometheus(f"http://127.0.0.1:{port}")
    finally:
        process.terminate()
        await process.wait()
