"""Settings of the sinks; their own configuration is in headrace.toml."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.settings.declaration import setting


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """The file with the sinks ([Sinks](sinks.md))."""

    file: str = setting(
        "HEADRACE_CONFIG",
        "headrace.toml",
        "The file that describes the sinks. `headrace up` starts its sinks if the file exists. A "
        "variable `HEADRACE_SINK_{NAME}_{KEY}` overrides a key of a sink in it.",
    )
