"""Takes base snapshots of tables into the archive, from which a replay can start.

Only `cli` may import it. It never writes to the source, and never changes
an object that the archive has.
"""
