"""Tables kept in step with their source: bootstrapped from a snapshot, followed by their changes,
exactly once.

    async with opened("sqlite:///local.db") as target:
        await Mirror(client, target, (("public", "users"),)).run(stopping)

A target of your own has three methods: see `headrace.mirror.target` and docs/mirror.md.
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
