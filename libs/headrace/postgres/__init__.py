"""PostgreSQL as the suite uses it: connections, the replication stream, the catalog."""
