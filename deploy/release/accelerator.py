"""Hatchling's hook that builds the accelerator: into the wheel, or next to its source for an
editable installation.

It needs a C compiler and Python's headers. Without them, the wheel is one for every platform, and
Headrace runs in Python. BUILD_ACCELERATOR: `auto`; `off`, as the release's wheel for every
platform needs; or `required`, where the absence of a compiler is an error.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import sys_tags

FOLDER = "libs/headrace/accelerator"
SOURCE = f"{FOLDER}/native.c"
BUILT = f"{FOLDER}/_native.abi3.so"
FLAGS = ("-std=c11", "-O2", "-Wall", "-Wextra", "-fPIC")


def command(source: str, built: str, *more: str) -> list[str]:
    """The compiler's command line."""
    linking = ["-shared"]
    if sys.platform == "darwin":
        linking = ["-bundle", "-undefined", "dynamic_lookup"]
    compiler = shlex.split(os.environ.get("CC") or "cc")
    include = f"-I{sysconfig.get_path('include')}"
    return [*compiler, *FLAGS, *more, *linking, include, source, "-o", built]


def compiled(root: Path) -> str:
    """Build the extension; the reason if that is impossible, and then an older one is gone, too."""
    try:
        problem = _compiled(root)
    except (OSError, ValueError) as error:
        problem = f"the C compiler can't be run: {error}"
    if problem:
        with contextlib.suppress(OSError):
            (root / BUILT).unlink()
    return problem


def _compiled(root: Path) -> str:
    if os.name != "posix" or sys.implementation.name != "cpython":
        return "it is for CPython on Linux and macOS"
    # Built under its name, which macOS signs, and moved in one step: a process may be starting.
    with tempfile.TemporaryDirectory(dir=(root / FOLDER), prefix=".build-") as folder:
        fresh = Path(folder, Path(BUILT).name)
        # With relative paths, so that they don't differ between machines.
        made = subprocess.run(
            command(SOURCE, str(fresh.relative_to(root))),
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            said = made.stderr.strip().splitlines()
            return f"the C compiler says: {said[0] if said else f'status {made.returncode}'}"
        fresh.replace(root / BUILT)
    return ""


def platform_tag() -> str:
    """The wheel's platform."""
    if sys.platform == "darwin":
        # pip knows main versions of macOS only.
        return next(iter(sys_tags())).platform
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")


class AcceleratorBuild(BuildHookInterface[Any]):
    """Adds the extension to the wheel, whose name then says the platform."""

    PLUGIN_NAME = "custom"

    def initialize(self, _: str, build_data: dict[str, Any]) -> None:
        wanted = os.environ.get("BUILD_ACCELERATOR", "auto")
        if wanted == "off":
            return
        problem = compiled(Path(self.root))
        if problem and wanted == "required":
            raise SystemExit(f"The accelerator can't be built: {problem}")
        if problem:
            self.app.display_info(f"Without the accelerator: {problem}")
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"cp311-abi3-{platform_tag()}"
        build_data["artifacts"].append(f"/{BUILT}")
