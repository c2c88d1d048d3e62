"""Names and texts as SQL writes them. Pure.

SQLite quotes names as PostgreSQL does.
"""

from __future__ import annotations


def quote_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def quote_table(schema: str, name: str) -> str:
    return f"{quote_name(schema)}.{quote_name(name)}"


def quote_literal(text: str) -> str:
    """For connections that keep `standard_conforming_strings` on, as PostgreSQL's default is."""
    return "'" + text.replace("'", "''") + "'"


def escape_literal(text: str) -> str:
    """A literal with the same value under any `standard_conforming_strings`."""
    return "E" + quote_literal(text.replace("\\", "\\\\"))
