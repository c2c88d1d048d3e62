"""compose.yaml as Docker Compose understands it, as far as it is used here: anchors, merges, and
variables' defaults.

Reads only. Promises that what it does not understand is an error and not a guess.
"""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "compose.yaml"
SERVERS = ROOT / "deploy/docker/compose.servers.yaml"
# Where requirements.lock brings a Helm; elsewhere tests with it are skipped unless one is
# installed.
HAS_LOCKED_HELM = sys.platform == "linux" and platform.machine() == "x86_64"
_VARIABLE = re.compile(r"\$\{(\w+):-([^{}]*)\}")


def expanded(value: Any, environ: Mapping[str, str]) -> Any:
    """A node with its variables replaced."""
    if isinstance(value, dict):
        return {key: expanded(child, environ) for key, child in value.items()}
    if isinstance(value, list):
        return [expanded(child, environ) for child in value]
    if isinstance(value, str):
        text = _VARIABLE.sub(lambda match: environ.get(match[1]) or match[2], value)
        assert "$" not in text, f"an unknown form of variable: {value}"
        return text
    return value


@dataclass(frozen=True, slots=True)
class Service:
    """A service of the file."""

    name: str
    body: Mapping[str, Any]

    @property
    def environment(self) -> dict[str, str]:
        return {name: str(value) for name, value in self.body.get("environment", {}).items()}

    @property
    def command(self) -> list[str]:
        return [str(part) for part in self.body.get("command", [])]

    @property
    def probe(self) -> list[str]:
        """The health check's command, without Compose's own first word."""
        kind, *command = self.body["healthcheck"]["test"]
        assert kind == "CMD", "the core image has no shell"
        return [str(part) for part in command]

    @property
    def published(self) -> list[str]:
        return [str(port) for port in self.body.get("ports", [])]


def services(environ: Mapping[str, str] | None = None, *overrides: Path) -> dict[str, Service]:
    """Every service, of every profile."""
    bodies = dict(_bodies(COMPOSE))
    for override in overrides:
        for name, body in _bodies(override).items():
            bodies[name] = {**bodies[name], **body}
    return {name: Service(name, expanded(body, environ or {})) for name, body in bodies.items()}


@cache
def _bodies(file: Path) -> Mapping[str, Mapping[str, Any]]:
    bodies: dict[str, dict[str, Any]] = yaml.load(file.read_text(), yaml.CSafeLoader)["services"]
    return bodies
