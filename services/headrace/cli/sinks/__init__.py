"""`headrace sinks` and `headrace dead-letters`: look at the sinks of a file, and instruct them.

Only `cli` may import it. It never writes to a sink's target: the sink's own process does.
"""
