"""These tests need the accelerator, which is built where that is possible."""

from __future__ import annotations

import os
import shlex
import shutil
import sysconfig
from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip this folder's tests only where the accelerator can't be built."""
    compiler = shlex.split(os.environ.get("CC") or "cc")[0]
    headers = Path(sysconfig.get_path("include"), "Python.h")
    if shutil.which(compiler) and headers.exists():
        return
    skipped = pytest.mark.skip(reason="the accelerator needs a C compiler and Python's headers")
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(skipped)
