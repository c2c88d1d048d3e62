"""What a program gets that imports the library alone: the library, and nothing of what makes a
process a service.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

LIBRARY = (
    "headrace.consumer",
    "headrace.mirror",
    "headrace.archive",
    "headrace.context",
    "headrace.jetstream.publishing.fast",
)
# A web server, another event loop, and the life of a service.
A_SERVICES_OWN = {
    "aiohttp.web",
    "uvloop",
    "headrace.http.limits",
    "headrace.process.health",
    "headrace.process.lifecycle",
    "headrace.process.service",
}
LOADED = """
import importlib, json, sys
importlib.import_module({module!r})
print(json.dumps(sorted(sys.modules)))
"""
# What is the importing program's own, before and after.
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
    """What a fresh interpreter prints."""
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    found: list[object] = json.loads(ran.stdout)
    return found


@pytest.mark.parametrize("module", LIBRARY)
def test_the_library_loads_nothing_that_makes_a_service(module: str) -> None:
    loaded = set(map(str, answer(LOADED.format(module=module))))
    assert module in loaded
    assert not loaded & A_SERVICES_OWN


@pytest.mark.parametrize("module", LIBRARY)
def test_importing_the_library_changes_nothing_in_the_importing_program(module: str) -> None:
    assert answer(STATE.format(module=module)) == []
