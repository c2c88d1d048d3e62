"""`headrace archive …` and `headrace replay`: read, check and replay an archive."""
