"""The streams and buckets the suite needs: declared once, created when missing, never changed.

`ensure` is idempotent. Objects that an operator created stay as they are. Without the permission to
create one, the error names the object and the command that an administrator must run.
"""

from __future__ import annotations

from dataclasses import replace

from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeoutError
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import APIError, NotFoundError, ServiceUnavailableError

from headrace import log as logs
from headrace.errors import HeadraceError
from headrace.jetstream.bulk import connection_of
from headrace.jetstream.errors import (
    NO_JETSTREAM_REMEDY,
    ConnectionLostError,
    JetStreamError,
    MissingObjectError,
    NoRoomError,
)
from headrace.process.lifecycle import Scope
from headrace.settings import Retention, StreamSettings
from headrace.settings.declaration import MIB
from headrace.timing.backoff import Backoff

log = logs.logger("objects")

SCHEMA_HISTORY = 10
LARGE_MARGIN_S = 86_400
_GIB = 1024 * MIB
# The account's limit is reached, no peer has room, or the server does not.
_NO_ROOM = frozenset({10002, 10005, 10023, 10047})
_TOO_MANY_STREAMS = 10027
_REFUSED = "permissions violation"
_PAUSE_S = 0.1
_PAUSE_S_MAX = 5.0
# The number of attempts: a server that doesn't answer may be starting, or permissions may be
# missing.
SILENT_MAX = 3


def declared(settings: StreamSettings) -> list[StreamConfig]:
    """Every stream (a KV bucket is one too) of the suite."""
    if settings.retention is Retention.STRICT:
        # Refused messages stay in PostgreSQL's log; discarded ones would be lost.
        discard = DiscardPolicy.NEW
    else:
        discard = DiscardPolicy.OLD
    common = StreamConfig(
        storage=StorageType.FILE, num_replicas=settings.replicas, allow_direct=True
    )
    return [
        replace(
            common,
            name=settings.cdc,
            description="Headrace: change events",
            subjects=["cdc.>"],
            max_age=float(settings.cdc_age_max_s),
            max_bytes=settings.cdc_bytes_max,
            discard=discard,
            duplicate_window=settings.dedupe_window_s,
            allow_atomic=True,
            allow_batched=True,
        ),
        replace(
            common,
            name=settings.init,
            description="Headrace: snapshots",
            subjects=["init.>"],
            max_age=float(settings.init_age_max_s),
            duplicate_window=settings.dedupe_window_s,
        ),
        replace(
            common,
            name=settings.requests,
            description="Headrace: snapshot requests",
            subjects=["snapshot.request.>"],
            retention=RetentionPolicy.WORK_QUEUE,
            max_age=86_400.0,
            max_bytes=16 * MIB,
            no_ack=True,
        ),
        _bucket(common, settings.schemas, "table schemas", SCHEMA_HISTORY),
        _bucket(common, settings.state, "the suite's state", 1),
        # An object must not expire before the events and snapshots that refer to it, plus some time
        # to read them.
        _object_store(
            common,
            settings.large,
            "events and rows too large for a message",
            float(max(settings.cdc_age_max_s, settings.init_age_max_s) + LARGE_MARGIN_S),
        ),
        _object_store(common, settings.parked, "changes that could not be read", 0.0),
    ]


def _bucket(common: StreamConfig, name: str, what: str, history: int) -> StreamConfig:
    return replace(
        common,
        name=f"KV_{name}",
        description=f"Headrace: {what}",
        subjects=[f"$KV.{name}.>"],
        max_msgs_per_subject=history,
        discard=DiscardPolicy.NEW,
        allow_rollup_hdrs=True,
        deny_delete=True,
    )


def _object_store(common: StreamConfig, name: str, what: str, age_max_s: float) -> StreamConfig:
    return replace(
        common,
        name=f"OBJ_{name}",
        description=f"Headrace: {what}",
        subjects=[f"$O.{name}.C.>", f"$O.{name}.M.>"],
        max_age=age_max_s,
        discard=DiscardPolicy.NEW,
        allow_rollup_hdrs=True,
    )


async def ensure(js: JetStreamContext, settings: StreamSettings) -> list[str]:
    """Create what is missing; returns the names of what was created."""
    client = connection_of(js)
    # Compared afterwards: a connection that was lost and came back explains a time-out.
    reconnects = client.stats["reconnects"]
    try:
        return [
            str(config.name) for config in declared(settings) if await _ensure_stream(js, config)
        ]
    except MissingObjectError as error:
        lost = not client.is_connected or client.stats["reconnects"] != reconnects
        if lost and isinstance(error.__cause__, NatsTimeoutError):
            # This says nothing about permissions: the server was unreachable.
            raise ConnectionLostError(
                "the connection to NATS was lost while reading the streams"
            ) from error.__cause__
        raise


