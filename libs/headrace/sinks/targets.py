"""Which class writes to a target: by the scheme of its address, or by import path.

A built-in sink is imported only if it is used, because its client may not be installed.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from headrace.errors import HeadraceError
from headrace.extras import MissingPackageError
from headrace.sinks.port import Pace, Promise, Sink, SinkOptions

# By scheme: module and class, and the extra of `pip install 'headrace[…]'` that it needs.
_BUILT_IN = {
    "file": ("headrace.sinks.files:FilesSink", "archive"),
    "s3": ("headrace.sinks.files:FilesSink", "archive"),
    "gs": ("headrace.sinks.files:FilesSink", "archive"),
    "az": ("headrace.sinks.files:FilesSink", "archive"),
    "kafka": ("headrace.sinks.kafka:KafkaSink", "kafka"),
    "valkey": ("headrace.sinks.valkey:ValkeySink", "valkey"),
    "redis": ("headrace.sinks.valkey:ValkeySink", "valkey"),
    "rabbitmq-stream": ("headrace.sinks.rabbitmq_streams:RabbitStreamSink", "rabbitmq"),
    "rabbitmq": ("headrace.sinks.rabbitmq_queue:RabbitQueueSink", "rabbitmq"),
    "opensearch": ("headrace.sinks.opensearch:OpenSearchSink", ""),
    "elasticsearch": ("headrace.sinks.opensearch:OpenSearchSink", ""),
    "http": ("headrace.sinks.webhook:WebhookSink", ""),
    "https": ("headrace.sinks.webhook:WebhookSink", ""),
}
# Targets with tables: a mirror writes them (`headrace.mirror`), not a sink's class.
_DATABASES = ("postgresql", "postgres", "sqlite", "duckdb", "mariadb", "mysql")
SCHEMES = (*_BUILT_IN, *_DATABASES)
PYTHON = "python"

SinkClass = Callable[[SinkOptions], Sink]


class UnknownTargetError(HeadraceError):
    """No sink can be created for this address."""

    remedy = (
        f"Write an address that starts with one of {', '.join(f'{name}://' for name in SCHEMES)}, "
        "or `python:package.module:Class` for a class in your own program."
    )


def is_database(to: str) -> bool:
    """Whether the target of an address is a copy of the tables themselves."""
    scheme, separator, _ = to.partition("://")
    return bool(separator) and scheme in _DATABASES


def promise_to(to: str) -> Promise:
    """The promise of a sink with this address; raises if no sink writes to it."""
    if is_database(to):
        return Promise.EXACTLY_ONCE
    return promise_of(sink_class(to))


def sink_class(to: str) -> SinkClass:
    """The class for an address; a callable that takes `SinkOptions`."""
    scheme, _, rest = to.partition(":")
    if scheme == PYTHON:
        found: SinkClass = imported(rest)
        return found
    if scheme not in _BUILT_IN:
        raise UnknownTargetError(f"no sink writes to {scheme or to!r}")
    path, extra = _BUILT_IN[scheme]
    try:
        found = imported(path)
    except ModuleNotFoundError as error:
        if not extra or str(error.name).startswith("headrace"):
            raise
        raise MissingPackageError(str(error.name).partition(".")[0], extra) from error
    return found


def promise_of(made: SinkClass) -> Promise:
    """The promise of a sink's class."""
    return Promise(getattr(made, "promise", Promise.AT_LEAST_ONCE))


def keeps_marks(made: SinkClass) -> bool:
    """Whether the target has the sink's marks; otherwise the frame stores them."""
    return bool(getattr(made, "keeps_marks", promise_of(made) is Promise.EXACTLY_ONCE))


def pace_of(made: SinkClass) -> Pace:
    """When a sink of this class commits, unless its configuration says otherwise."""
    found: Pace = getattr(made, "pace", Pace())
    return found


def imported(path: str) -> Any:
    """The object that `package.module:name` names."""
    module, colon, name = path.partition(":")
    if not colon or not module or not name:
        raise UnknownTargetError(
            f"{path!r} is not an import path", remedy="Write `package.module:name`."
        )
    try:
        return getattr(import_module(module), name)
    except AttributeError as error:
        raise UnknownTargetError(
            f"{module} has no {name}", remedy="Write `package.module:name`."
        ) from error
