"""SQL over the lake: what a PostgreSQL client asks, answered by DuckDB as PostgreSQL would.

The lake's tables stand in a copy in DuckDB, which shows one cut of all tables. Statements come as
the trees of PostgreSQL's own analyzer. Anything that is not proven to give PostgreSQL's answer is
refused by name; nothing is answered approximately.

Only `sql_server` and `cli` may import it. It never writes to the lake.
"""
