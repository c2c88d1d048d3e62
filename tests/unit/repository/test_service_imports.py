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
# Each would take a tenth to a third of the time until a help text is shown.
SLOW_HELPERS = ("asyncio", "headrace.settings", "importlib.metadata", "orjson", "pydantic")
GROUPS = ("archive", "audit", "backup", "dead-letters", "lake", "sinks", "sql", "standby")


def loaded_by(arguments: list[str], watched: tuple[str, ...]) -> list[str]:
    probe = HELP_PROBE.format(arguments=arguments, clients=watched)
    shown = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True
    )
    return shown.stdout.split()


@pytest.mark.parametrize("name", ["tail", "snapshot", "up", *GROUPS])
def test_a_help_text_loads_only_what_shows_it(name: str) -> None:
    assert loaded_by([name, "--help"], (*CLIENTS, *SLOW_HELPERS)) == ["loaded"]


def test_the_version_is_shown_without_a_command_line() -> None:
    assert loaded_by(["--version"], (*CLIENTS, *SLOW_HELPERS, "rich", "typer")) == ["loaded"]


COMPLETION = """
import sys
from headrace.cli.entry import main
sys.argv[0] = "headrace"
try:
    main()
finally:
    print("loaded", *sorted(set({watched}) & set(sys.modules)))
"""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_without_loading_what_runs_them(shell: str) -> None:
    watched = tuple(name for name in (*CLIENTS, *SLOW_HELPERS) if name != "pydantic")
    shown = subprocess.run(
        [sys.executable, "-c", COMPLETION.format(watched=watched)],
        env={
            "_HEADRACE_COMPLETE": f"complete_{shell}",
            "COMP_WORDS": "headrace lake com",
            "COMP_CWORD": "2",
            "_TYPER_COMPLETE_ARGS": "headrace lake com",
            "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert "compact" in shown.stdout, shown.stderr
    assert shown.stdout.splitlines()[-1] == "loaded"


@pytest.mark.parametrize(
    "arguments", [["--version"], ["--help"], ["tail", "--help"], ["wal-reader", "--help"]]
)
def test_a_command_that_only_explains_itself_loads_no_client_and_no_server(
    arguments: list[str],
) -> None:
    # They would triple the time it takes; shells call it for each completion.
    assert loaded_by(arguments, CLIENTS) == ["loaded"]
