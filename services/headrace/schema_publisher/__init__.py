"""The schema-publisher: publishes the schemas of tables in a KV bucket."""
