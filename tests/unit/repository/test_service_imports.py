"""A service's process never loads certain packages: each would cost much of its memory and delay
its start.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from headrace.suite.services import SERVICES

HEAVY = (
    "grpc",
    "numpy",
    "opentelemetry",
    "pandas",
    "pyarrow",
    "pydantic",
    "pyspark",
    "rich",
    "typer",
)
# The archiver writes Parquet. The lake-writer uses PyIceberg, which loads pandas if it is installed;
# headrace[lake] does not install it.
NEEDED = {
    "archiver": {"numpy", "pyarrow"},
    "lake-writer": {"numpy", "pandas", "pyarrow", "pydantic"},
    # It shares the archive's object store, whose package loads pyarrow.
    "wal-archiver": {"numpy", "pyarrow"},
    # It reads the lake as the lake-writer writes it.
    "sql-server": {"numpy", "pandas", "pyarrow", "pydantic"},
}
PROBE = """
import sys
import headrace.cli.entry
import headrace.{module}.service
print(*sorted(set({heavy}) & set(sys.modules)))
"""


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_loads_nothing_heavy(service: str) -> None:
    probe = PROBE.format(module=service.replace("-", "_"), heavy=HEAVY)
    loaded = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True
    )
    assert set(loaded.stdout.split()) <= NEEDED.get(service, set())


def test_the_probe_sees_what_is_loaded() -> None:
    probe = PROBE.format(module="telemetry", heavy=("asyncio", *HEAVY))
    loaded = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True
    )
    assert loaded.stdout.split() == ["asyncio"]


HELP_PROBE = """
import contextlib, io, sys
from headrace.cli.entry import main
sys.argv[1:] = {arguments}
shown = io.StringIO()
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(shown):
    main()
assert "headrace" in shown.getvalue()
print("loaded", *sorted(set({clients}) & set(sys.modules)))
"""
CLIENTS = ("aiohttp", "asyncpg", "nats", "prometheus_client", "psycopg", "uvloop")


@pytest.mark.parametrize(
    "arguments", [["--version"], ["--help"], ["tail", "--help"], ["wal-reader", "--help"]]
)
def test_a_command_that_only_explains_itself_loads_no_client_and_no_server(
    arguments: list[str],
) -> None:
    # They would triple the time it takes; shells call it for each completion.
    probe = HELP_PROBE.format(arguments=arguments, clients=CLIENTS)
    shown = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True
    )
    assert shown.stdout.split() == ["loaded"]
