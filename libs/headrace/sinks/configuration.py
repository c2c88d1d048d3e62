"""headrace.toml: the sinks of a suite, checked before anything is connected.

Promises: an error names file, line and key; an environment variable `HEADRACE_SINK_{NAME}_{KEY}`
overrides a key; a secret is never in the file, only a reference to it (`env:NAME`, `file:PATH`).
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from headrace.contract.table_patterns import listed, names_table
from headrace.errors import HeadraceError
from headrace.mirror.rules import CopyRules, NameTemplate
from headrace.sinks.conditions import RowTest
from headrace.sinks.configuration_keys import (
    DATABASE_KEYS,
    KEYS,
    TABLE_KEYS,
    Initial,
    OnError,
    SinkOperation,
)
from headrace.sinks.formats import Format
from headrace.sinks.port import Pace
from headrace.sinks.targets import is_database, pace_of, sink_class
from headrace.sinks.toml_lines import Path as KeyPath
from headrace.sinks.toml_lines import line_of, lines_of

FILE = "headrace.toml"
_PREFIX = "HEADRACE_SINK_"
# The name is a part of keys and of consumers' names in NATS, where a dot separates.
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_SECRET = re.compile(r"password|secret|token", re.IGNORECASE)


class ConfigurationError(HeadraceError):
    """headrace.toml, or a variable that overrides it, is not valid."""


@dataclass(frozen=True, slots=True)
class SinkConfiguration:
    """One `[[sink]]`."""

    name: str
    to: str
    tables: tuple[str, ...] = ()
    operations: tuple[SinkOperation, ...] = tuple(SinkOperation)
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    where: Mapping[str, tuple[RowTest, ...]] = field(default_factory=dict)
    key: tuple[str, ...] = ()
    destination: str = "{schema}.{table}"
    format: Format = Format.JSON
    snapshot: Initial = Initial.NEVER
    on_error: OnError = OnError.STOP
    function: str = ""
    pace: Pace = field(default_factory=Pace)
    options: Mapping[str, Any] = field(default_factory=dict)
    soft_delete: str = ""
    history: bool = False

    def takes(self, schema: str, table: str) -> bool:
        """Whether the sink wants this table."""
        return not self.tables or any(names_table(one, schema, table) for one in self.tables)

    def where_of(self, schema: str, table: str) -> tuple[RowTest, ...]:
        """The conditions for a table's rows."""
        for pattern, tests in self.where.items():
            if names_table(pattern, schema, table):
                return tests
        return ()

    @property
    def rules(self) -> CopyRules:
        """The rules of tables in a database; raises for a template that only records have."""
        return CopyRules(self.destination, self.columns, self.soft_delete, self.history)

    def secrets(self, environ: Mapping[str, str]) -> dict[str, Any]:
        """The options, with references replaced by what they refer to."""
        return {name: _resolved(name, value, environ) for name, value in self.options.items()}

    def address(self, environ: Mapping[str, str]) -> str:
        """The target's address; it may be a secret itself."""
        if self.to.startswith("env:"):
            return str(_resolved("to", self.to, environ))
        return self.to


