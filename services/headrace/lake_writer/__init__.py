"""The lake service: keeps Iceberg tables current from the archive, one cut after another.

It decides when tables are copied, when archive files are applied, and when a cut is made. What a
change does to files is in `headrace.lake`. It never reads the replication stream, and never makes a
cut that mixes moments.
"""
