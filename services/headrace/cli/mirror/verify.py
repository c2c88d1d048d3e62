"""`headrace verify`: compares a mirror with its source, once or repeatedly.

Exits with 0 if all tables are equal, 3 if one is not, 1 if that could not be determined. Shows keys
of rows that differ, never other values.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import orjson
from nats.aio.client import Client
from rich.text import Text

from headrace import log as logs
from headrace.cli.mirror.run import quiet, served, table_names, tell
from headrace.cli.terminal import Console
from headrace.contract.subjects_and_ids import table_token
from headrace.errors import SettingError
from headrace.jetstream.connection import connected
from headrace.lsn import format_lsn
from headrace.metrics.counters import Counters
from headrace.mirror import opened
from headrace.process import lifecycle
from headrace.process.lifecycle import Scope
from headrace.settings import Settings
from headrace.sinks.configuration import SinkConfiguration
from headrace.sinks.targets import is_database, sink_class
from headrace.terminal.text import one_line
from headrace.verify import NoMirrorError, Patience, Verdict, Verifier
from headrace.verify.check import RANGES

log = logs.logger("verify")

SERVICE = "verify"
EXIT_DIFFERENT = 3
SHOWN_MAX = 20
_CHARACTERS_MAX = 100


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """The command's options."""

    wait_s: float
    # Pause between comparisons; None compares once.
    every_s: float | None = None
    http: int | None = None
    as_json: bool = False
    repairs: bool = False


class TableVerifier(Protocol):
    """Compares the tables of one target with the source."""

    async def tokens(self) -> list[str]: ...

    async def table(self, token: str) -> Verdict: ...

    def check_repairs(self) -> None: ...

    async def repair(self, token: str, show: Callable[[Verdict], None]) -> Verdict: ...


def run(
    settings: Settings,
    tables: Sequence[str],
    to: str | SinkConfiguration,
    options: VerifyOptions,
) -> int:
    """Compare; returns the exit code."""
    names = table_names(tables)
    # DDL that no row follows reaches the mirror only after the catalog is read again.
    every_s = options.every_s
    patience = Patience(options.wait_s, min(options.wait_s, settings.watch.catalog_interval_s + 1))
    found: list[Verdict] | None = None

    async def compare(scope: Scope, verifier: TableVerifier) -> None:
        nonlocal found
        found = await _all(verifier, names, scope, options)

    async def main(scope: Scope) -> None:
        async with (
            served(scope, settings, options.http),
            connected(scope, settings.nats) as client,
            opened_verifier(settings, client, to, patience) as verifier,
        ):
            if options.repairs:
                verifier.check_repairs()
            while await scope.until_stopping(compare(scope, verifier)):
                scope.health.started()
                if every_s is None:
                    break
                await scope.pause(every_s)

    if every_s is not None:
        return lifecycle.run(SERVICE, settings.process, main)
    return lifecycle.run(SERVICE, quiet(settings.process), main, tell) or _exit_code(found)


@contextlib.asynccontextmanager
async def opened_verifier(
    settings: Settings, client: Client, to: str | SinkConfiguration, patience: Patience
) -> AsyncIterator[TableVerifier]:
    """The verifier of a mirror's address, or of a sink."""
    address, given = to, {}
    if not isinstance(to, str):
        address, given = to.address(os.environ), to.secrets(os.environ)
        if not is_database(address):
            async with _of_documents(settings, client, to, patience) as documents:
                yield documents
            return
    async with opened(str(address), given) as target:
        yield Verifier(settings, client, target, patience)


@contextlib.asynccontextmanager
async def _of_documents(
    settings: Settings, client: Client, sink: SinkConfiguration, patience: Patience
) -> AsyncIterator[TableVerifier]:
    # Here: other targets do not need the client.
    from headrace.sinks.opensearch import OpenSearchSink
    from headrace.verify.documents import Documents
    from headrace.verify.search import SearchVerifier

    if sink_class(sink.address(os.environ)) is not OpenSearchSink:
        raise SettingError(
            f"{sink.name} keeps records, which verify does not compare",
            remedy="Name a sink in a database or in OpenSearch.",
        )
    info = await client.jetstream().stream_info(settings.streams.cdc)
    documents = Documents.of(sink, os.environ, f"{settings.streams.cdc}@{info.created}")
    verifier = SearchVerifier(settings, client, documents, patience)
    verifier.check()
    await documents.client.connect()
    try:
        yield verifier
    finally:
        await documents.client.close()


def _exit_code(found: Sequence[Verdict] | None) -> int:
    # Stopped before the first result: neither equal nor different.
    if found is None:
        return lifecycle.EXIT_ERROR
    if all(verdict.equal for verdict in found):
        return 0
    return EXIT_DIFFERENT


