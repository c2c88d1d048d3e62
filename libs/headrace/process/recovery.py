"""A service's one way of recovery: forget what is in memory, read what is durable, follow again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from nats.aio.client import Client
from nats.errors import Error as NatsError

from headrace.bus import participation
from headrace.errors import HeadraceError
from headrace.process.lifecycle import Scope
from headrace.timing.backoff import Backoff

BACKOFF_S = 0.1
BACKOFF_S_MAX = 5.0


async def follow_on(
    scope: Scope,
    client: Client,
    follow: Callable[[], Awaitable[None]],
    failed: Callable[[Exception], Awaitable[bool]],
) -> None:
    """Call `follow` until the service stops; `failed` reports an error that another attempt may
    overcome, and returns whether the attempt stored anything, which shortens the pauses again.
    """
    backoff = Backoff(BACKOFF_S, BACKOFF_S_MAX)
    while not scope.stopping.is_set():
        try:
            await follow()
        # Losing the race for the progress, too: the lease decides whether this process has to stop.
        except (HeadraceError, NatsError, TimeoutError) as error:
            if isinstance(error, HeadraceError) and not error.retry:
                raise
            # No other attempt could succeed: only a new process gets another client.
            if client.is_closed:
                raise participation.BusClosedError("the NATS client gave up") from error
            if await failed(error):
                backoff.reset()
            await scope.pause(backoff.pause_s())
