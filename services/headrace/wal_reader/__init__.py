"""The wal-reader: PostgreSQL's replication stream in, frames on the internal bus out, confirmed LSN
back.
"""
