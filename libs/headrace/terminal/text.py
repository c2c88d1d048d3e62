"""Text that came from outside, as a terminal may be shown it. Pure.

Names and values are whatever somebody wrote into a database: an escape sequence among them would be
obeyed by the terminal of whoever looks (titles, colours, the clipboard, lines that overwrite
others), a mark of direction would make a line read as another. Both are shown as what they are:
`\\u001b`.
"""

from __future__ import annotations

import re

# Control characters, also the 8-bit ones, and marks that turn the direction of what follows.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_LAYOUT = re.compile("[\t\n]")


def plain(text: str) -> str:
    """Nothing in it is obeyed; it may have several lines. What was JSON still is."""
    return _OBEYED.sub(_escape, text)


def one_line(text: str) -> str:
    """The same, for a name or value that must not begin a line of its own."""
    return _LAYOUT.sub(_escape, plain(text))


def _escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"
