"""`headrace restore`: a whole cluster into a folder, or one table into a live database.

Only `cli` and `cli.standby` may import it. It never overwrites a file or a table.
"""
