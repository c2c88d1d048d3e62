"""A real S3 server for tests, with conditional puts: versitygw on a folder, which a test may
kill.

Found in `HEADRACE_S3_SERVER` or on the PATH, or else built once by the Go toolchain into the user's
cache (a minute or two). If neither is possible, `binary` raises an error that says why.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

from headrace.embedded.ports import LOOPBACK, free_port
from headrace.embedded.process import tied
from headrace.errors import HeadraceError

VERSION = "v1.8.0"
MODULE = f"github.com/versity/versitygw/cmd/versitygw@{VERSION}"
BUCKET = "archive"
_ACCESS, _SECRET = "headrace", "headrace-tests"
BUILD_TIMEOUT_S = 600
START_TIMEOUT_S = 20.0


class S3UnavailableError(HeadraceError):
    """There is no S3 server for tests on this machine."""

    remedy = "Install Go, or name a versitygw in HEADRACE_S3_SERVER."


def binary() -> Path:
    """The path of the server's program, which is built if necessary."""
    named = os.environ.get("HEADRACE_S3_SERVER") or shutil.which("versitygw")
    if named:
        return Path(named)
    folder = (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        / "headrace"
        / f"versitygw-{VERSION}"
    )
    built = folder / "versitygw"
    if built.exists():
        return built
    go = shutil.which("go")
    if go is None:
        raise S3UnavailableError("versitygw is not installed, and Go is not there to build it")
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "GOBIN": str(folder), "CGO_ENABLED": "0"}
    done = subprocess.run(
        [go, "install", "-ldflags=-s -w", MODULE],
        env=environment,
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise S3UnavailableError(
            f"versitygw can't be built: {done.stderr.strip().splitlines()[-1:]}"
        )
    return built


class S3Server:
    """One server and its folder; stored objects survive a kill."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self._process: asyncio.subprocess.Process | None = None

    @property
    def endpoint(self) -> str:
        return f"http://{LOOPBACK}:{self._port}"

    def url(self, prefix: str) -> str:
        return f"s3://{BUCKET}/{prefix}"

    def environment(self) -> dict[str, str]:
        """The environment of a client of this server."""
        return {
            "AWS_ACCESS_KEY_ID": _ACCESS,
            "AWS_SECRET_ACCESS_KEY": _SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
        }

    def options(self) -> dict[str, str]:
        """The options of a store on this server."""
        return {
            "access_key_id": _ACCESS,
            "secret_access_key": _SECRET,
            "region": "us-east-1",
            "endpoint": self.endpoint,
        }

    async def start(self) -> None:
        (self._folder / BUCKET).mkdir(parents=True, exist_ok=True)
        program = await asyncio.to_thread(binary)
        with (self._folder.parent / "s3.log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *tied(
                    [
                        program,
                        "--port",
                        f"{LOOPBACK}:{self._port}",
                        "--quiet",
                        "posix",
                        self._folder,
                    ],
                    signal.SIGKILL,
                ),
                env={**os.environ, "ROOT_ACCESS_KEY": _ACCESS, "ROOT_SECRET_KEY": _SECRET},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        async with asyncio.timeout(START_TIMEOUT_S):
            while not self._answers():  # noqa: ASYNC110  # another process's port gives no event
                await asyncio.sleep(0.05)

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((LOOPBACK, self._port)) == 0

    async def kill(self) -> None:
        """Send SIGKILL, and wait for the end of the process."""
        if self._process is not None:
            self._process.kill()
            await self._process.wait()
            self._process = None
