"""The chart's values.schema.json and README.md, made from values.yaml: its comments are the
descriptions.

Owns the form of both and the few bounds that a default can't tell; a test keeps the files up to
date. Also copies what the chart ships of other folders (alerts, dashboards): it has only its own
files. Run as `python generate.py`.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).resolve().parents[1]
CHART = DEPLOY / "helm/headrace"
_KEY = re.compile(r"^( *)(?:- )?([A-Za-z][\w-]*):")
# What no default tells.
_BOUNDS: dict[str, dict[str, Any]] = {
    "image.pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
    "postgres.sslmode": {
        "enum": ["disable", "allow", "prefer", "require", "verify-ca", "verify-full"]
    },
    "postgres.authentication": {"enum": ["password", "certificate"]},
    "nats.authentication": {"enum": ["password", "credentials", "nkey", "certificate"]},
    "postgres.port": {"minimum": 1, "maximum": 65535},
    "nats.url": {"pattern": r"^$|^((nats|tls|ws|wss)://[^,\s]+)(,(nats|tls|ws|wss)://[^,\s]+)*$"},
    "spark.remote": {"pattern": "^$|^sc://"},
    "archive.url": {"pattern": "^$|^(s3|gs|az)://"},
    "backup.url": {"pattern": "^$|^(s3|gs|az)://"},
    "lake.url": {"pattern": "^$|^(s3|gs|az)://"},
    "lake.catalogPort": {"minimum": 1, "maximum": 65535},
    "console.sqlPort": {"minimum": 1, "maximum": 65535},
    "audit.port": {"minimum": 0, "maximum": 65535},
    "audit.schema": {"pattern": "^[A-Za-z_][A-Za-z0-9_]{0,39}$"},
    "audit.table": {"pattern": "^[A-Za-z_][A-Za-z0-9_]{0,39}$"},
    "mirror.to": {"pattern": r"^$|^postgres(ql)?://[^:@/\s]+@[^@\s]+$"},
}
_SETTINGS = {
    "type": "object",
    "propertyNames": {
        "pattern": "^(HEADRACE_[A-Z0-9_]+|NATS_[A-Z0-9_]+|PG[A-Z]+)$",
        # Anyone who may read manifests could sign in with these: they come only from secrets.
        "not": {
            "enum": [
                "HEADRACE_CONSOLE_TOKEN",
                "HEADRACE_CONSOLE_PROXY_SECRET",
                "HEADRACE_CONSOLE_SQL_URL",
            ]
        },
    },
    "additionalProperties": {"type": ["string", "number", "boolean"]},
}
_SLOT = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name", "publication"],
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z0-9_]{1,40}$"},
        "publication": {"type": "string", "minLength": 1},
        "settings": _SETTINGS,
    },
}
_AUDIT_SETTINGS = {
    "type": "object",
    "propertyNames": {"pattern": "^(HEADRACE_AUDIT_[A-Z_]+|DEST_DB_SSL_[A-Z_]+)$"},
    "additionalProperties": {"type": ["string", "number", "boolean"]},
}
_STRINGS = {"type": "array", "items": {"type": "string"}}
_PORTS = {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 65535}}
# As long as the names of Kubernetes' objects allow, after the names of release and slot.
_NAME = {"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$"}
_JOB = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name", "schedule", "args"],
    "properties": {
        "name": _NAME,
        "schedule": {"type": "string", "minLength": 1},
        "args": _STRINGS | {"minItems": 1},
        "image": {"type": "string"},
        "scratch": {"type": "string"},
        "postgresSecret": {"type": "string"},
    },
}
_SINK = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name", "toml"],
    "properties": {
        "name": _NAME,
        "toml": {"type": "string", "minLength": 1},
        "slot": {"type": "string"},
        "secrets": _STRINGS,
        "files": {"type": "string"},
        "ports": _PORTS,
        "natsSecret": {"type": "string"},
        "resources": {"type": "object"},
    },
}
_WHOLE: dict[str, dict[str, Any]] = {
    "settings": _SETTINGS,
    "slots": {"type": "array", "minItems": 1, "items": _SLOT},
    "imagePullSecrets": _STRINGS,
    "archive.secrets": _STRINGS,
    "lake.secrets": _STRINGS,
    "sql.secrets": _STRINGS,
    "sql.settings": _SETTINGS,
    "backup.secrets": _STRINGS,
    "backup.settings": _SETTINGS,
    "backup.jobs": {"type": "array", "items": _JOB},
    "archive.jobs": {"type": "array", "items": _JOB},
    "sinks": {"type": "array", "items": _SINK},
    "audit.settings": _AUDIT_SETTINGS,
    "console.proxies": _STRINGS,
    "console.secrets": _STRINGS,
    "console.settings": _SETTINGS,
    "mirror.tables": _STRINGS,
    "networkPolicy.egressPorts": _PORTS,
    "tolerations": {"type": "array", "items": {"type": "object"}},
}
_OPEN = re.compile(
    r"(^|\.)(resources|labels|annotations|podAnnotations|nodeSelector|affinity|metricsFrom|clientsFrom)$",
)
_HEAD = """\
# Headrace's Helm chart

