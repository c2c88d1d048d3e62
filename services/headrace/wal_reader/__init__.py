"""The wal-reader: reads PostgreSQL's replication stream, sends frames on the internal bus, confirms
LSNs.
"""
