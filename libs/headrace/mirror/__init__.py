"""Tables kept in sync with their source: copied from a snapshot, then updated by change events.

    async with opened("sqlite:///local.db") as target:
        await Mirror(client, target, (("public", "users"),)).run(stopping)

Rows and the position of the last change are committed together, so a mirror contains every change
exactly once. To write a new target, implement the three methods of `Target` (docs/mirror.md).

Any program may import it. It never connects to the source's PostgreSQL, and never changes a table
of the target that it does not mirror.
"""

from headrace.mirror.bootstrap import Streams
from headrace.mirror.mirror import Mirror
from headrace.mirror.table import Column, Table
from headrace.mirror.target import (
    AlterTable,
    CommitRefusedError,
    CreateTable,
    DeleteRow,
    DropTable,
    Filled,
    InsertRows,
    ReadableTarget,
    RowMissingError,
    Step,
    SwapTables,
    TakenOverError,
    Target,
    TargetAwayError,
    TargetError,
    TargetReading,
    TruncateTable,
    UpdateRow,
    opened,
)
from headrace.mirror.visible import NotVisibleError, wait_for

__all__ = [
    "AlterTable",
    "Column",
    "CommitRefusedError",
    "CreateTable",
    "DeleteRow",
    "DropTable",
    "Filled",
    "InsertRows",
    "Mirror",
    "NotVisibleError",
    "ReadableTarget",
    "RowMissingError",
    "Step",
    "Streams",
    "SwapTables",
    "Table",
    "TakenOverError",
    "Target",
    "TargetAwayError",
    "TargetError",
    "TargetReading",
    "TruncateTable",
    "UpdateRow",
    "opened",
    "wait_for",
]
