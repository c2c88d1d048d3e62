"""The console: everything that the suite knows, in a browser, and the acts that are safe there.

No other package may import it. It never delays the stream, and never answers with a value that the
caller may not see.
"""
