"""The reference page of all settings, docs/settings.md, made from their declarations.

Owns the page's form and none of its facts: names, defaults, bounds and explanations are
`headrace.settings`'. Run as `python -m headrace.settings.reference_page PATH` it writes the page; a test
keeps it up to date. Nothing else imports it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import Field, fields
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_type_hints

from headrace.audit.settings import AuditSettings
from headrace.settings import Settings

_TITLES = {
    "postgres": "PostgreSQL",
    "nats": "NATS",
    "source": "Source",
    "streams": "Streams and buckets",
    "format": "Messages",
    "bus": "Internal bus and publishing",
    "snapshot": "Snapshots",
    "archive": "Archive",
    "watch": "Watching",
    "otel": "OpenTelemetry",
    "process": "Every process",
    "audit": "Audit trail",
}
# Options of the services' commands, where they have one.
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
_PARAGRAPH = """\
# Settings

Every setting is an environment variable, the same for all services. A few are options of the command as well; an
option wins over the variable. A bad value ends the process before it connects anywhere, with the name of the setting
and what to set it to; a variable that is nearly a setting (`HEADRACE_DELIVRY`) is told when a process begins.

A secret may come from a file: set `{NAME}_FILE` to its path instead of `{NAME}`. Secrets are never logged. Names that
end in `_S` are seconds, those that end in `_BYTES` or `_BYTES_MAX` are bytes. Lists are separated by commas. What is
not set for PostgreSQL, libpq's own variables decide (`PGHOST`, `PGSSLMODE`, `PGSERVICE`, `PGPASSFILE`, …).

This page is generated from the declarations in `libs/headrace/settings/__init__.py` and, for the audit trail, in
`libs/headrace/audit/settings.py`; don't edit it.
"""


def page() -> str:
    """The whole page."""
    parts = [_PARAGRAPH]
    for name, kind in groups().items():
        parts.append(
            f"## {_TITLES.get(name, name.capitalize())}\n\n{(kind.__doc__ or '').strip()}\n"
        )
        parts.append(
            "\n".join(["| variable | default | what it is |", "|---|---|---|", *_rows(kind)]) + "\n"
        )
    return "\n".join(parts)


def groups() -> dict[str, Any]:
    """Every group of settings by its name: those of all services, and the audit trail's own."""
    hints = get_type_hints(Settings)
    return {group.name: hints[group.name] for group in fields(Settings)} | {"audit": AuditSettings}


def _rows(kind: type) -> Iterator[str]:
    hints = get_type_hints(kind)
    for declared in fields(kind):
        env, explain = declared.metadata["env"], declared.metadata["help"]
        flag = f" `{FLAGS[env]}`" if env in FLAGS else ""
        notes = [explain, *_notes(declared, hints[declared.name])]
        yield f"| `{env}`{flag} | {_default(declared)} | {'; '.join(notes).replace('|', '&#124;')} |"


def _notes(declared: Field[Any], hint: Any) -> Iterator[str]:
    kind: Any = (
        next(t for t in get_args(hint) if t is not type(None))
        if isinstance(hint, UnionType)
        else hint
    )
    if isinstance(kind, type) and issubclass(kind, Enum):
        yield "one of " + ", ".join(f"`{member.value}`" for member in kind)
    if declared.metadata["least"] is not None and declared.metadata["least"] > 0:
        yield f"at least {_number(declared.metadata['least'])}"
    if declared.metadata["secret"]:
        yield "a secret"


def _default(declared: Field[Any]) -> str:
    match declared.default:
        case None | ():
            return ""
        case bool() as value:
            return f"`{str(value).lower()}`"
        case Enum() as value:
            return f"`{value.value}`"
        case int() | float() as value:
            return f"`{_number(value)}`"
        case value:
            return f"`{value}`"


def _number(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def main() -> None:
    Path(sys.argv[1]).write_text(page())


if __name__ == "__main__":
    main()
