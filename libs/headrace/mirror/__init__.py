"""Tables kept in sync with their source: copied from a snapshot, then updated by change events.

    async with opened("sqlite:///local.db") as target:
        await Mirror(client, target, (("public", "users"),)).run(stopping)

Exactly once. To write a new target, implement three methods: see `headrace.mirror.target` and
docs/mirror.md.
"""

from headrace.mirror.bootstrap import Streams
from headrace.mirror.mirror import Mirror
from headrace.mirror.table import Column, Table
from headrace.mirror.target import (
    AlterTable,
    CreateTable,
    DeleteRow,
    DropTable,
    Filled,
    InsertRows,
    RowMissingError,
    Step,
    SwapTables,
    Target,
    TargetAwayError,
    TargetError,
    TruncateTable,
    UpdateRow,
    opened,
)

__all__ = [
    "AlterTable",
    "Column",
    "CreateTable",
    "DeleteRow",
    "DropTable",
    "Filled",
    "InsertRows",
    "Mirror",
    "RowMissingError",
    "Step",
    "Streams",
    "SwapTables",
    "Table",
    "Target",
    "TargetAwayError",
    "TargetError",
    "TruncateTable",
    "UpdateRow",
    "opened",
]
