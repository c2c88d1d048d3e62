"""One sink's process: reads the stream, writes to the target, commits the data with its position.

No other package may import it. It never waits for another sink, and never confirms an LSN.
"""
