"""Declares settings, and reads groups of them from flags and the environment.

Promises that a bad value raises `SettingError` before any I/O, naming the setting, the value and
the remedy. Declares no setting itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import field, fields
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from headrace.contract.table_patterns import listed
from headrace.errors import SettingError

T = TypeVar("T")
MIB = 1024 * 1024
_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off", ""}


def setting(
    env: str, default: Any, explain: str, *, secret: bool = False, least: float | None = None
) -> Any:
    """Declare a field that the environment variable `env` sets; `explain` is Markdown."""
    # A URL may contain a password.
    shown = not secret and env != "NATS_URL"
    return field(
        default=default,
        repr=shown,
        metadata={"env": env, "help": explain, "secret": secret, "least": least},
    )


def load_group(kind: type[T], environ: Mapping[str, str], given: Mapping[str, object]) -> T:
    """One group, from flags first, then the environment, then defaults."""
    hints = get_type_hints(kind)
    values: dict[str, object] = {}
    for declared in fields(kind):  # type: ignore[arg-type]  # T is always a dataclass of settings
        if declared.name in given:
            # The command line has parsed its flags already.
            values[declared.name] = given[declared.name]
            continue
        raw = _raw(declared, environ)
        if raw is not None:
            values[declared.name] = _parse(declared.metadata["env"], raw, hints[declared.name])
        _check_least(declared, values)
    return kind(**values)


def without_none(hint: Any) -> Any:
    """The type of a setting's value when it is set."""
    if not isinstance(hint, UnionType):
        return hint
    return next(kind for kind in get_args(hint) if kind is not type(None))


def _raw(declared: dataclasses.Field[Any], environ: Mapping[str, str]) -> str | None:
    env = declared.metadata["env"]
    if env in environ:
        return environ[env]
    if declared.metadata["secret"]:
        file = environ.get(f"{env}_FILE")
    else:
        file = None
    if file is None:
        return None
    try:
        # Most tools end a file with a newline, which is not part of the secret.
        return Path(file).read_text().rstrip("\n")
    except OSError as error:
        raise SettingError(
            f"{env}_FILE={file!r} can't be read: {error.strerror}",
            remedy="Name a readable file that contains the secret.",
        ) from error


def _parse(env: str, raw: str, hint: Any) -> object:
    kind = without_none(hint)
    try:
        if kind is bool:
            return _parse_bool(raw)
        if get_origin(kind) is tuple:
            return listed(raw)
        return kind(raw)
    except ValueError as error:
        raise SettingError(
            f"{env}={raw!r} is not valid", remedy=f"Set {env} to {_expected(kind)}."
        ) from error


def _parse_bool(raw: str) -> bool:
    if raw.lower() in _TRUE:
        return True
    if raw.lower() in _FALSE:
        return False
    raise ValueError(raw)


def _expected(kind: type) -> str:
    if issubclass(kind, Enum):
        return "one of " + ", ".join(str(member.value) for member in kind)
    return {bool: "true or false", int: "a whole number", float: "a number"}.get(
        kind, "a valid value"
    )


def _check_least(declared: dataclasses.Field[Any], values: Mapping[str, object]) -> None:
    least = declared.metadata["least"]
    value = values.get(declared.name)
    if least is not None and isinstance(value, int | float) and value < least:
        env = declared.metadata["env"]
        raise SettingError(f"{env}={value} is too small", remedy=f"Set {env} to {least} or more.")
