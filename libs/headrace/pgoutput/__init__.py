"""PostgreSQL's logical replication messages (pgoutput, version 1) and their decoder. Pure."""
