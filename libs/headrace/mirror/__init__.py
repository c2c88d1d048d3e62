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
    Alter,
    Create,
    Delete,
    Drop,
    Filled,
    Insert,
    RowMissingError,
    Step,
    Swap,
    Target,
    TargetAwayError,
    TargetError,
    Truncate,
    Update,
    opened,
)

__all__ = [
    "Alter",
    "Column",
    "Create",
    "Delete",
    "Drop",
    "Filled",
    "Insert",
    "Mirror",
    "RowMissingError",
    "Step",
    "Streams",
    "Swap",
    "Table",
    "Target",
    "TargetAwayError",
    "TargetError",
    "Truncate",
    "Update",
    "opened",
]
