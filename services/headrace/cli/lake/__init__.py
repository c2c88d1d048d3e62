"""`headrace lake …`: looks at a lake, keeps it small, copies tables again, compares it with its
source.

Only `cli` may import it. It never changes a row of the lake: what it writes are files with the same
rows, and cuts at the LSN of the last one.
"""
