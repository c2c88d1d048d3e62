"""A program that imports a public package gets the library, and nothing that makes a process a
service.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from headrace.suite.services import SERVICES

# Each module of the library, and packages that none of its names loads.
LIBRARY = {
    "headrace.consumer": {"asyncpg", "psycopg", "pyarrow", "pyspark", "numpy"},
    "headrace.mirror": {"asyncpg", "psycopg", "pyarrow", "pyspark", "numpy"},
    "headrace.sinks": {"asyncpg", "psycopg", "pyarrow", "pyspark", "numpy"},
    "headrace.archive": {"asyncpg", "psycopg", "nats", "pyspark", "aiohttp"},
    "headrace.context": {
        "asyncpg",
        "psycopg",
        "nats",
        "pyspark",
        "aiohttp",
        "django",
        "sqlalchemy",
    },
    "headrace.spark": {"nats", "aiohttp"},
    "headrace.testing": {"pyspark", "pyarrow"},
    "headrace.jetstream.publishing.fast": {"asyncpg", "psycopg", "pyarrow", "pyspark"},
}
# A web server, another event loop, the life of a service, the command line.
FOR_SERVICES = {
    "aiohttp.web",
    "uvloop",
    "headrace.http.limits",
    "headrace.process.health",
    "headrace.process.lifecycle",
    "headrace.process.service",
    "headrace.cli",
    "headrace.supervisor",
} | {f"headrace.{name.replace('-', '_')}" for name in SERVICES}
# Every public name: some packages load a name only when it is used.
LOADED = """
import json, sys
from {module} import *
print(json.dumps(sorted(sys.modules)))
"""
# The state of the importing program, before and after the import.
STATE = """
import asyncio, gc, importlib, json, logging, os, signal, sys, warnings
from aiohttp import web, web_response

def state():
    loop = asyncio.new_event_loop()
    loop.close()
    return {{
        "server": web_response.SERVER_SOFTWARE,
        "signals": [str(signal.getsignal(number)) for number in signal.valid_signals()],
        "handlers": [str(handler) for handler in logging.getLogger().handlers],
        "levels": [logging.getLogger(name).level for name in ("", "nats", "nats.js.kv", "aiohttp", "asyncio")],
        "loop": type(loop).__module__,
        "gc": [gc.isenabled(), *gc.get_threshold(), gc.get_freeze_count()],
        "hooks": [str(sys.excepthook), str(sys.stdout), str(sys.stderr), sys.getrecursionlimit()],
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "warnings": str(warnings.showwarning),
    }}

before = state()
importlib.import_module({module!r})
after = state()
print(json.dumps([[key, before[key], after[key]] for key in before if before[key] != after[key]]))
"""


def answer(program: str) -> list[object]:
    """The JSON list that a program prints in a fresh interpreter."""
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    found: list[object] = json.loads(ran.stdout)
    return found


@pytest.mark.parametrize("module", LIBRARY)
def test_the_library_loads_nothing_that_makes_a_service(module: str) -> None:
    loaded = set(map(str, answer(LOADED.format(module=module))))
    assert module in loaded
    assert not loaded & (FOR_SERVICES | LIBRARY[module])


def test_importing_the_package_for_spark_loads_no_spark() -> None:
    loaded = answer("import json, sys, headrace.spark; print(json.dumps([*sys.modules]))")
    assert "headrace.spark" in loaded
    assert "pyspark" not in loaded


@pytest.mark.parametrize("module", LIBRARY)
def test_importing_the_library_changes_nothing_in_the_importing_program(module: str) -> None:
    assert answer(STATE.format(module=module)) == []
