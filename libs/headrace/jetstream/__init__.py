"""NATS and JetStream as the suite uses them.

It contains connections, the streams and buckets of a suite, reading in bulk, and small durable
state that is written by compare-and-set.

Any package may import it. It never deletes a message of a stream.
"""
