"""The schema-publisher: maintains the current schema of each table in a KV bucket.

No other package may import it. It never reads a row.
"""
