"""PostgreSQL's logical replication messages (pgoutput, version 1) and their decoder. Pure."""

from headrace.pgoutput.decoder import decode
from headrace.pgoutput.messages import (
    UNCHANGED,
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Origin,
    PgoutputMessage,
    Relation,
    RelationColumn,
    Row,
    Truncate,
    TypeMessage,
    Unchanged,
    Update,
    Value,
    pg_timestamp_iso,
)

__all__ = [
    "UNCHANGED",
    "Begin",
    "Commit",
    "Delete",
    "Insert",
    "LogicalMessage",
    "Origin",
    "PgoutputMessage",
    "Relation",
    "RelationColumn",
    "Row",
    "Truncate",
    "TypeMessage",
    "Unchanged",
    "Update",
    "Value",
    "decode",
    "pg_timestamp_iso",
]