def load_sinks(path: Path, environ: Mapping[str, str] = os.environ) -> dict[str, SinkConfiguration]:
    """The sinks of a file, by name."""
    try:
        text = path.read_text()
    except OSError as error:
        raise ConfigurationError(
            f"{path} can't be read: {error.strerror}",
            remedy="Name the file with --config or HEADRACE_CONFIG.",
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is not UTF-8") from error
    return parse_sinks(text, str(path), environ)


def parse_sinks(text: str, file: str, environ: Mapping[str, str]) -> dict[str, SinkConfiguration]:
    """The sinks of a file's text."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        # Before Python 3.14, tomllib has the line in the message only.
        place = re.search(r"line (\d+)", str(error))
        line = place[1] if place else "1"
        raise ConfigurationError(f"{file}:{line}: {error}") from error
    reader = _Reader(file, lines_of(text))
    for name in content:
        if name != "sink":
            reader.refuse((name,), "is not a key of this file: it consists of [[sink]] tables")
    tables = content.get("sink", [])
    if not isinstance(tables, list):
        reader.refuse(("sink",), "is not an array of tables: write [[sink]]")
    found: dict[str, SinkConfiguration] = {}
    for index, table in enumerate(tables):
        sink = reader.sink(index, table, environ)
        if sink.name in found:
            reader.refuse(("sink", index, "name"), f"{sink.name!r} is the name of another sink")
        found[sink.name] = sink
    return found


def _resolved(name: str, value: Any, environ: Mapping[str, str]) -> Any:
    if not isinstance(value, str):
        return value
    kind, _, rest = value.partition(":")
    if kind == "env":
        if rest not in environ:
            raise ConfigurationError(f"{name} = {value!r}: the variable is not set")
        return environ[rest]
    # `file://` is an address, and no reference.
    if kind == "file" and not rest.startswith("//"):
        try:
            # Editors and `echo` end a file with a line end, which no password has.
            return Path(rest).read_text().rstrip("\n")
        except OSError as error:
            raise ConfigurationError(
                f"{name} = {value!r}: the file can't be read: {error.strerror}"
            ) from error
    return value


def _is_reference(value: object) -> bool:
    # `_resolved` leaves an address as it is: it would be sent as the password.
    return isinstance(value, str) and re.match("env:|file:(?!//)", value) is not None


@dataclass(slots=True)
class _Reader:
    """Reads one file; `overridden` are the variables behind keys of the current sink."""

    file: str
    lines: dict[KeyPath, int]
    overridden: dict[str, str] = field(default_factory=dict)

    def refuse(self, path: KeyPath, why: str, remedy: str = "") -> NoReturn:
        key = ".".join(str(part) for part in path if isinstance(part, str))
        # The value is not in the file, so its line would mislead.
        if len(path) > 2 and (variable := self.overridden.get(str(path[2]))):
            where = variable
        else:
            where = f"{self.file}:{line_of(self.lines, path)}: {key}"
        raise ConfigurationError(f"{where} {why}", remedy=remedy or None)

    def sink(self, index: int, table: object, environ: Mapping[str, str]) -> SinkConfiguration:
        at: KeyPath = ("sink", index)
        if not isinstance(table, dict):
            self.refuse(at, "is not a table: write [[sink]]")
        name = table.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            self.refuse(
                (*at, "name"),
                f"{name!r} is not a sink's name",
                "Use 1 to 40 lower-case letters, digits and hyphens.",
            )
        # Before anything is read: a variable is checked like the key that it replaces.
        table = self._overriding(name, table, environ)
        values: dict[str, Any] = {}
        for key, value in table.items():
            # A misspelled key would otherwise be ignored, with its effect.
            if key not in KEYS:
                self.refuse((*at, key), f"is not a key of a sink; they are {', '.join(KEYS)}")
            to, read = KEYS[key]
            try:
                values[to] = read(value)
            except (ValueError, HeadraceError) as error:
                self.refuse((*at, key), str(error))
        if "to" not in values:
            self.refuse(at, f"{name!r} has no key `to`, the target's address")
        # Which keys are valid depends on the target, so it is decided first.
        if is_database(known_address(values["to"], environ)):
            self._check_database(at, name, table)
            # The only ones that a copy can have, so that `plan` shows what happens.
            values["snapshot"] = Initial.INITIAL
            values["on_error"] = OnError.PARK
        else:
            self._check_records(at, name, table, environ)
        values["pace"] = self._pace(at, values, known_address(values["to"], environ))
        for option, value in values.get("options", {}).items():
            # The file belongs into version control, and its content is shown by `plan`.
            if _SECRET.search(option) and not _is_reference(value):
                self.refuse(
                    (*at, "options", option),
                    "is a secret, which this file must not contain",
                    "Write `env:NAME` for a variable, or `file:PATH` for a file.",
                )
        return SinkConfiguration(**values)

    def _check_records(
        self, at: KeyPath, name: str, table: Mapping[str, Any], environ: Mapping[str, str]
    ) -> None:
        """Records are not rows of a table; an unknown address may be a database's."""
        for key in TABLE_KEYS:
            if key in table and known_address(table["to"], environ):
                self.refuse((*at, key), f"applies to databases only, and {name!r} writes records")

    def _check_database(self, at: KeyPath, name: str, table: Mapping[str, Any]) -> None:
        """A copy of whole tables has no records to choose or to format."""
        for key in table:
            if key not in DATABASE_KEYS:
                self.refuse(
                    (*at, key),
                    f"does not apply to {name!r}, whose target is a database",
                    f"Its keys are {', '.join(DATABASE_KEYS)}.",
                )
        if table.get("history") and "soft_delete" in table:
            self.refuse(
                (*at, "soft_delete"),
                "does not apply to a history, which keeps every change",
                "Remove one of the two keys.",
            )
        if "destination" in table:
            try:
                NameTemplate.parsed(table["destination"])
            except HeadraceError as error:
                self.refuse((*at, "destination"), str(error))
        for key, only in (("snapshot", Initial.INITIAL), ("on_error", OnError.PARK)):
            if table.get(key, only) != only:
                self.refuse(
                    (*at, key),
                    f"must be {str(only)!r} for a database",
                    "A copy starts with all rows, and a table that the target refuses is parked.",
                )

    def _overriding(
        self, name: str, table: Mapping[str, Any], environ: Mapping[str, str]
    ) -> dict[str, Any]:
        """The table with the values of variables."""
        # A shell's variables have no hyphens in their names.
        prefix = f"{_PREFIX}{name.upper().replace('-', '_')}_"
        merged = dict(table)
        self.overridden = {}
        for key in KEYS:
            variable = prefix + key.upper()
            # The name decides which variables are the sink's.
            if variable not in environ or key == "name":
                continue
            self.overridden[key] = variable
            merged[key] = _of_variable(key, environ[variable])
        return merged

    def _pace(self, at: KeyPath, values: dict[str, Any], address: str) -> Pace:
        batch = values.pop("batch", {})
        try:
            pace = _pace_to(address)
        except (HeadraceError, ImportError) as error:
            # A variable is read where the sink runs; other processes only show what the file says.
            if values["to"].startswith("env:"):
                pace = Pace()
            else:
                self.refuse((*at, "to"), str(error))
        return Pace(
            batch.get("events", pace.events_max),
            batch.get("wait_ms", pace.wait_s * 1000) / 1000,
            batch.get("timeout_s", pace.timeout_s),
        )


def _pace_to(to: str) -> Pace:
    """When a sink with this target commits; raises for a target that nothing writes to."""
    if ":" not in to or is_database(to):
        return Pace()
    return pace_of(sink_class(to))


def known_address(to: str, environ: Mapping[str, str]) -> str:
    """The target's address; empty if it is in a variable that this process lacks."""
    if to.startswith("env:"):
        return environ.get(to.removeprefix("env:"), "")
    return to


def _of_variable(key: str, text: str) -> Any:
    if key in {"tables", "operations", "key"}:
        return list(listed(text))
    if key in {"columns", "where", "batch", "options"}:
        try:
            # Tables and lists of values in TOML's own form, as in the file.
            return tomllib.loads(f"value = {text}")["value"]
        # The key's own check refuses the text, and names the variable.
        except tomllib.TOMLDecodeError:
            return text
    return text
