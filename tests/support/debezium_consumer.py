"""A consumer written for Debezium's JSON: Debezium's own deserializer, in a JVM.

Maven fetches its jars once into the user's cache (24 MB), and `debezium.sha256` pins each of them.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from headrace.embedded.java import find_java
from headrace.testing.fetched import cached, check_pins, fetch, pins

VERSION = "3.3.1.Final"
HERE = Path(__file__).parent
_POM = f"""<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>headrace</groupId><artifactId>debezium</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>io.debezium</groupId><artifactId>debezium-core</artifactId>
      <version>{VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>connect-json</artifactId>
      <version>4.1.0</version>
    </dependency>
  </dependencies>
</project>
"""


class Envelope(NamedTuple):
    """The content that Debezium's deserializer finds in a message."""

    op: str
    schema: str
    table: str
    after: dict[str, Any] | None
    before: dict[str, Any] | None


def _fetch_jars(folder: Path) -> None:
    pom = folder / "pom.xml"
    pom.write_text(_POM)
    goal = "dependency:copy-dependencies"
    fetch(["mvn", "-q", "-B", goal, "-DincludeScope=runtime", "-DoutputDirectory=."], folder)
    pom.unlink()
    check_pins(folder, pins(HERE / "debezium.sha256"))


def consumed(messages: Sequence[bytes]) -> list[Envelope]:
    """The messages, by Debezium's deserializer."""
    jars = cached(f"debezium-{VERSION}", _fetch_jars)
    found = find_java()
    assert found is not None, "it needs Java 17"
    command = [str(found.java), "-cp", f"{jars}/*", str(HERE / "DebeziumConsumer.java")]
    done = subprocess.run(command, input=b"\n".join(messages), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    return [Envelope(*json.loads(line)) for line in done.stdout.splitlines()]
