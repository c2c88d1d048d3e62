"""An Apache Kafka broker for tests: one KRaft node on a folder, which a test may stop or kill.

Maven fetches its jars once into the user's cache (44 MB), and `kafka.sha256` pins each of them. It
needs Java 17. Topics survive a kill of the process.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from headrace.embedded.java import JavaMissingError, find_java
from headrace.embedded.ports import LOOPBACK, free_port
from headrace.embedded.process import Launch, StopStep
from headrace.embedded.server import EmbeddedServer, StopMode
from headrace.testing.certificates import Pair
from headrace.testing.fetched import cached, check_pins, fetch, pins

VERSION = "4.3.1"
PINS = Path(__file__).with_name("kafka.sha256")
START_TIMEOUT_S = 120.0
_POM = f"""<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>headrace</groupId><artifactId>kafka</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId>
      <version>{VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version>
    </dependency>
  </dependencies>
</project>
"""
# What `kafka-storage format` writes. With a fixed quorum a node needs nothing more, and the
# second start of a JVM is saved.
_META = """version=1
cluster.id=aGVhZHJhY2UtdGVzdHMtMA
node.id=1
directory.id=aGVhZHJhY2UtdGVzdHMtMQ
"""


@dataclass(frozen=True, slots=True)
class Security:
    """A second listener with TLS and passwords (SASL PLAIN), and access rules for its users."""

    # The server's certificate.
    server: Pair
    # Password by user. Without an access rule a user may do nothing.
    users: Mapping[str, str] = field(default_factory=dict)


def jars() -> Path:
    """The folder of the broker's jars, which are fetched if necessary."""
    return cached(f"kafka-{VERSION}", _fetch_jars)


def _fetch_jars(folder: Path) -> None:
    pom = folder / "pom.xml"
    pom.write_text(_POM)
    goal = "dependency:copy-dependencies"
    fetch(["mvn", "-q", "-B", goal, "-DincludeScope=runtime", "-DoutputDirectory=."], folder)
    pom.unlink()
    check_pins(folder, pins(PINS))


class KafkaServer(EmbeddedServer):
    """One broker, which is its own controller."""

    kind = "Kafka"
    stop_steps: ClassVar[Mapping[StopMode, tuple[StopStep, ...]]] = {
        "fast": (StopStep(signal.SIGTERM, 30),),
        "immediate": (StopStep(signal.SIGTERM, 5),),
    }

    def __init__(
        self,
        folder: Path,
        *,
        security: Security | None = None,
        properties: Mapping[str, str] | None = None,
        proxy_port: int = 0,
    ) -> None:
        super().__init__(folder, 0, START_TIMEOUT_S)
        self._security = security
        self._properties = dict(properties or {})
        self._controller_port = free_port()
        self._secure_port = free_port()
        # A third listener: the broker tells its clients to use the proxy's port.
        self._proxy_port = proxy_port
        self.behind_proxy_port = free_port()

    @property
    def bootstrap(self) -> str:
        """The address for clients without TLS, who may do everything."""
        return f"{LOOPBACK}:{self._port}"

    @property
    def secure_bootstrap(self) -> str:
        """The address for clients with TLS and a password; only with `security`."""
        return f"{LOOPBACK}:{self._secure_port}"

    def _prepare(self) -> None:
        self._jars = jars()
        found = find_java()
        if found is None:
            raise JavaMissingError("Kafka needs Java, and none was found")
        self._java = found.java
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        (data / "meta.properties").write_text(_META)

    def _launch(self) -> Launch:
        path = self.folder / "server.properties"
        path.touch(mode=0o600)
        lines = (f"{name}={value}\n" for name, value in self._options().items())
        path.write_text("".join(lines))
        return Launch(
            command=[
                self._java,
                "-Xmx384m",
                # A broker of a test does not live long enough for the second compiler.
                "-XX:TieredStopAtLevel=1",
                "-XX:+UseSerialGC",
                "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
                "-cp",
                f"{self._jars}/*",
                "kafka.Kafka",
                path,
            ],
            log=self.folder / "server.log",
            death_signal=signal.SIGKILL,
            environment={"PATH": os.defpath, "HOME": str(self.folder)},
        )

    def _options(self) -> dict[str, str]:
        plain = f"PLAINTEXT://{LOOPBACK}:{self._port}"
        options = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{LOOPBACK}:{self._controller_port}",
            "listeners": f"{plain},CONTROLLER://{LOOPBACK}:{self._controller_port}",
            "advertised.listeners": plain,
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": (
                "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT,SASL_SSL:SASL_SSL"
            ),
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": str(self.folder / "data"),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            # Transactions do not start with fewer in-sync replicas than the minimum.
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            # A killed broker may return only when its last session has ended: 9 s by default.
            "broker.session.timeout.ms": "3000",
            "broker.heartbeat.interval.ms": "500",
        }
        if self._security is not None:
            options |= self._secure_options(self._security, options)
        if self._proxy_port:
            options |= self._behind_proxy(options)
        return options | self._properties

    def _behind_proxy(self, options: Mapping[str, str]) -> dict[str, str]:
        own = f"PROXIED://{LOOPBACK}:{self.behind_proxy_port}"
        told = f"PROXIED://{LOOPBACK}:{self._proxy_port}"
        return {
            "listeners": f"{options['listeners']},{own}",
            "advertised.listeners": f"{options['advertised.listeners']},{told}",
        }

    def _secure_options(self, security: Security, options: Mapping[str, str]) -> dict[str, str]:
        secure = f"SASL_SSL://{LOOPBACK}:{self._secure_port}"
        # Kafka reads the key and the certificate from one file.
        both = self.folder / "server.pem"
        both.touch(mode=0o600)
        both.write_text(security.server.key.read_text() + security.server.certificate.read_text())
        users = " ".join(f'user_{name}="{word}"' for name, word in security.users.items())
        login = "org.apache.kafka.common.security.plain.PlainLoginModule"
        return {
            "listeners": f"{options['listeners']},{secure}",
            "advertised.listeners": f"{options['advertised.listeners']},{secure}",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(both),
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": f"{login} required {users};",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        }

    def _is_ready(self) -> bool:
        """The broker listens only once its controller has accepted it."""
        with socket.socket() as probe:
            return probe.connect_ex((LOOPBACK, self._port)) == 0
