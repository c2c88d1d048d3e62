"""Errors that say what to do.

Every error a user can meet derives from `HeadraceError`: its message says what was wrong (naming
the setting or the object), `remedy` says what to do about it, and `retry` says whether waiting and
trying again can help. Nothing here does I/O.
"""

from __future__ import annotations


class HeadraceError(Exception):
    """The base of all errors of the suite."""

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
    """A setting has a value that can't be used; found before any connection is made."""


class DecodeError(HeadraceError):
    """Bytes that came from outside don't have the form their protocol promises."""


def describe(error: BaseException) -> str:
    """The error's message, or its type if it has none (time-outs have none)."""
    return str(error) or type(error).__name__
