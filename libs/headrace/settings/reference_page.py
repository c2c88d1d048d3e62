"""Generates docs/settings.md, the reference page of all settings, from their declarations.

Owns the page's form and none of its facts. Run as `python -m headrace.settings.reference_page PATH`
it writes the page; a test keeps the page up to date. Nothing else imports it.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from dataclasses import Field, fields
from enum import Enum
from pathlib import Path
from typing import Any, get_type_hints

from headrace.audit.settings import AuditSettings
from headrace.settings import Settings
from headrace.settings.declaration import MIB, without_none

_LINE = 120
_TITLES = {
    "postgres": "PostgreSQL",
    "nats": "NATS",
    "source": "Source",
    "streams": "Streams and buckets",
    "format": "Messages",
    "bus": "Internal bus",
    "state": "Leases and resume points",
    "snapshot": "Snapshots",
    "sql": "SQL",
    "watch": "Monitoring",
    "otel": "OpenTelemetry",
    "process": "Every service",
    "audit": "Audit trail",
}
# Options of the services' commands.
FLAGS = {
    "HEADRACE_SLOT": "--slot",
    "HEADRACE_PUB": "--pub",
    "HEADRACE_HTTP_PORT": "--port",
    "HEADRACE_ENCODING": "--json",
    "HEADRACE_ARRAYS": "--arrays",
    "HEADRACE_DELIVERY": "--delivery",
    "HEADRACE_POISON": "--poison",
    "HEADRACE_COMPAT": "--compat",
    "HEADRACE_ZSTD": "--zstd",
    "HEADRACE_ZSTD_EVENTS": "--zstd-events",
}
_INTRODUCTION = """\
# Settings

Every setting is an environment variable, and all services read the same ones. Set them alike for
all services of a suite. A few settings are also options of the commands; an option overrides the
variable. An invalid value ends the process before it connects to anything, with an error that names
the setting and the values it accepts. Misspelled settings such as `HEADRACE_DELIVRY` are reported
at startup.

- **Secrets.** To read a secret from a file, set `{NAME}_FILE` to the file's path instead of
  `{NAME}`. Secrets are never logged.
- **Units.** Names that end in `_S` are seconds; names that end in `_BYTES` or `_BYTES_MAX` are
  bytes.
- **Lists** are separated by commas. **Booleans** are `true` or `false`.
- **libpq.** libpq's variables apply where a PostgreSQL setting is unset (`PGHOST`, `PGSSLMODE`,
  `PGSERVICE`, `PGPASSFILE`, …).

The defaults suit most installations. This page is generated from the declarations in
`libs/headrace/settings` and `libs/headrace/audit/settings.py`; don't edit it by hand.
"""


def page() -> str:
    """The whole page."""
    parts = [_INTRODUCTION]
    for name, kind in groups().items():
        parts.append(f"## {_TITLES.get(name, name.capitalize())}\n")
        parts.append(_wrapped(kind.__doc__ or "") + "\n")
        parts += _entries(kind)
    return "\n".join(parts)


def groups() -> dict[str, Any]:
    """Every group of settings by its name: those of all services, and the audit trail's own."""
    hints = get_type_hints(Settings)
    return {group.name: hints[group.name] for group in fields(Settings)} | {"audit": AuditSettings}


def _entries(kind: type) -> Iterator[str]:
    """A heading, a paragraph and a line of facts for each setting."""
    hints = get_type_hints(kind)
    for declared in fields(kind):
        yield f"### {declared.metadata['env']}\n"
        yield _wrapped(declared.metadata["help"]) + "\n"
        yield _wrapped(" · ".join(_facts(declared, hints[declared.name]))) + "\n"


def _facts(declared: Field[Any], hint: Any) -> Iterator[str]:
    kind = without_none(hint)
    if isinstance(kind, type) and issubclass(kind, Enum):
        yield "Values: " + ", ".join(f"`{member.value}`" for member in kind)
    yield f"Default: {_default(declared)}"
    least = declared.metadata["least"]
    if least:
        yield f"Minimum: {_number(least)}"
    if declared.metadata["env"] in FLAGS:
        yield f"Option: `{FLAGS[declared.metadata['env']]}`"
    if declared.metadata["secret"]:
        yield f"Secret (or `{declared.metadata['env']}_FILE`)"


def _default(declared: Field[Any]) -> str:
    value: Any = declared.default
    if value is None:
        return "unset"
    if value == ():
        return "empty"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    shown = f"`{_number(value)}`"
    if "_BYTES" in declared.metadata["env"] and value >= MIB:
        shown += f" ({value / MIB:g} MiB)"
    return shown


def _number(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def _wrapped(text: str) -> str:
    return textwrap.fill(
        " ".join(text.split()), _LINE, break_long_words=False, break_on_hyphens=False
    )


def main() -> None:
    Path(sys.argv[1]).write_text(page())


if __name__ == "__main__":
    main()
