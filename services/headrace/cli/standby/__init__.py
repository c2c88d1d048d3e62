"""`headrace standby …`: a standby from the backup store, its log, and its promotion.

Only `cli` may import it. It never starts a server that stays: files and the log are handed over.
"""