async def ensure_patiently(scope: Scope, js: JetStreamContext, settings: StreamSettings) -> None:
    """`ensure`, for a service: waits for a JetStream that is still starting, or short of room."""
    backoff = Backoff(_PAUSE_S, _PAUSE_S_MAX)
    silent = 0
    while not scope.stopping.is_set():
        try:
            await ensure(js, settings)
        except HeadraceError as error:
            # nats-server is silent to a request that isn't permitted, as it is while it starts.
            silent += isinstance(error.__cause__, NatsTimeoutError) and not error.retry
            if not error.retry and not 0 < silent < SILENT_MAX:
                raise
            _report(scope, error)
            await scope.pause(backoff.pause_s())
        else:
            scope.health.unblock("jetstream")
            scope.health.unblock("stream")
            return


def _report(scope: Scope, error: HeadraceError) -> None:
    part = "jetstream"
    other = "stream"
    if isinstance(error, NoRoomError):
        part, other = other, part
    scope.health.block(part, str(error))
    scope.health.unblock(other)


async def _ensure_stream(js: JetStreamContext, config: StreamConfig) -> bool:
    try:
        info = await js.stream_info(str(config.name))
    except NotFoundError:
        return await _create(js, config)
    except (NoRespondersError, NatsTimeoutError, APIError) as error:
        raise _explained(error, config, js) from error
    # Only subjects are required; all limits are the operator's.
    missing = set(config.subjects or []) - set(info.config.subjects or [])
    if missing:
        raise MissingObjectError(
            f"stream {config.name} exists, but lacks the subjects {', '.join(sorted(missing))}",
            remedy=f"Add them (nats stream edit {config.name}), or choose another stream name.",
        )
    return False


async def _create(js: JetStreamContext, config: StreamConfig) -> bool:
    for attempt in _by_server_age(config):
        try:
            await js.add_stream(attempt)
        except APIError as error:
            # The next attempt leaves out what this server doesn't know.
            if _unknown_to_old_server(error) and attempt.allow_batched is not None:
                continue
            raise _explained(error, config, js) from error
        except (NoRespondersError, NatsTimeoutError) as error:
            raise _explained(error, config, js) from error
        log.info("object_created", name=config.name)
        return True
    raise AssertionError("the last attempt either returns or raises")


def _by_server_age(config: StreamConfig) -> list[StreamConfig]:
    """As declared; then without options that servers before 2.14 and before 2.12 don't know."""
    if config.allow_batched is None:
        return [config]
    plain = replace(config, allow_batched=None, allow_atomic=None)
    return [config, replace(config, allow_batched=None), plain]


def _unknown_to_old_server(error: APIError) -> bool:
    return error.err_code in {10025, 10052} or "unknown field" in (error.description or "").lower()


def _explained(error: Exception, config: StreamConfig, js: JetStreamContext) -> HeadraceError:
    name = config.name
    subjects = ",".join(config.subjects or [])
    command = f"nats stream add {name} --subjects '{subjects}' --defaults"
    if isinstance(error, NoRespondersError | ServiceUnavailableError):
        return JetStreamError(
            "JetStream does not answer on this NATS server",
            remedy=NO_JETSTREAM_REMEDY,
        )
    if isinstance(error, NatsTimeoutError):
        return _unanswered(name, command, str(connection_of(js).last_error))
    assert isinstance(error, APIError)
    if error.err_code in _NO_ROOM:
        return NoRoomError(
            f"stream {name} can't be created: JetStream has no room for the "
            f"{(config.max_bytes or 0) / _GIB:.1f} GiB that it reserves ({error.description})",
            remedy=(
                "Free disk there, raise JetStream's max_file_store (without one, nats-server takes "
                "three quarters of the disk that is free when it starts), or set "
                "HEADRACE_CDC_BYTES_MAX (bytes) lower."
            ),
        )
    if error.err_code == _TOO_MANY_STREAMS:
        # Creating it by hand would be refused, too.
        return MissingObjectError(
            f"stream {name} can't be created: {error.description}",
            remedy="Raise max_streams of the NATS account: each bucket is a stream, too.",
        )
    return MissingObjectError(
        f"stream {name} can't be used: {error.description}",
        remedy=f"Have an administrator run: {command}",
    )


def _unanswered(name: str | None, command: str, complaint: str) -> MissingObjectError:
    """NATS reports a right that is missing to the connection, not to the request."""
    if _REFUSED in complaint.lower():
        return MissingObjectError(
            f"no answer about stream {name}: {complaint.removeprefix('nats: ')}",
            remedy=f"Grant it, or have an administrator run: {command}",
        )
    return MissingObjectError(
        f"JetStream did not answer about stream {name} in time",
        remedy=(
            "See whether nats-server is overloaded or starting. If not, the NATS user may lack "
            f"$JS.API.>: grant it, or have an administrator run: {command}"
        ),
    )