Installs Headrace, change data capture (CDC) for PostgreSQL on NATS JetStream: one suite per replication slot, with a
Deployment for each service. `docs/deploy-kubernetes.md` explains how to use it, from the secrets to the first event.

    helm install headrace deploy/helm/headrace -f my-values.yaml

This page and `values.schema.json` are generated from `values.yaml` (`./taskw chart`); don't edit them.

| value | default | description |
|---|---|---|
"""


def comments(text: str) -> dict[str, str]:
    """Return the comment above each key, by the key's path."""
    found: dict[str, str] = {}
    stack: list[tuple[int, str]] = []
    said: list[str] = []
    for line in text.splitlines():
        if line.strip().startswith("#"):
            said.append(line.strip().lstrip("# "))
        elif match := _KEY.match(line):
            depth = len(match[1])
            stack = [(d, key) for d, key in stack if d < depth] + [(depth, match[2])]
            found[".".join(key for _, key in stack)] = " ".join(said)
            said = []
        else:
            said = []
    return found


def schema(value: Any, path: str, told: dict[str, str]) -> dict[str, Any]:
    """The schema of a value by its default."""
    about = {"description": told[path]} if told.get(path) else {}
    if path in _WHOLE:
        return about | _WHOLE[path]
    if isinstance(value, dict):
        if _OPEN.search(path):
            return about | {"type": "object"}
        children = {
            key: schema(child, f"{path}.{key}".lstrip("."), told) for key, child in value.items()
        }
        return about | {"type": "object", "additionalProperties": False, "properties": children}
    kind = {bool: "boolean", int: "integer", str: "string"}[type(value)]
    least = {"minimum": 0} if path.endswith("replicas") else {}
    return about | {"type": kind} | least | _BOUNDS.get(path, {})


def values_schema() -> str:
    """The text of values.schema.json."""
    text = (CHART / "values.yaml").read_text()
    made = schema(yaml.safe_load(text), "", comments(text))
    made = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the chart headrace",
    } | made
    # Helm hands `global` to every chart.
    made["properties"]["global"] = {"type": "object"}
    return json.dumps(made, indent=2) + "\n"


def _rows(value: Any, path: str, told: dict[str, str]) -> Iterator[str]:
    if isinstance(value, dict) and value and not _OPEN.search(path) and path not in _WHOLE:
        if told.get(path):
            yield f"| **`{path}`** |  | {told[path]} |"
        for key, child in value.items():
            yield from _rows(child, f"{path}.{key}".lstrip("."), told)
    else:
        yield f"| `{path}` | `{json.dumps(value)}` | {told.get(path, '').replace('|', '&#124;')} |"


def readme() -> str:
    """The text of the chart's README.md."""
    text = (CHART / "values.yaml").read_text()
    return _HEAD + "\n".join(_rows(yaml.safe_load(text), "", comments(text))) + "\n"


def shipped() -> dict[Path, Path]:
    """The chart's copies, and what they are of."""
    dashboards = sorted((DEPLOY / "grafana/dashboards").glob("*.json"))
    copies = {CHART / "files/dashboards" / path.name: path for path in dashboards}
    return {CHART / "files/alerts.yaml": DEPLOY / "prometheus/alerts.yaml", **copies}


def main() -> None:
    (CHART / "values.schema.json").write_text(values_schema())
    (CHART / "README.md").write_text(readme())
    (CHART / "files/dashboards").mkdir(parents=True, exist_ok=True)
    for copy, of in shipped().items():
        shutil.copyfile(of, copy)


if __name__ == "__main__":
    main()
