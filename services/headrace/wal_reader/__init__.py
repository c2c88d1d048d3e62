"""The wal-reader: reads PostgreSQL's replication stream, sends frames on the internal bus, confirms
LSNs.

No other package may import it. It never looks into a message, and never confirms
an LSN on its own.
"""
