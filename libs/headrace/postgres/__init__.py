"""PostgreSQL as the suite uses it: connections, the replication stream, the catalog.

Any package may import it. It never writes to a table of the user.
"""
