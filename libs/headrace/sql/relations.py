"""A table of the lake as a statement refers to it: PostgreSQL's numbers, and DuckDB's names. Pure.

DuckDB ignores the case of names and PostgreSQL doesn't, and a column that is renamed stays the
same: so the copy's tables and columns have generated names, which are quoted here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A column: its number, type and modifier in the private PostgreSQL, and its name in the copy.

    `held` is False if the copy can't hold the value of some row, in which the column is null there
    (see `storage_types`): a statement that reads it must not be answered from the copy.
    """

    number: int
    name: str
    type_oid: int
    modifier: int
    copy: str = ""
    held: bool = True


@dataclass(frozen=True, slots=True)
class LakeRelation:
    """A table: its OID in the private PostgreSQL, and its name in the copy."""

    relid: int
    schema: str
    name: str
    columns: tuple[RelationColumn, ...]
    copy: str


@dataclass(frozen=True, slots=True)
class Defined:
    """A table's definition in the private PostgreSQL, with its columns in the table's order."""

    relid: int
    columns: tuple[RelationColumn, ...]
