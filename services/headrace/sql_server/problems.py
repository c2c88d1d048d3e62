"""Errors as clients get them, and the exceptions that carry them."""

from __future__ import annotations

from typing import Final

from headrace.sql.wire import Problem, WireMessage

GUARD_MESSAGE: Final = b'foreign-data wrapper "headrace" has no handler'
GUARD_CODE: Final = b"55000"
# PostgreSQL's codes: drivers and pools decide by them what to do next.
NOT_SUPPORTED: Final = "0A000"
READ_ONLY: Final = "25006"
IN_FAILED_TRANSACTION: Final = "25P02"


class StatementRefusedError(Exception):
    """The front refuses a statement; the private PostgreSQL does not know of it."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class FailedError(Exception):
    """The private PostgreSQL answered with an error, after which it waits for a Sync."""

    def __init__(self, message: WireMessage) -> None:
        super().__init__("an error of the private PostgreSQL")
        self.message = message


class SessionEndError(Exception):
    """The connection ends; the client gets the problem, if there is one."""

    def __init__(self, reason: str | Problem) -> None:
        super().__init__(reason if isinstance(reason, str) else reason.message)
        self.problem = reason if isinstance(reason, Problem) else None


def refused(code: str, message: str, *, hint: str = "", detail: str = "") -> StatementRefusedError:
    """A refusal of a statement."""
    return StatementRefusedError(Problem(code, message, detail=detail, hint=hint))


def fatal(code: str, message: str, *, hint: str = "") -> SessionEndError:
    """The end of a connection."""
    return SessionEndError(Problem(code, message, hint=hint, severity="FATAL"))


def unsupported(feature: str, hint: str = "") -> StatementRefusedError:
    """A refusal of what the SQL server can't do with the lake's tables."""
    return refused(NOT_SUPPORTED, f"{feature} is not supported over the lake", hint=hint)


def transaction_failed() -> StatementRefusedError:
    """As PostgreSQL words it."""
    return refused(
        IN_FAILED_TRANSACTION,
        "current transaction is aborted, commands ignored until end of transaction block",
    )
