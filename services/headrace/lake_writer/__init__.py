"""The lake-writer: keeps Iceberg tables current from the archive, one cut after another.

It decides when tables are copied, when archive files are applied, and when there is a cut. The
effect of a change on files is in `headrace.lake`.

No other package may import it. It never reads the replication stream, and never makes a cut that
mixes moments.
"""
