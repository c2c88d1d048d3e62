"""`headrace backup …`: create the store, take backups, look at them, verify and expire them.

Only `cli`, `cli.restore` and `cli.standby` may import it. It never changes a stored object: expiry
removes whole ones.
"""
