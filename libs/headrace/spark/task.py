"""One task of a job, in Spark's Python worker: calls the job's function.

Promises that an error that another attempt would not avoid is a result: Spark repeats only a task
that raises.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from headrace.errors import HeadraceError


def run_task(function: str, plan: bytes, task: int) -> dict[str, Any]:
    """A row of `headrace.spark.driver`'s schema."""
    module, _, name = function.partition(":")
    try:
        result: bytes = getattr(import_module(module), name)(plan, task)
    except HeadraceError as error:
        if error.retry:
            raise
        return {"task": task, "result": b"", "error": str(error)}
    return {"task": task, "result": result, "error": ""}
