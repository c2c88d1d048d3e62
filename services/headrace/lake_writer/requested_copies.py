"""Carries out operators' requests: copies tables again, and holds cuts back."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import replace
from functools import partial

from headrace.errors import HeadraceError, describe
from headrace.lake import requests
from headrace.lake.catalog import Catalog, Cut, TableName
from headrace.lake.requests import CopyRequest, RequestState
from headrace.lake.writer import LakeWriter

LOOK_S = 1.0
REPORT_S = 1.0
REASON = "it was requested"


class RequestedCopies:
    """The requests that this writer is working on; forgotten when it starts again, which takes them
    once more.
    """

    def __init__(self, catalog: Catalog, source: str) -> None:
        self._catalog = catalog
        self._source = source
        self._looked_at = 0.0
        self._taken: dict[TableName, CopyRequest] = {}
        # When each hold was first seen.
        self._holds: dict[str, float] = {}

    @property
    def held(self) -> bool:
        """Whether an operator's command asks for a moment without cuts."""
        now = time.monotonic()
        return any(now - since < requests.HOLD_S for since in self._holds.values())

    async def _look_for_holds(self) -> None:
        found = await asyncio.to_thread(requests.holds, self._catalog, self._source)
        now = time.monotonic()
        # By this process's clock, so that a command that has died holds nothing for long.
        self._holds = {name: self._holds.get(name, now) for name in found}

    async def take(self, writer: LakeWriter, published: Collection[TableName]) -> None:
        """Add tables that someone asks for to those that are to be copied."""
        if time.monotonic() - self._looked_at < LOOK_S:
            return
        self._looked_at = time.monotonic()
        await self._look_for_holds()
        found = await asyncio.to_thread(requests.requests, self._catalog, self._source)
        for name, request in found.items():
            known = self._taken.get(name)
            # The same table may be requested again, with another ID.
            if not request.open or (known is not None and known.id == request.id):
                continue
            if name not in published:
                reason = f"{name} is not in the publication"
                await self._report(replace(request, state=RequestState.REFUSED, reason=reason))
                continue
            self._taken[name] = request
            writer.to_copy[name] = REASON

    @contextlib.asynccontextmanager
    async def reporting(
        self, name: TableName, progress: Callable[[int], None]
    ) -> AsyncIterator[Callable[[int], None]]:
        """Note the number of copied rows from time to time, during a requested copy."""
        request = self._taken.get(name)
        # A copy for another reason has nobody to inform.
        if request is None:
            yield progress
            return
        rows = 0
        done = asyncio.Event()

        def note(count: int) -> None:
            nonlocal rows
            rows = count
            progress(count)

        async def report() -> None:
            while not done.is_set():
                await self._report(replace(request, state=RequestState.COPYING, rows=rows))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(done.wait(), REPORT_S)

        reporting = asyncio.create_task(report(), name="lake-copy-report")
        try:
            yield note
        except HeadraceError as error:
            if not error.retry:
                self._taken[name] = replace(
                    request, state=RequestState.REFUSED, reason=describe(error)
                )
            raise
        else:
            # Not done: readers see the copy only in the next cut.
            self._taken[name] = replace(request, state=RequestState.COPIED, rows=rows)
        finally:
            done.set()
            # Not cancelled: the catalog is used by one thread at a time.
            await reporting
            await self._report(self._taken[name])

    async def settle(self, cut: Cut) -> None:
        """The finished copies are in a cut."""
        for name, request in list(self._taken.items()):
            if request.state is RequestState.COPIED:
                del self._taken[name]
                await self._report(replace(request, state=RequestState.DONE, cut=cut.number))

    async def _report(self, request: CopyRequest) -> None:
        await asyncio.to_thread(partial(requests.report, self._catalog, self._source, request))
