"""A Spark Connect server for a test, from the jars in pyspark."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from headrace.embedded.java import java_for_spark
from headrace.embedded.ports import free_port

START_TIMEOUT_S = 180.0
_FRUGAL = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


@contextmanager
def connect_server(
    folder: Path, environment: Mapping[str, str], java_options: Sequence[str] = ()
) -> Iterator[str]:
    """Run a server whose Python workers have this environment too, and return its URL."""
    import pyspark  # noqa: PLC0415  # an extra

    home, port = Path(pyspark.__file__).parent, free_port()
    configuration = {
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.grpc.binding.address": "127.0.0.1",
    }
    configuration |= {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(folder),
        # Compiling queries of a few rows costs more than running them.
        "spark.driver.extraJavaOptions": " ".join((*_FRUGAL, *java_options)),
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
    }
    options = [
        part for name, value in configuration.items() for part in ("--conf", f"{name}={value}")
    ]
    known = {"SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable}
    said = folder / "connect.log"
    with said.open("wb") as log:
        process = subprocess.Popen(
            [
                home / "bin/spark-submit",
                "--class",
                _SERVER,
                "--master",
                "local[2,4]",
                *options,
                "spark-internal",
            ],
            env={**os.environ, **java_for_spark(folder).environment(), **known, **environment},
            stdout=log,
            stderr=log,
            cwd=folder,
        )
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while b"server started at" not in said.read_bytes():
            assert process.poll() is None, said.read_text()[-2000:]
            assert time.monotonic() < deadline
            time.sleep(0.2)
        yield f"sc://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)
