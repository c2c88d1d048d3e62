"""New sinks: the text for the sinks' file, checked as `headrace sinks plan` does; and the test of a
sink's connection.

Never writes the file and never connects to an address that is not in it: who may write the file
decides where values go and which secrets are used, and that is not who may use a page.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

from aiohttp import web

from headrace.console.json_answers import answer, body_of
from headrace.console.plans import STEP, Intent, Plans
from headrace.console.problem import invalid
from headrace.console.sinks import Sinks
from headrace.errors import HeadraceError, describe
from headrace.settings import Settings
from headrace.sinks.configuration import ConfigurationError, SinkConfiguration, parse_sinks
from headrace.sinks.operating import promise_text, shown_address
from headrace.sinks.port import SinkAwayError
from headrace.sinks.targets import PYTHON
from headrace.sinks.trying import tried

TEXT_CHARACTERS_MAX = 20_000
# Less than a request may take.
TEST_S = 10.0


class Drafts:
    def __init__(self, settings: Settings, sinks: Sinks, plans: Plans) -> None:
        self._settings = settings
        self._sinks = sinks
        self._plans = plans

    async def check(self, request: web.Request) -> web.Response:
        """The plan of a new sink, or the mistake in its text. Changes nothing."""
        body = await body_of(request, "text")
        text = body.get("text")
        if not isinstance(text, str) or not text.strip() or len(text) > TEXT_CHARACTERS_MAX:
            raise invalid(f"text is the TOML of a sink, of {TEXT_CHARACTERS_MAX} characters")
        file = self._settings.sinks.file
        found: dict[str, Any] = {"file": file, "problem": None, "sinks": [], "commands": []}
        try:
            added = self._added(text)
        except (HeadraceError, ImportError) as error:
            return answer({**found, "problem": describe(error)})
        found["sinks"] = [await self._planned(sink) for sink in added]
        found["commands"] = [
            "headrace sinks plan",
            *(f"headrace sinks test {sink.name}" for sink in added),
            *(f"headrace sink {sink.name}" for sink in added),
        ]
        return answer(found)

    def _added(self, text: str) -> list[SinkConfiguration]:
        """The sinks of the text, checked together with those of the file."""
        file = self._settings.sinks.file
        try:
            before = Path(file).read_text(encoding="utf-8").rstrip("\n")
        except (OSError, ValueError):
            # The text itself can be checked all the same.
            before = ""
        # Without the environment: its variables belong to the sinks' processes.
        both = f"{before}\n\n{text}" if before else text
        # Before anything is parsed further: a check of a sink imports the class that it names.
        _check_shape(before, both, file)
        known = parse_sinks(before, file, {}) if before else {}
        return [sink for name, sink in parse_sinks(both, file, {}).items() if name not in known]

    async def _planned(self, sink: SinkConfiguration) -> dict[str, Any]:
        tables = await self._sinks.taken(sink)
        return {
            "name": sink.name,
            "to": shown_address(sink.to),
            "promise": promise_text(sink) or None,
            "tables": [f"{one['schema']}.{one['table']}" for one in tables],
            "format": str(sink.format),
            "snapshot": str(sink.snapshot),
            "on_error": str(sink.on_error),
        }

    async def test(self, request: web.Request) -> web.Response:
        """Connect to the target of a sink in the file, and log in."""
        body = await body_of(request, *STEP)
        name, file = self._sinks.named(request)
        sink = file.declared(name, "headrace sinks test")

        async def do() -> tuple[str | None, str]:
            return None, f"It works: {await _tried(sink)}."

        intent = Intent(
            "test-sink",
            name,
            f"The console connects to the target of {name}, and logs in.",
            ["Nothing is written there, and the sink's process continues."],
            f"headrace sinks test {name}",
            [shown_address(sink.to)],
            do,
        )
        return await self._plans.handle(request, body, intent)


async def _tried(sink: SinkConfiguration) -> str:
    try:
        return await tried(sink, os.environ, TEST_S)
    except HeadraceError:
        raise
    except Exception as error:
        # Clients raise anything, and the text of an unknown error may contain a secret.
        raise SinkAwayError(f"the target does not answer: {type(error).__name__}") from error


def _check_shape(before: str, both: str, file: str) -> None:
    """Raise unless the text only adds sinks whose check runs no code but Headrace's."""
    try:
        old = tomllib.loads(before).get("sink") or []
        found = tomllib.loads(both).get("sink") or []
    except tomllib.TOMLDecodeError:
        # The parser of sinks names the line.
        return
    if not isinstance(found, list) or not isinstance(old, list):
        return
    # Keys before the first table would belong to the last sink of the file.
    if found[: len(old)] != old or len(found) == len(old):
        raise ConfigurationError(
            f"the text adds no sink to {file}", remedy="Begin each sink with a line [[sink]]."
        )
    for table in found[len(old) :]:
        own = isinstance(table, dict) and str(table.get("to", "")).partition(":")[0] == PYTHON
        if own or "function" in table:
            raise ConfigurationError(
                "the console does not load classes and functions of your own programs",
                remedy="Add the sink to the file, and run `headrace sinks plan` there.",
            )
