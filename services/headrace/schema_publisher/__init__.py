"""Schema-publisher: what the published tables look like, in a KV bucket."""
