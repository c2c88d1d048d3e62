"""Whether a sink's target can be reached: the same for `headrace sinks test` and the console.

Never writes to the target, and fences nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

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
    options = sink.secrets(environ)
    if is_database(address):
        return "not tried: a database is checked when the sink starts"
    made = sink_class(address)
    # Not wrapped as in the service: marks that are kept in NATS would be taken over.
    target = made(SinkOptions(sink.name, address, options=options))
    if not isinstance(target, CheckableSink):
        return "not tried: the class has no method check"
    try:
        async with asyncio.timeout(timeout_s):
            return await target.check()
    except TimeoutError as error:
        raise SinkAwayError(
            f"the target of {sink.name} did not answer within {timeout_s:g} s",
            remedy="Check `to` and the network between here and there.",
        ) from error
    finally:
        await target.close()
