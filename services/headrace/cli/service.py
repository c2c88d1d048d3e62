"""`headrace wal-reader` and the other services: one process each, with as little in it as possible.

Parsed with the standard library only: typer and its dependencies would take a fifth of a service's
memory. The modules that run a service (event loop, HTTP) are imported only when one runs, because
every command imports this module for the list.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

from headrace import log as logs
from headrace.contract.values import ArrayForm, Encoding
from headrace.errors import HeadraceError
from headrace.settings import Compat, DeliveryMode, Poison, load
from headrace.settings.typos import misspelled
from headrace.suite.services import SERVICES, SINK, sink_service
from headrace.terminal.text import plain

if TYPE_CHECKING:
    from headrace.process.lifecycle import Scope

log = logs.logger("service")

_CHOICES: dict[str, tuple[str, type[StrEnum], str]] = {
    "--arrays": (
        "format__arrays",
        ArrayForm,
        "form of arrays: PostgreSQL's literals, or lists [HEADRACE_ARRAYS]",
    ),
    "--delivery": (
        "delivery__mode",
        DeliveryMode,
        "contents of a message, or of an atomic group [HEADRACE_DELIVERY]",
    ),
    "--poison": (
        "delivery__poison",
        Poison,
        "what to do with a change that can't be decoded [HEADRACE_POISON]",
    ),
    "--compat": (
        "delivery__compat",
        Compat,
        "bridge: publish exactly the PG→NATS bridge's messages [HEADRACE_COMPAT]",
    ),
}

# Those with pyarrow, and its memory pool that needs least: the archiver frees a file at a time; the
# lake-writer frees all the time, for which malloc would take twice the processor time.
_POOLS = {"archiver": "system", "lake-writer": "jemalloc"}
_EPILOG = """\
PostgreSQL: PG_HOST PG_PORT PG_DB POSTGRES_BRIDGE_USER POSTGRES_BRIDGE_PASSWORD, or libpq's
variables (PGHOST, PGSSLMODE, PGSERVICE, …). NATS: NATS_URL (or NATS_HOST) NATS_BRIDGE_USER
NATS_BRIDGE_PASSWORD NATS_CREDS NATS_TLS_CA. docs/settings.md explains every setting; an option
overrides its variable. `headrace doctor` checks both servers.
"""


def parser(name: str) -> argparse.ArgumentParser:
    """The options of a service: the same for all, so that one manifest line fits each."""
    made = argparse.ArgumentParser(
        prog=f"headrace {name}",
        description=SERVICES[name].purpose,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        # An abbreviation in a manifest could become ambiguous with a later option.
        allow_abbrev=False,
    )
    add = made.add_argument
    add(
        "--slot",
        metavar="NAME",
        dest="source__slot",
        help="replication slot; also the source's name [HEADRACE_SLOT]",
    )
    add(
        "--pub",
        metavar="NAME",
        dest="source__publication",
        help="publication to read [HEADRACE_PUB]",
    )
    add(
        "--port",
        metavar="PORT",
        dest="process__http_port",
        type=int,
        help="port for health and metrics [HEADRACE_HTTP_PORT]",
    )
    add(
        "--json",
        dest="format__encoding",
        # Without the flag the value is None, so the environment decides.
        action="store_const",
        const=Encoding.JSON,
        help="use JSON instead of MessagePack [HEADRACE_ENCODING=json]",
    )
    for flag, (dest, kind, explain) in _CHOICES.items():
        values = [str(member) for member in kind]
        add(flag, dest=dest, choices=values, metavar="|".join(values), help=explain)
    add(
        "--zstd",
        dest="format__zstd",
        action="store_const",
        const=True,
        help="compress snapshot chunks [HEADRACE_ZSTD]",
    )
    add(
        "--zstd-events",
        dest="format__zstd_events",
        action="store_const",
        const=True,
        help="compress single events, with a dictionary per table [HEADRACE_ZSTD_EVENTS]",
    )
    return made


def sink_parser() -> argparse.ArgumentParser:
    """The options of a sink's process."""
    made = argparse.ArgumentParser(
        prog="headrace sink",
        description=SINK.purpose,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("name", metavar="NAME", help="the sink's name in the file")
    made.add_argument(
        "--config",
        metavar="FILE",
        dest="sinks__file",
        help="the file that describes the sinks [HEADRACE_CONFIG]",
    )
    made.add_argument(
        "--slot",
        metavar="NAME",
        dest="source__slot",
        help="the suite's replication slot [HEADRACE_SLOT]",
    )
    made.add_argument(
        "--port",
        metavar="PORT",
        dest="process__http_port",
        type=int,
        help="port for health and metrics [HEADRACE_HTTP_PORT]",
    )
    return made


def run_sink(arguments: Sequence[str]) -> int:
    """Run one sink's process to its end; returns the exit code."""
    flags = vars(sink_parser().parse_args(arguments))
    name = str(flags.pop("name"))
    from headrace.process import lifecycle

    try:
        settings = load(os.environ, **flags)
    except HeadraceError as error:
        print(plain(f"headrace: {error}"), file=sys.stderr)
        return lifecycle.EXIT_ERROR
    module = importlib.import_module("headrace.sink.service")

    async def main(scope: Scope) -> None:
        await module.run(scope, settings, name)

    return lifecycle.run(sink_service(name), settings.process, main)


def run(name: str, arguments: Sequence[str]) -> int:
    """Run a service to its end; returns the exit code."""
    # Parsed first: `--help` needs no event loop.
    flags = vars(parser(name).parse_args(arguments))
    for dest, kind, _ in _CHOICES.values():
        flags[dest] = kind(flags[dest]) if flags[dest] is not None else None
    from headrace.process import lifecycle, pyarrow_memory

    try:
        settings = load(os.environ, **flags)
    except HeadraceError as error:
        print(plain(f"headrace: {error}"), file=sys.stderr)
        return lifecycle.EXIT_ERROR
    if name in _POOLS:
        pyarrow_memory.keep_small(_POOLS[name])
    # `entry` explains a missing package.
    service = importlib.import_module(f"headrace.{name.replace('-', '_')}.service")

    async def main(scope: Scope) -> None:
        # Only here: `lifecycle.run` has configured the log by now.
        for warning in misspelled(os.environ):
            log.warning("setting_unknown", reason=warning)
        await service.run(scope, settings)

    return lifecycle.run(name, settings.process, main)
