"""`headrace sql …`: the users of the SQL server.

Only `cli` may import it. It never creates a superuser, and never shows a password that it did not
make.
"""
