"""PostgreSQL's logical replication messages (pgoutput, version 1) and their decoder. Pure.

Any package may import it. It never does I/O, and never guesses: malformed bytes raise an error.
"""
