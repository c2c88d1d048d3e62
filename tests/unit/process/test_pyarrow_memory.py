"""A service with pyarrow has neither pandas nor memory that it does not need."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pyarrow as pa
import pytest

from headrace.process import pyarrow_memory

PROGRAM = """
import sys
from headrace.cli import service

try:
    service.run({name!r}, [])
except SystemExit:
    pass
import pyarrow as pa
print("pandas" in sys.modules, pa.default_memory_pool().backend_name)
"""


@pytest.mark.parametrize(("name", "pool"), [("archiver", "system"), ("lake-writer", "jemalloc")])
def test_a_service_with_pyarrow_runs_without_pandas_and_with_its_pool(name: str, pool: str) -> None:
    if pool not in pa.supported_memory_backends():
        # Wheels for some platforms are built without jemalloc; those for Linux have it.
        pytest.skip(f"this pyarrow has no {pool}")
    program = PROGRAM.format(name=name)
    # Its setting is missing, so that it ends when everything is loaded.
    done = subprocess.run(
        [sys.executable, "-c", program], env={}, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == f"False {pool}"


def test_pandas_is_not_there_and_everything_else_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setenv("ARROW_DEFAULT_MEMORY_POOL", "system")
    monkeypatch.delitem(sys.modules, "pandas", raising=False)
    pyarrow_memory.keep_small("jemalloc")
    with pytest.raises(ModuleNotFoundError, match="kept out of this process"):
        __import__("pandas")
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    assert __import__("colorsys").__name__ == "colorsys"


def test_memory_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    released: list[bool] = []
    pool = SimpleNamespace(release_unused=lambda: released.append(True))
    monkeypatch.setattr(pa, "default_memory_pool", lambda: pool)
    pyarrow_memory.give_back()
    assert released
