"""The environment of a simulated process: short times, small windows."""

from __future__ import annotations

from dataclasses import fields
from functools import cache, lru_cache
from typing import Any, get_type_hints
from unittest import mock

from headrace import settings
from headrace.settings import Settings, declaration, load

BASE = Settings()
# Python takes long to evaluate annotations.
_hints = cache(get_type_hints)
_FIXED = {
    "HEADRACE_IN_FLIGHT_BYTES_MAX": "65536",
    "HEADRACE_ACK_TIMEOUT_S": "2.0",
    "HEADRACE_LEASE_TTL_S": "1.5",
}
# An option of a plan, as the variable that it is.
_VARIABLES = {
    "mode": "HEADRACE_DELIVERY",
    "ingest": "HEADRACE_INGEST",
    "encoding": "HEADRACE_ENCODING",
    "prefix": "HEADRACE_MESSAGE_PREFIXES",
    "progress_s": "HEADRACE_PROGRESS_INTERVAL_S",
    "window": "HEADRACE_WINDOW_MESSAGES_MAX",
    "group": "HEADRACE_BATCH_EVENTS_MAX",
    "atomic": "HEADRACE_ATOMIC_MESSAGES_MAX",
    "age_s": "HEADRACE_BATCH_AGE_MAX_S",
    "dedupe_s": "HEADRACE_DEDUPE_WINDOW_S",
    "catalog_s": "HEADRACE_CATALOG_INTERVAL_S",
    "frame": "HEADRACE_FRAME_BYTES_MAX",
    "archive": "HEADRACE_ARCHIVE_URL",
    "archive_required": "HEADRACE_ARCHIVE_REQUIRED",
    "patience_s": "HEADRACE_ARCHIVE_PATIENCE_S",
    "rows": "HEADRACE_ARCHIVE_FILE_ROWS_MAX",
    "file_age_s": "HEADRACE_ARCHIVE_FILE_AGE_MAX_S",
    "put_timeout_s": "HEADRACE_ARCHIVE_PUT_TIMEOUT_S",
}


def settings_of(options: dict[str, Any], source: str) -> Settings:
    """A process's settings."""
    given = {_VARIABLES[name]: str(value) for name, value in options.items() if name in _VARIABLES}
    own = {"HEADRACE_SLOT": f"source_{source}", "HEADRACE_PUB": f"pub_{source}"}
    return _loaded(tuple(sorted({**_FIXED, **given, **own}.items())))


# The two sources of a history, and the histories of a plan that is shrunk.
@lru_cache(maxsize=16)
def _loaded(environment: tuple[tuple[str, str], ...]) -> Settings:
    with (
        mock.patch.object(settings, "get_type_hints", _hints),
        mock.patch.object(declaration, "get_type_hints", _hints),
        mock.patch.object(settings, "load_group", _group),
    ):
        return load(dict(environment))


def _group(kind: type, environ: dict[str, str], given: dict[str, object]) -> Any:
    """Most groups are the same in each history."""
    assert not given, given
    own = tuple((name, environ[name]) for name in _names(kind) if name in environ)
    return _known_group(kind, own)


@cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(one.metadata["env"] for one in fields(kind))


@lru_cache(maxsize=10_000)
def _known_group(kind: type, environment: tuple[tuple[str, str], ...]) -> Any:
    return declaration.load_group(kind, dict(environment), {})
