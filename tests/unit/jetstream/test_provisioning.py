"""The streams and buckets of a suite."""

from __future__ import annotations

from headrace.jetstream.provisioning import SCHEMA_HISTORY, declared
from headrace.settings import load


def test_only_the_bucket_of_schemas_keeps_earlier_values() -> None:
    names = load({}).streams
    kept = {one.name: one.max_msgs_per_subject for one in declared(names)}
    assert kept[f"KV_{names.state}"] == 1
    assert kept[f"KV_{names.schemas}"] == SCHEMA_HISTORY
    assert SCHEMA_HISTORY > 1
