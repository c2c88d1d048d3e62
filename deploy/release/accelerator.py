"""Hatchling's hook that builds the accelerator into the wheel, or next to its source for an editable
installation.

It needs a C compiler and Python's headers. Without them, the wheel is one for every platform, and
Headrace runs in Python. HEADRACE_BUILD_ACCELERATOR: `auto`; `off`, as the release's wheel for every
platform needs; or `required`, where the absence of a compiler is an error.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

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
    problem = _compiled(root)
    if problem:
        (root / BUILT).unlink(missing_ok=True)
    return problem


def _compiled(root: Path) -> str:
    if os.name != "posix" or sys.implementation.name != "cpython":
        return "it is for CPython on Linux and macOS"
    # Replaced in one step: a process may be starting.
    fresh = f"{BUILT}.{os.getpid()}"
    try:
        # With relative paths, so that they don't differ between machines.
        made = subprocess.run(
            command(SOURCE, fresh), cwd=root, capture_output=True, text=True, check=False
        )
    except OSError as error:
        return f"the C compiler can't be run: {error}"
    if made.returncode:
        said = made.stderr.strip().splitlines()
        return f"the C compiler says: {said[0] if said else f'status {made.returncode}'}"
    (root / fresh).replace(root / BUILT)
    return ""


class AcceleratorBuild(BuildHookInterface):
    """Adds the extension to the wheel, whose name then says the platform."""

    PLUGIN_NAME = "custom"

    def initialize(self, _: str, build_data: dict[str, Any]) -> None:
        wanted = os.environ.get("HEADRACE_BUILD_ACCELERATOR", "auto")
        if wanted == "off":
            return
        problem = compiled(Path(self.root))
        if problem and wanted == "required":
            raise SystemExit(f"The accelerator can't be built: {problem}")
        if problem:
            self.app.display_info(f"Without the accelerator: {problem}")
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"cp311-abi3-{platform}"
        build_data["artifacts"].append(f"/{BUILT}")
