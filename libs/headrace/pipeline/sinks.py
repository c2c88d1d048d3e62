"""Sinks as a program names them, and the file that the services read. Pure.

Promises: secrets are never in the file, which refers to variables of the services' environment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

_SECRET = re.compile(r"password|secret|token")
# A secret that is not in the program's text.
_REFERENCES = ("env:", "file:")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


class SinkKeys:
    """One `[[sink]]` of headrace.toml: its address, any of its keys (docs/sinks.md), and the
    target's own options. `SinkKeys("s3://bucket/changes", tables=["orders"])` fits every sink.
    """

    # Precedes the address.
    prefix: ClassVar[str] = ""

    def __init__(self, to: str, *, options: Mapping[str, Any] | None = None, **keys: Any) -> None:
        self.to = self.prefix + to
        self.name = str(keys.pop("name", ""))
        self.keys = keys
        self.options = dict(options or {})

    def named(self, name: str) -> tuple[str, dict[str, str]]:
        """Its part of the file, and the variables that this part refers to."""
        variables: dict[str, str] = {}
        options = dict(self.options)
        for option, value in self.options.items():
            # The loader refuses a secret in the file, which others may read.
            if _SECRET.search(option) and not str(value).startswith(_REFERENCES):
                variable = f"PIPELINE_{name}_{option}".upper().replace("-", "_")
                variables[variable] = str(value)
                options[option] = f"env:{variable}"
        keys = {"name": name, "to": self.to, **self.keys}
        if options:
            keys["options"] = options
        lines = [f"{key} = {toml(value)}" for key, value in keys.items()]
        return "\n".join(["[[sink]]", *lines, ""]), variables


class Kafka(SinkKeys):
    """Kafka: `Kafka("broker:9092", topic="{schema}.{table}", tables=["orders"])`."""

    prefix = "kafka://"


class Valkey(SinkKeys):
    """Valkey or Redis: `Valkey("cache:6379", options={"form": "state"})`."""

    prefix = "valkey://"


class RabbitStreams(SinkKeys):
    """RabbitMQ's streams: `RabbitStreams("queue:5552")`."""

    prefix = "rabbitmq-stream://"


class RabbitQueues(SinkKeys):
    """RabbitMQ's queues: `RabbitQueues("queue:5672")`."""

    prefix = "rabbitmq://"


class OpenSearch(SinkKeys):
    """OpenSearch: `OpenSearch("search:9200", index="{table}", tables=["orders"])`."""

    prefix = "opensearch://"


class Webhook(SinkKeys):
    """A webhook: `Webhook("https://shop.example/hook", options={"secret": "whsec_…"})`."""


class Files(SinkKeys):
    """Files in a folder or in object storage: `Files("file:///var/lib/changes")`."""


class OwnSink(SinkKeys):
    """A class of the program: `OwnSink("own_sink:SqliteSink", options={"file": "events.db"})`."""

    prefix = "python:"


def configured(sinks: Sequence[SinkKeys]) -> tuple[str, dict[str, str]]:
    """The file of these sinks, and the variables that it refers to. A sink without a name has that
    of its kind, with a number from the second one on: its position belongs to the name.
    """
    parts = []
    variables: dict[str, str] = {}
    taken: set[str] = set()
    for sink in sinks:
        name = sink.name or _free_name(sink.to.partition(":")[0], taken)
        taken.add(name)
        part, more = sink.named(name)
        parts.append(part)
        variables |= more
    return "\n".join(parts), variables


def _free_name(kind: str, taken: set[str]) -> str:
    # Stable as long as the order of the sinks is: a name is where the position is stored.
    name = kind
    number = 1
    while name in taken:
        number += 1
        name = f"{kind}-{number}"
    return name


def toml(value: Any) -> str:
    """A value in TOML. JSON's texts, numbers and booleans are TOML's too."""
    if isinstance(value, Mapping):
        pairs = (f"{_key(name)} = {toml(one)}" for name, one in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml(one) for one in value) + "]"
    if hasattr(value, "isoformat"):
        return str(value.isoformat())
    return json.dumps(value)


def _key(name: str) -> str:
    if _BARE_KEY.fullmatch(name):
        return name
    return json.dumps(name)
