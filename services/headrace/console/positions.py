"""Positions and LSNs in paths and queries. Pure.

On screen a position is `0/16F73F0+2`; in a path `0-16F73F0-2`, because a slash separates there.
"""

from __future__ import annotations

import re

from headrace.console.problem import ProblemError, invalid
from headrace.lsn import Position

_POSITION = re.compile(r"([0-9A-Fa-f]{1,8})[-/]([0-9A-Fa-f]{1,8})[-+]([0-9]{1,19})")
_DIGITS = re.compile(r"[0-9]{1,19}")
_LSN = re.compile(r"([0-9A-Fa-f]{1,8})[-/]([0-9A-Fa-f]{1,8})")


def number_in(text: str) -> int | None:
    """A number of 64 bits without a sign; None for anything else. `str.isdigit` also accepts what
    `int` refuses, such as a superscript or thousands of digits.
    """
    return int(text) if _DIGITS.fullmatch(text) else None


def position_in(text: str) -> Position:
    """A position in either form."""
    # Both forms: people paste what is on the screen into an address.
    found = _POSITION.fullmatch(text)
    if found is None:
        raise invalid(f"{text!r} is not a position", "Write 0-16F73F0-2.")
    return Position(_number(found), int(found[3]))


def lsn_in(text: str) -> int:
    """An LSN in either form."""
    found = _LSN.fullmatch(text)
    if found is None:
        raise invalid(f"{text!r} is not an LSN", "Write 0-16F73F0.")
    return _number(found)


def _number(found: re.Match[str]) -> int:
    return (int(found[1], 16) << 32) | int(found[2], 16)


def missing(
    position: Position, first: Position | None, last: Position | None, *, discarded: bool
) -> ProblemError:
    """Why the stream, which may have discarded events, doesn't have this position."""
    if first is None or last is None:
        return ProblemError(404, "not_found", "The stream is empty.", "Change a row.")
    if position < first and discarded:
        return ProblemError(
            404,
            "aged_out",
            f"The stream begins at {first}; it has discarded {position}.",
            "The archive and the audit trail may have it.",
        )
    # The page asks again on its own: the change may be on its way.
    if position > last:
        detail = f"The stream ends at {last}; {position} is not in it yet."
        return ProblemError(
            404, "not_found", detail, "Try again when the change has been published."
        )
    return ProblemError(
        404,
        "not_found",
        f"No event of this source has the position {position}.",
        "Check the position; it may belong to another source, or to a table that is not published.",
    )
