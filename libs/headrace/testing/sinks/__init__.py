"""The claims that every sink has to keep, for the tests of a program's own sinks.

    from headrace.testing.sinks import conformance

    conformance.run(lambda: MySink(options), read=ids_that_readers_see)

Only the tests of programs may import it. It never talks to a target itself: the sink writes, and
`read` reads with the target's own client.
"""
