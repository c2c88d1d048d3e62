"""Whether a sink's target can be reached: the same for `headrace sinks test` and the console.

Never writes to the target, and fences nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping

from headrace.mirror.checking import TargetCheck, checked
from headrace.mirror.table import Table
from headrace.sinks.configuration import SinkConfiguration
from headrace.sinks.port import CheckableSink, SinkAwayError, SinkOptions
from headrace.sinks.targets import is_database, promise_to, sink_class

CONNECT_TIMEOUT_S = 30.0


async def tried(
    sink: SinkConfiguration, environ: Mapping[str, str], timeout_s: float = CONNECT_TIMEOUT_S
) -> str:
    """Connect and log in; raises for what a process of the sink would fail with then."""
    address = sink.address(environ)
    promise_to(address)
    if is_database(address):
        return (await tried_with(sink, environ, (), timeout_s)).server
    options = sink.secrets(environ)
    made = sink_class(address)
    # Not wrapped as in the service: marks that are kept in NATS would be taken over.
    target = made(SinkOptions(sink.name, address, options=options))
    if not isinstance(target, CheckableSink):
        return "not tried: the class has no method check"
    try:
        async with _limited(sink, timeout_s):
            return await target.check()
    finally:
        await target.close()


async def tried_with(
    sink: SinkConfiguration,
    environ: Mapping[str, str],
    tables: Iterable[Table],
    timeout_s: float = CONNECT_TIMEOUT_S,
) -> TargetCheck:
    """The same for a sink whose target is a database, and what it would do with these tables."""
    async with _limited(sink, timeout_s):
        return await checked(sink.address(environ), sink.secrets(environ), tables, sink.rules)


@contextlib.asynccontextmanager
async def _limited(sink: SinkConfiguration, timeout_s: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError as error:
        raise SinkAwayError(
            f"the target of {sink.name} did not answer within {timeout_s:g} s",
            remedy="Check `to` and the network between here and there.",
        ) from error
