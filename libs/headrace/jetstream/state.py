"""Small durable state in the suite's KV bucket: values written by compare-and-set, and leases.

Promises: a write that lost its compare-and-set raises `LostRaceError` and changed nothing. A lease
has one holder at a time, as far as clocks can ensure it; anything that must hold even for a holder
that slept is fenced at the stream itself (docs/adr/0005).
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgpack
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.errors import (
    BucketNotFoundError,
    KeyNotFoundError,
    KeyWrongLastSequenceError,
    NotFoundError,
)
from nats.js.kv import KeyValue

from headrace import log as logs
from headrace.errors import HeadraceError, describe
from headrace.jetstream.errors import MissingObjectError
from headrace.postgres.slot_reader import IDENTITY
from headrace.process.lifecycle import Scope

log = logs.logger("state")

_PAUSE_S = 1.0
_IDENTITY = "identity"


class LostRaceError(HeadraceError):
    """Another process wrote the same state first."""

    retry = True


class ForeignStateError(HeadraceError):
    """A key of the state bucket contains something that the suite did not write."""

    remedy = (
        "Find out who may write to the bucket (docs/security.md), then remove the key: nats kv "
        "purge. The suite recovers its state from the stream and the slot."
    )


@dataclass(slots=True)
class Cell:
    """One key: its value as last read or written, and the revision that a write replaces."""

    bucket: KeyValue
    key: str
    value: Mapping[str, Any] | None = None
    revision: int = 0

    async def read(self) -> Mapping[str, Any] | None:
        try:
            entry = await self.bucket.get(self.key)
        except KeyNotFoundError as missing:
            # A deleted key has a revision too, which the next write must name.
            entry_of_deletion = getattr(missing, "entry", None)
            self.value = None
            if entry_of_deletion:
                self.revision = entry_of_deletion.revision or 0
            else:
                self.revision = 0
            return None
        self.revision = entry.revision or 0
        self.value = self._read(entry.value or b"")
        return self.value

    def _read(self, data: bytes) -> Mapping[str, Any]:
        try:
            value = msgpack.unpackb(data)
        except (ValueError, msgpack.UnpackException) as error:
            # Never repaired by overwriting: it may be the state of another program that uses the
            # bucket.
            raise ForeignStateError(
                f"{self.key} of the state bucket was not written by the suite"
            ) from error
        if not isinstance(value, dict):
            raise ForeignStateError(
                f"{self.key} of the state bucket is a {type(value).__name__}, not a record"
            )
        return value

    async def write(self, value: Mapping[str, Any]) -> None:
        try:
            # The bucket refuses the write if anyone has written since `revision` was read. This
            # holds also for a process that was suspended in between.
            self.revision = await self.bucket.update(
                self.key, bytes(msgpack.packb(dict(value))), last=self.revision
            )
        except KeyWrongLastSequenceError as error:
            raise LostRaceError(f"another process wrote {self.key}") from error
        self.value = value

    async def delete(self) -> None:
        await self.bucket.delete(self.key, last=self.revision)


async def bucket(js: JetStreamContext, name: str) -> KeyValue:
    try:
        return await js.key_value(name)
    except BucketNotFoundError as error:
        raise _missing(name) from error


def _missing(name: str) -> MissingObjectError:
    return MissingObjectError(f"the KV bucket {name} is missing", remedy="Run `headrace init`.")


async def bucket_patiently(scope: Scope, js: JetStreamContext, name: str) -> KeyValue | None:
    """`bucket`, for a service: waits for JetStream to answer; None if the service stops first."""
    while not scope.stopping.is_set():
        try:
            found = await bucket(js, name)
        except (NatsError, TimeoutError) as error:
            scope.health.block("jetstream", describe(error))
            await scope.pause(_PAUSE_S)
        else:
            scope.health.unblock("jetstream")
            return found
    return None


async def suite_identity(state: KeyValue) -> str:
    """The identity of the suite that uses this bucket: random, created once."""
    cell = Cell(state, _IDENTITY)
    while (kept := await cell.read()) is None:
        # Another service may create it at the same moment: the first one counts.
        with contextlib.suppress(LostRaceError):
            await cell.write({"suite": secrets.token_hex(8)})
    return _known(kept)


async def known_identity(state: KeyValue) -> str:
    """The suite's identity; empty before it is created."""
    kept = await Cell(state, _IDENTITY).read()
    if kept is None:
        return ""
    return _known(kept)


def _known(kept: Mapping[str, Any]) -> str:
    suite = kept.get("suite")
    if not isinstance(suite, str) or not IDENTITY.fullmatch(suite):
        raise ForeignStateError(f"{_IDENTITY} of the state bucket is not a suite's identity")
    return suite


