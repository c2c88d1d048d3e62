"""A RabbitMQ server with streams for tests: on a folder, which a test may stop or kill.

Debian's packages of RabbitMQ and Erlang are downloaded and unpacked once into the user's cache
(58 MB), and nothing is installed; `rabbitmq.sha256` pins each of them. Confirmed messages survive a
kill of the process.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from headrace.embedded.ports import LOOPBACK, free_port
from headrace.embedded.process import Launch, StopStep
from headrace.embedded.server import EmbeddedServer, StopMode
from headrace.testing.certificates import Pair
from headrace.testing.fetched import FetchError, cached, check_pins, fetch, pins

VERSION = "3.10.8"
PINS = Path(__file__).with_name("rabbitmq.sha256")
START_TIMEOUT_S = 180.0
USER = PASSWORD = "guest"  # noqa: S105  # the server's default, on loopback only
# Both programs end when their parent does; the name server is Erlang's, and the server needs it.
_START = "setpriv --pdeathsig KILL epmd -address 127.0.0.1 & exec rabbitmq-server"


def unpacked() -> Path:
    """The folder of the unpacked packages, which are fetched if necessary."""
    return cached(f"rabbitmq-{VERSION}", _fetch_packages)


def _fetch_packages(folder: Path) -> None:
    downloads = folder / "packages"
    downloads.mkdir()
    pinned = pins(PINS)
    # As root, apt downloads as another user, who may not write here.
    command = ["apt-get", "-q", "-o", "APT::Sandbox::User=root", "download"]
    named = [_versioned(name) for name in pinned]
    try:
        fetch([*command, *named], downloads)
    except FetchError:
        # The package lists may be missing or old.
        fetch(["apt-get", "-q", "update"], downloads)
        fetch([*command, *named], downloads)
    check_pins(downloads, pinned)
    for package in sorted(downloads.iterdir()):
        subprocess.run(["dpkg-deb", "-x", package, folder], check=True)  # noqa: S607  # on the PATH
        package.unlink()
    downloads.rmdir()
    start = folder / "usr/lib/erlang/bin/erl"
    here = 'ROOTDIR="$(cd "$progdir/.." && pwd)"'
    start.write_text(start.read_text().replace("ROOTDIR=/usr/lib/erlang", here))


def _versioned(file_name: str) -> str:
    """A package and its version, as apt-get takes them, for the name of its file."""
    name, version, _ = file_name.split("_")
    return f"{name}={version.replace('%3a', ':')}"


class RabbitServer(EmbeddedServer):
    """One server, for AMQP and for streams; with TLS in addition if there is a certificate."""

    kind = "RabbitMQ"
    stop_steps: ClassVar[Mapping[StopMode, tuple[StopStep, ...]]] = {
        "fast": (StopStep(signal.SIGTERM, 30),),
        "immediate": (StopStep(signal.SIGTERM, 5),),
    }

    def __init__(self, folder: Path, *, pair: Pair | None = None) -> None:
        super().__init__(folder, 0, START_TIMEOUT_S)
        self._pair = pair
        self.stream_port = free_port()
        self.tls_port = free_port()
        self.stream_tls_port = free_port()
        self._names_port = free_port()
        self._distribution_port = free_port()

    def _prepare(self) -> None:
        self._root = unpacked()

    def _launch(self) -> Launch:
        config = self.folder / "rabbitmq.conf"
        lines = (f"{name} = {value}\n" for name, value in self._options().items())
        config.write_text("".join(lines))
        plugins = self.folder / "enabled_plugins"
        plugins.write_text("[rabbitmq_stream].\n")
        home = self._root / f"usr/lib/rabbitmq/lib/rabbitmq_server-{VERSION}"
        erlang = self._root / "usr/lib/erlang"
        programs = (home / "sbin", erlang / "bin", *erlang.glob("erts-*/bin"))
        return Launch(
            command=["/bin/sh", "-c", _START],
            log=self.folder / "server.log",
            death_signal=signal.SIGKILL,
            environment={
                "PATH": os.pathsep.join([*map(str, programs), os.defpath]),
                "HOME": str(self.folder),
                "ERL_EPMD_PORT": str(self._names_port),
                "RABBITMQ_HOME": str(home),
                "RABBITMQ_NODENAME": f"tests{self._distribution_port}@localhost",
                "RABBITMQ_DIST_PORT": str(self._distribution_port),
                "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
                "RABBITMQ_LOG_BASE": str(self.folder),
                "RABBITMQ_CONFIG_FILE": str(config),
                "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
                "RABBITMQ_CONF_ENV_FILE": os.devnull,
                # Erlang replaces the shell, so that a signal reaches it.
                "RUNNING_UNDER_SYSTEMD": "yes",
            },
        )

    def _options(self) -> dict[str, str]:
        options = {
            "listeners.tcp.local": f"{LOOPBACK}:{self._port}",
            "stream.listeners.tcp.local": f"{LOOPBACK}:{self.stream_port}",
            "stream.advertised_host": "localhost",
            "stream.advertised_port": str(self.stream_port),
            "stream.advertised_tls_port": str(self.stream_tls_port),
            "disk_free_limit.absolute": "50MB",
            "log.console": "true",
            "log.file": "false",
        }
        if self._pair is not None:
            options |= {
                "listeners.ssl.local": f"{LOOPBACK}:{self.tls_port}",
                "stream.listeners.ssl.local": f"{LOOPBACK}:{self.stream_tls_port}",
                "ssl_options.certfile": str(self._pair.certificate),
                "ssl_options.keyfile": str(self._pair.key),
                "ssl_options.verify": "verify_none",
            }
        return options

    def _is_ready(self) -> bool:
        return all(map(_listens, (self._port, self.stream_port)))


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((LOOPBACK, port)) == 0
