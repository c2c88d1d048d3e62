"""`./taskw lock:platforms`: can everything in requirements.lock be installed where Headrace runs?

Queries the package index, so it is not one of the tests. For each platform and Python it resolves the
whole lock from wheels only; the few packages that are published as source must be pure Python, and
are named here.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PLATFORMS = (
    "x86_64-manylinux_2_28",
    "aarch64-manylinux_2_28",
    "x86_64-apple-darwin",
    "aarch64-apple-darwin",
)
# Published as source only; each is pure Python, so it installs wherever Python does.
PURE_SOURCE = ("nkeys", "pyspark")


def from_wheels(lock: str) -> str:
    """The lock without the packages that have no wheel."""
    names = "|".join(map(re.escape, PURE_SOURCE))
    return re.sub(rf"^(?:{names})==.*\n(?:[ \t]+.*\n)*", "", lock, flags=re.MULTILINE)


def missing(lock: Path, platform: str, python: str) -> str:
    """Why the lock can't be installed there; empty if it can."""
    command = [
        str(Path(sys.executable).with_name("uv")),
        "pip",
        "install",
        "--dry-run",
        "--quiet",
        "--no-deps",
    ]
    command += ["--require-hashes", "--only-binary", ":all:", "--python-platform", platform]
    command += [
        "--python-version",
        python,
        "--target",
        str(lock.parent / "nothing"),
        "-r",
        str(lock),
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr.strip()


def main() -> int:
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        lock = Path(folder, "requirements.txt")
        lock.write_text(from_wheels((ROOT / "requirements.lock").read_text()))
        for platform in PLATFORMS:
            for python in PYTHONS:
                reason = missing(lock, platform, python)
                failed += bool(reason)
                print(f"{platform} Python {python}: {reason or 'installs'}")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
