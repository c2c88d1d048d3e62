"""Detects environment variables that look like misspelled settings. Pure.

Never reports a variable that may be meant for another program: Kubernetes adds variables for every
service of a cluster, and images bring their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import get_type_hints

from headrace.audit.settings import AuditSettings
from headrace.settings import Settings

_PREFIXES = ("HEADRACE_", "PG_", "POSTGRES_BRIDGE_", "NATS_", "DEST_DB_")
# Common wrong names of settings.
_COMMON_MISTAKES = {
    "PG_USER": "POSTGRES_BRIDGE_USER",
    "PG_PASSWORD": "POSTGRES_BRIDGE_PASSWORD",
    "PG_DATABASE": "PG_DB",
    "PG_DBNAME": "PG_DB",
    "NATS_USER": "NATS_BRIDGE_USER",
    "NATS_PASSWORD": "NATS_BRIDGE_PASSWORD",
    "HEADRACE_PORT": "HEADRACE_HTTP_PORT",
    "HEADRACE_PUBLICATION": "HEADRACE_PUB",
    "HEADRACE_JSON": "HEADRACE_ENCODING",
}
# compose.yaml reads these for its second suite.
_OF_COMPOSE = frozenset({"HEADRACE_SLOT_2", "HEADRACE_PUB_2"})
# High, so that variables of other programs don't count as misspelled settings.
_SIMILARITY = 0.85


def names() -> frozenset[str]:
    """Every environment variable that is a setting."""
    groups = [get_type_hints(Settings)[group.name] for group in fields(Settings)]
    declared = [field.metadata for group in (*groups, AuditSettings) for field in fields(group)]
    return frozenset(
        [one["env"] for one in declared]
        + [f"{one['env']}_FILE" for one in declared if one["secret"]],
    )


def misspelled(environ: Mapping[str, str]) -> list[str]:
    """A warning for each variable that looks like a misspelled setting."""
    known = names()
    unknown = sorted(
        name for name in environ if name.startswith(_PREFIXES) and name not in known | _OF_COMPOSE
    )
    # Kubernetes sets variables such as NATS_PORT=tcp://10.0.0.1:4222 for each service.
    found = (
        (name, _meant(name, known)) for name in unknown if not environ[name].startswith("tcp://")
    )
    return [
        f"Unknown setting {name}. Did you mean {meant}?"
        for name, meant in found
        # If the right name is set as well, the other one is probably not a mistake.
        if meant and meant not in environ
    ]


def _meant(name: str, known: frozenset[str]) -> str | None:
    if name in _COMMON_MISTAKES:
        return _COMMON_MISTAKES[name]
    # Imported only when needed, to keep services small.
    from difflib import get_close_matches  # noqa: PLC0415

    return next(iter(get_close_matches(name, known, n=1, cutoff=_SIMILARITY)), None)
