"""Publishes an ordered sequence of messages to a JetStream stream, each exactly once.

`fast` is also a library for bulk publishing (docs/fast-ingest.md).

Only `publisher`, and programs that publish with `fast`, may import it. It never reports a message
as stored that JetStream has not acknowledged.
"""
