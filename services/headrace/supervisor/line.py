"""A line of a service's output: its log event and level. Pure.

Understands both log formats of the suite. Any other output (a library's warning, the METRICS line)
is kept as it is, and is never treated as grave.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson

_FIELD = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|\S*)')
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_HEAD = ("time", "level", "service", "event")
_GRAVE = frozenset({"warning", "error", "critical"})
FAILED = "service_failed"


@dataclass(frozen=True, slots=True)
class Line:
    """One line, parsed as far as possible."""

    text: str
    level: str = ""
    event: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)

    @property
    def grave(self) -> bool:
        """Whether a user should see it without asking."""
        return self.level in _GRAVE

    @property
    def summary(self) -> str:
        """The event and its fields, without what every line repeats."""
        if not self.event:
            return self.text
        head = " ".join(
            [
                self.event,
                *(f"{name}={value}" for name, value in self.fields.items() if name != "reason"),
            ]
        )
        if "reason" in self.fields:
            return f"{head}: {self.fields['reason']}"
        return head

    @property
    def failure(self) -> str:
        """Why the service ended, if this line tells it."""
        if self.event == FAILED:
            return self.fields.get("reason", "")
        return ""


def parse(text: str) -> Line:
    """Parse a line."""
    plain = _COLOUR.sub("", text.rstrip())
    if plain.startswith("{"):
        found = _json_fields(plain)
    else:
        found = _logfmt_fields(plain)
    if "level" not in found or "event" not in found:
        return Line(plain)
    rest = {name: value for name, value in found.items() if name not in _HEAD}
    return Line(plain, found["level"], found["event"], rest)


def _json_fields(text: str) -> dict[str, str]:
    try:
        return {str(name): str(value) for name, value in orjson.loads(text).items()}
    except orjson.JSONDecodeError:
        return {}


def _logfmt_fields(text: str) -> dict[str, str]:
    # A library's output may contain `name=value` too.
    if not text.startswith("time="):
        return {}
    return {name: _unquoted(value) for name, value in _FIELD.findall(text)}


def _unquoted(value: str) -> str:
    if not value.startswith('"'):
        return value
    try:
        return str(orjson.loads(value))
    except orjson.JSONDecodeError:
        return value
