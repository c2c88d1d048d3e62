"""Fixtures of the sinks' tests."""

from tests.support.sink_servers import kafka, opensearch, own_kafka, own_valkey, rabbitmq, valkey

__all__ = ["kafka", "opensearch", "own_kafka", "own_valkey", "rabbitmq", "valkey"]
