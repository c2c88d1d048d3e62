"""Makes text from outside safe to print on a terminal, and counts in words. Pure.

Names and values are arbitrary text from a database. A terminal would execute an escape sequence in
it (titles, colors, the clipboard, lines that overwrite others), and a direction mark would make a
line read as another. Both are shown escaped: `\u001b`.
"""

from __future__ import annotations

import re

# Control characters, including the 8-bit ones, and marks that change the text direction.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_LAYOUT = re.compile("[\t\n]")


def plain(text: str) -> str:
    """The text with control characters escaped; it may have several lines. JSON stays JSON."""
    return _OBEYED.sub(_escape, text)


def one_line(text: str) -> str:
    """The same, for a name or value that must not start a new line."""
    return _LAYOUT.sub(_escape, plain(text))


def counted(count: int, noun: str) -> str:
    """`1 table`, `2 tables`: for nouns with a regular plural."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"
