"""NATS and JetStream as the suite uses them: connecting, the objects it needs, publishing that is
acknowledged in order, the tail of a stream, and small durable state.
"""
