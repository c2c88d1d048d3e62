"""dbt's commands that read, and one that writes, on a copy of the project."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from dbt.cli.main import dbtRunner

PROJECT = Path(os.environ["DBT_PROJECT_DIR"])


def run(*arguments: str) -> Any:
    """The outcome of a command."""
    return dbtRunner().invoke(["--log-level", "none", *arguments])


def written(name: str) -> dict[str, Any]:
    """A file that the last command wrote."""
    found: dict[str, Any] = json.loads((PROJECT / "target" / name).read_text())
    return found


def main() -> None:
    answers: dict[str, object] = {"debug": run("debug").success}

    run("source", "freshness")
    for result in written("sources.json")["results"]:
        answers[result["unique_id"]] = [result["status"], result["max_loaded_at"]]

    run("test")
    for result in written("run_results.json")["results"]:
        answers[result["unique_id"]] = [result["status"], result["failures"]]

    run("docs", "generate")
    for name, relation in written("catalog.json")["sources"].items():
        columns = [(one["name"], one["type"], one["index"]) for one in relation["columns"].values()]
        answers[f"documentation of {name}"] = [relation["metadata"]["type"], columns]

    (shown,) = run("show", "--select", "best").result.results
    answers["rows of a model"] = [list(map(str, row)) for row in shown.agate_table.rows]

    (refused,) = run("run").result.results
    answers["a write"] = f"failed: {refused.message}"

    print(json.dumps(answers))


# dbt starts processes that import this script.
if __name__ == "__main__":
    main()
