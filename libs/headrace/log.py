"""Structured logs: an event's name and fields, as logfmt or JSON lines, colored on a terminal.

Promises that every log record, including those of libraries, is written in one format. Never logs a
row's values or a secret: callers pass names, counts and positions. Hand-written on the standard
library because importing structlog would take a twelfth of an asyncio service's memory budget
(docs/adr/0007).
"""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from enum import StrEnum
from typing import TextIO

import orjson

from headrace.terminal.text import plain

# How often each warning or error was logged, under "{level} {event}", even if that level is not
# printed. Events are names in the code, so their number is bounded.
told: dict[str, float] = {}
_COLOURS = {"DEBUG": "2", "INFO": "32", "WARNING": "33", "ERROR": "31", "CRITICAL": "31;1"}


class LogFormat(StrEnum):
    LOGFMT = "logfmt"
    JSON = "json"


class EventLogger:
    """`log.info("lsn_confirmed", lsn=…)`: the only way the suite's code logs."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def _emit(
        self, level: int, event: str, fields: dict[str, object], error: BaseException | None = None
    ) -> None:
        if self._logger.isEnabledFor(level):
            # As an argument: a percent sign in an event is not a format.
            self._logger.log(level, "%s", event, extra={"fields": fields}, exc_info=error)

    def debug(self, event: str, **fields: object) -> None:
        self._emit(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        self._emit(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        _tell("warning", event, fields)
        self._emit(logging.WARNING, event, fields)

    def error(self, event: str, **fields: object) -> None:
        _tell("error", event, fields)
        self._emit(logging.ERROR, event, fields)

    def crash(self, event: str, error: BaseException, **fields: object) -> None:
        """An unexpected error: the only place that logs a traceback."""
        _tell("critical", event, fields)
        self._emit(logging.CRITICAL, event, fields, error)


def _tell(level: str, event: str, fields: dict[str, object]) -> None:
    if "part" in fields:
        kind = f"{level} {event}_{fields['part']}"
    else:
        kind = f"{level} {event}"
    told[kind] = told.get(kind, 0) + 1


def logger(name: str) -> EventLogger:
    return EventLogger(f"headrace.{name}")


class _LineFormatter(logging.Formatter):
    def __init__(self, service: str, form: LogFormat, *, coloured: bool) -> None:
        super().__init__()
        self._service = service
        self._form = form
        self._coloured = coloured

    def format(self, record: logging.LogRecord) -> str:
        fields = dict(getattr(record, "fields", {}))
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        time = (
            datetime.fromtimestamp(record.created, UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z")
        )
        head = {
            "time": time,
            "level": record.levelname.lower(),
            "service": self._service,
            "event": record.getMessage(),
        }
        if self._form is LogFormat.JSON:
            return plain(orjson.dumps(head | fields, default=str).decode())
        return self._logfmt(head, fields, record.levelname)

    def _logfmt(self, head: dict[str, str], fields: dict[str, object], level: str) -> str:
        line = " ".join(f"{key}={quote(value)}" for key, value in (head | fields).items())
        if self._coloured:
            return f"\x1b[{_COLOURS[level]}m{line}\x1b[0m"
        return line


def quote(value: object) -> str:
    """A value in logfmt: bare if that is unambiguous, else a quoted string."""
    text = str(value)
    if text and text.isprintable() and not any(mark in text for mark in ' "='):
        return text
    return plain(orjson.dumps(text).decode())


def configure(service: str, *, level: str, form: LogFormat, stream: TextIO | None = None) -> None:
    """Set up the process's logging; called once, before anything else runs."""
    out = stream or sys.stderr
    handler = logging.StreamHandler(out)
    handler.setFormatter(_LineFormatter(service, form, coloured=out.isatty()))
    root = logging.getLogger()
    # Handlers that a library installed would print each record twice, in another format.
    root.handlers[:] = [handler]
    # Libraries log only warnings; the setting is about the suite's own events.
    root.setLevel(logging.WARNING)
    logging.getLogger("headrace").setLevel(level.upper())
    # It warns about old servers even when the server is recent.
    logging.getLogger("nats.js.kv").setLevel(logging.ERROR)
