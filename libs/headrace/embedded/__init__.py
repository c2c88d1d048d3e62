"""Real servers from wheels: PostgreSQL, nats-server and a Java runtime, for `headrace up` and for
the tests.
"""
