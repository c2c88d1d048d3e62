"""`headrace archive …` and `headrace replay`: read, check and replay an archive.

Only `cli` may import it. It never writes to an archive, except `gc`, which removes old files.
"""
