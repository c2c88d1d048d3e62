"""Names and patterns of tables and columns, as settings and commands write them. Pure.

`users` is a table of `public`, `app.users` one of `app`. A name in double quotes stands for itself,
including dots, commas and asterisks; a quote within is doubled: `"my.schema".users`,
`"my.schema"."a,b"`. Outside quotes a dot separates names, and in a pattern `*` is any run of
characters. A quote anywhere else than at a name's start is part of the name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

from headrace.contract.subjects_and_ids import PUBLIC
from headrace.errors import SettingError

# A quote that does not close, or text after a closing one, fits neither form and is refused.
_PART = re.compile(r'"((?:[^"]|"")*)"(?=\.|$)|([^".][^.]*)(?=\.|$)', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Name:
    """One name of a pattern; if quoted, it stands for itself."""

    text: str
    quoted: bool = False

    def matches(self, name: str) -> bool:
        if self.quoted:
            return name == self.text
        return fnmatchcase(name, self.text)


def listed(text: str) -> tuple[str, ...]:
    """The parts of a list that commas separate, outside quotes."""
    parts = []
    part = ""
    inside = False
    for character in text:
        if character == "," and not inside:
            parts.append(part.strip())
            part = ""
            continue
        # A quote in the middle of a name is part of it. A doubled one closes and opens again.
        if character == '"' and (inside or not part.strip() or part[-1] in '."'):
            inside = not inside
        part += character
    return tuple(part for part in (*parts, part.strip()) if part)


def table_of(text: str) -> tuple[str, str]:
    """Schema and name of the one table that is named."""
    schema, name = schema_and_name(text)
    if schema is None:
        return PUBLIC, name
    return schema, name


def schema_and_name(text: str) -> tuple[str | None, str]:
    """The same, where no schema means any schema."""
    schema, name = _owner_and_name(_names(text), text)
    if schema is None:
        return None, name.text
    return schema.text, name.text


def names_table(pattern: str, schema: str, table: str) -> bool:
    """Whether a pattern (`table`, `schema.table`, `schema.*`) matches this table."""
    owner, name = _owner_and_name(_names(pattern), pattern)
    if owner is None:
        return schema == PUBLIC and name.matches(table)
    return owner.matches(schema) and name.matches(table)


def column_named(pattern: str, schema: str, table: str) -> str | None:
    """The column that a pattern (`table.column`, `schema.table.column`) names if it matches this
    table.
    """
    names = _names(pattern)
    if len(names) < 2:
        raise SettingError(
            f"HEADRACE_EXCLUDE_COLUMNS or HEADRACE_AUDIT_REDACT: {pattern!r} names no column",
            remedy=(
                "Write table.column or schema.table.column, with dots in a name "
                '"my.schema".table.column.'
            ),
        )
    owner, name = _owner_and_name(names[:-1], pattern)
    its = (schema == PUBLIC if owner is None else owner.matches(schema)) and name.matches(table)
    if its:
        return names[-1].text
    return None


def _owner_and_name(names: list[Name], text: str) -> tuple[Name | None, Name]:
    """The schema (None: public) and the table."""
    if len(names) == 1:
        return None, names[0]
    # Quotes say where a name ends, so a third name can't be a part of the second.
    if len(names) > 2 and any(name.quoted for name in names):
        raise _refusal(text)
    # Without quotes the first dot separates, as it always did.
    if len(names) == 2:
        rest = names[1]
    else:
        rest = Name(".".join(name.text for name in names[1:]))
    return names[0], rest


def _names(text: str) -> list[Name]:
    names = []
    place = 0
    while True:
        found = _PART.match(text, place)
        if found is None:
            raise _refusal(text)
        quoted = found[2] is None
        names.append(Name(found[1].replace('""', '"') if quoted else found[2], quoted))
        place = found.end() + 1
        if place > len(text):
            return names


def _refusal(text: str) -> SettingError:
    return SettingError(
        f"{text!r} names no table",
        remedy='Write users, app.users, or with dots in a name "my.schema".users.',
    )
