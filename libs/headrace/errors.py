"""Errors that say what to do.

Every error that users see derives from `HeadraceError`: its message says what was wrong and names
the setting or object, `remedy` says what to do about it, and `retry` says whether trying again can
help. Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Iterator


class HeadraceError(Exception):
    """The base class of all errors of the suite."""

    retry: bool = False
    remedy: str = ""

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message)
        if remedy is not None:
            self.remedy = remedy

    def __str__(self) -> str:
        message = super().__str__()
        if self.remedy:
            return f"{message}. {self.remedy}"
        return message


class SettingError(HeadraceError):
    """A setting has an invalid value; detected before any connection is opened."""


class DecodeError(HeadraceError):
    """Bytes from outside don't have the form that their protocol requires."""


def describe(error: BaseException) -> str:
    """The error's message, or its type if it has none (time-outs have none)."""
    return str(error) or type(error).__name__


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors that a group consists of, at any depth; of one that is no group, itself."""
    if not isinstance(error, BaseExceptionGroup):
        yield error
        return
    for one in error.exceptions:
        yield from leaves(one)
