"""Fixtures of the sinks' tests."""

from tests.support.sink_servers import kafka, own_kafka, own_valkey, rabbitmq, valkey

__all__ = ["kafka", "own_kafka", "own_valkey", "rabbitmq", "valkey"]