@dataclass(eq=False)
class Lease:
    """The right to be the only active instance of a role, renewed while held."""

    _cell: Cell
    _holder: str
    _ttl_s: float
    # The revision seen last, and since when it hasn't changed, by the local monotonic clock:
    # holders' clocks are never compared. -1 stands for no observation.
    _revision: int = -1
    _since: float = 0.0

    async def acquire(
        self, scope: Scope, check: Callable[[], Awaitable[None]] | None = None
    ) -> bool:
        """Wait until this process holds the lease; False if the service stops instead.

        A process that waits is a standby once `check` has passed.
        """
        while not scope.stopping.is_set():
            try:
                acquired = await self._try()
            except (NatsError, TimeoutError) as error:
                scope.health.block("lease", f"{self._cell.key} can't be read: {describe(error)}")
                self._revision = -1
                await self._check_bucket(scope)
            else:
                if acquired:
                    scope.health.unblock("lease")
                    log.info("lease_acquired", key=self._cell.key, holder=self._holder)
                    return True
                if check is not None and not await self._passes(scope, check):
                    continue
                check = None
                holder = (self._cell.value or {}).get("holder")
                scope.health.stand_by("lease", f"{self._cell.key} is held by {holder}")
            await scope.pause(min(0.25, self._ttl_s / 4))
        return False

    async def _check_bucket(self, scope: Scope) -> None:
        """Raise an error if the bucket was deleted: waiting would not bring it back, and a process
        that starts creates it again.
        """
        # A server that has just started may answer before it has read its store.
        for _ in range(2):
            try:
                await self._cell.bucket.status()
            except NotFoundError as error:
                missing = error
                await scope.pause(_PAUSE_S)
            except (NatsError, TimeoutError):
                return
            else:
                return
        raise _missing(f"that contains {self._cell.key}") from missing

    async def _passes(self, scope: Scope, check: Callable[[], Awaitable[None]]) -> bool:
        """Whether this process could work with the lease; if not, it is looked at again later."""
        try:
            await check()
        except (HeadraceError, OSError) as error:
            scope.health.block("lease", f"could not take over: {describe(error)}")
            # Less often than a server blocks those who fail to log in.
            await scope.pause(self._ttl_s)
            return False
        return True

    async def _try(self) -> bool:
        """Take the lease if it is free, or its holder was silent for the whole time to live."""
        current = await self._cell.read()
        # The holder renews by writing, so a new revision is a sign of life.
        if self._cell.revision != self._revision:
            self._revision = self._cell.revision
            self._since = time.monotonic()
        # An acquisition whose answer was lost is ours already, and needs no wait for its expiry.
        ours = current is not None and current.get("holder") == self._holder
        if current is not None and not ours and time.monotonic() - self._since < self._ttl_s:
            return False
        try:
            await self._cell.write({"holder": self._holder})
        except LostRaceError:
            return False
        return True

    async def keep(self, scope: Scope) -> None:
        """Renew the lease for the service's lifetime; raises `LostRaceError` if another process
        took it.
        """
        while not scope.stopping.is_set():
            # A third, so that one failed renewal and its repetition still fit into the time to
            # live.
            await scope.pause(self._ttl_s / 3)
            if scope.stopping.is_set():
                return
            try:
                async with asyncio.timeout(self._ttl_s / 3):
                    await self._cell.write({"holder": self._holder})
            except (NatsError, TimeoutError, LostRaceError) as error:
                # The write that won the race may be our own, if its answer was lost.
                log.warning("lease_renewal_failed", key=self._cell.key, reason=str(error))
                await self._resync(scope)

    async def _resync(self, scope: Scope) -> None:
        """A renewal whose answer was lost may have been written: then its revision is ours."""
        try:
            async with asyncio.timeout(self._ttl_s / 3):
                current = await self._cell.read()
        except (NatsError, TimeoutError):
            await self._check_bucket(scope)
            return
        if current is None:
            raise LostRaceError(
                f"{self._cell.key} is gone from the state bucket",
                remedy="Somebody purged or deleted it: restart the service, which takes it again.",
            )
        if current.get("holder") != self._holder:
            raise LostRaceError(f"another process took {self._cell.key}")

    async def release(self) -> None:
        """Release the lease immediately; best effort, since a lease expires anyway."""
        try:
            async with asyncio.timeout(1):
                await self._cell.delete()
        except (NatsError, TimeoutError) as error:
            log.warning("lease_not_released", key=self._cell.key, reason=str(error))
