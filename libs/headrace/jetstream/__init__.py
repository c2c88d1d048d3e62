"""NATS and JetStream as the suite uses them.

Connections, the streams and buckets of a suite, acknowledged publishing in order, reading a
stream's tail, and small durable state.
"""