async def _all(
    verifier: TableVerifier, names: Sequence[tuple[str, str]], scope: Scope, options: VerifyOptions
) -> list[Verdict]:
    """Every table's verdict, shown as soon as it is available."""
    began = time.monotonic()
    # Also with names: it shows that the target contains a mirror at all.
    there = await verifier.tokens()
    tokens = [table_token(*name) for name in names] or there
    if not tokens:
        raise NoMirrorError("the mirror has no tables")
    verdicts = []
    for token in tokens:
        with _step(token):
            if options.repairs:
                verdict = await verifier.repair(token, _before_repair(as_json=options.as_json))
            else:
                verdict = await verifier.table(token)
        verdicts.append(verdict)
        _tell(verdict, as_json=options.as_json)
    scope.health.stats.set("verify_seconds", time.monotonic() - began)
    _count(scope.health.stats, verdicts)
    return verdicts


def _before_repair(*, as_json: bool) -> Callable[[Verdict], None]:
    def show(verdict: Verdict) -> None:
        log.warning("mirror_repaired", table=verdict.token, rows=len(verdict.found))
        # For programs, the last verdict is the only document about a table.
        if not as_json:
            _print(text_of(verdict))

    return show


def _print(text: Text) -> None:
    Console(soft_wrap=True).print(text)


@contextlib.contextmanager
def _step(token: str) -> Iterator[None]:
    """Show what is being waited for, on a terminal only."""
    if not sys.stdout.isatty():
        yield
        return
    with Console().status(f"{token}: comparing at one LSN …"):
        yield


def _count(stats: Counters, verdicts: Sequence[Verdict]) -> None:
    stats.count("verify_runs")
    stats.set_series(
        "verify_differences",
        {
            verdict.token: float(len(verdict.found) or (0 if verdict.equal else 1))
            for verdict in verdicts
        },
    )
    stats.set("verify_rows", sum(verdict.rows for verdict in verdicts))


def _tell(verdict: Verdict, *, as_json: bool) -> None:
    log.info(
        "verified",
        table=verdict.token,
        equal=verdict.equal,
        rows=verdict.rows,
        lsn=format_lsn(verdict.lsn),
    )
    if not verdict.equal:
        log.error(
            "mirror_differs",
            table=verdict.token,
            rows=len(verdict.found),
            reason=verdict.why or "rows",
        )
    if as_json:
        print(orjson.dumps(body_of(verdict), default=str).decode(), flush=True)
    else:
        _print(text_of(verdict))


def body_of(verdict: Verdict) -> dict[str, object]:
    """A verdict for programs."""
    rows = [
        {"what": d.kind, "key": [str(v) for v in d.key], "columns": d.columns}
        for d in verdict.found[:SHOWN_MAX]
    ]
    return {
        "table": verdict.token,
        "equal": verdict.equal,
        "lsn": format_lsn(verdict.lsn),
        "rows": verdict.rows,
        "ranges_differing": verdict.ranges,
        "differences": len(verdict.found),
        "reason": verdict.why or None,
        "repaired": verdict.repaired,
        "marked": verdict.marked,
        "found": rows,
    }


def text_of(verdict: Verdict) -> Text:
    """A verdict for people."""
    place = f"{verdict.rows:,} rows at {format_lsn(verdict.lsn)}"
    if verdict.marked:
        place += f", {verdict.marked:,} marked as deleted"
    if verdict.equal:
        repaired = f", {verdict.repaired:,} repaired" if verdict.repaired else ""
        return Text.assemble(("= ", "green"), (verdict.token, "bold"), f"  {place}{repaired}")
    text = Text.assemble(("≠ ", "red"), (verdict.token, "bold"), f"  {verdict.why or place}")
    if verdict.why:
        return text
    text.append(
        f", {len(verdict.found)} differ, in {verdict.ranges} of {RANGES} ranges", style="red"
    )
    for difference in verdict.found[:SHOWN_MAX]:
        pairs = [
            f"{name}={value!r}" for name, value in zip(verdict.key, difference.key, strict=False)
        ]
        named = " ".join(pairs) or ", ".join(map(repr, difference.key))
        if difference.columns:
            columns = f"  ({', '.join(difference.columns)})"
        else:
            columns = ""
        text.append(f"\n    {difference.kind:<8} {one_line(named[:_CHARACTERS_MAX])}{columns}")
    if len(verdict.found) > SHOWN_MAX:
        text.append(f"\n    and {len(verdict.found) - SHOWN_MAX} more", style="dim")
    return text
