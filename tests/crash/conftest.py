"""Fixtures of the archive's tests and the sinks' tests."""

from tests.support.archiving import archiving, s3
from tests.support.sink_kills import line
from tests.support.sink_servers import (
    mariadb,
    mariadb_database,
    own_kafka,
    own_opensearch,
    own_rabbitmq,
    own_valkey,
)

__all__ = [
    "archiving",
    "line",
    "mariadb",
    "mariadb_database",
    "own_kafka",
    "own_opensearch",
    "own_rabbitmq",
    "own_valkey",
    "s3",
]
