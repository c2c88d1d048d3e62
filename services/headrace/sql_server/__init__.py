"""The SQL server: clients of PostgreSQL query the lake, each statement at one cut.

Each client has a connection to a private PostgreSQL without rows, which answers statements that
read no table of the lake. Statements that do are translated and run on the copies (`headrace.sql`).

No other package may import it. It never answers a statement that reads a table of the lake from
the private PostgreSQL, whose tables are empty.
"""
